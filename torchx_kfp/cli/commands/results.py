"""``torchx-kfp results``: show the results that stages have recorded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.attempts import last_attempts
from torchx_kfp.cli.display.printing import (
    is_number,
    print_csv,
    print_json,
    print_message,
    show_results,
    show_value,
    terminal_width,
    without_run,
)
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.hosts import Flags, host_options
from torchx_kfp.cli.resolver import Located, locate, records_argument
from torchx_kfp.cli.selection import (
    Chosen,
    RunsHere,
    choose_located,
    nothing,
    open_tracker,
    parts,
    read,
    say_cached,
    say_if_misplaced,
    titled,
)
from torchx_kfp.cli.where import OWN, matching, unknown_name
from torchx_kfp.errors import KeyRefusedError, MissingResultsError
from torchx_kfp.text import counted, did_you_mean, listed

if TYPE_CHECKING:
    from torchx_kfp.tracking import FsspecResultTracker, Result

    Results = Mapping[str, Mapping[str, Result]]


@click.command("results", short_help="Show results of runs: filtered, sorted, as JSON or CSV.")
@records_argument("[RUN]")
@click.option(
    "--stage", "stages", metavar="STAGE", multiple=True, help="Show only this stage. May be given several times."
)
@click.option(
    "--sort",
    "sorts",
    metavar="NAME",
    multiple=True,
    help="Sort by this result; -NAME puts the largest first. Further --sort options break ties.",
)
@click.option(
    "--where", "expressions", metavar="EXPRESSION", multiple=True, help="Show only runs for which this is true."
)
@output_dir_option
@format_option("table", "json", "csv")
@host_options
def results_command(
    words: tuple[str, ...],
    stages: tuple[str, ...],
    sorts: tuple[str, ...],
    expressions: tuple[str, ...],
    output_dir: str,
    form: str,
    flags: Flags,
) -> None:
    """Show the results that the stages of RUN have recorded.

    RUN is the id of a pipeline run or of one stage's run, the beginning or end of such an id, "latest", or a part of
    these, such as "latest/train": a run on this machine, or on the KFP host. The run knows its tracker base, an fsspec
    URL or a directory. With TRACKER_BASE, RUN is any run that has recorded results there; without RUN and options, the
    command lists these runs. Cached stages of a run on this machine are shown with the results that they took from the
    cache.

    \b
    torchx-kfp results latest
    torchx-kfp results s3://bucket/results --stage train \\
        --where 'accuracy > 0.9' --sort -accuracy

    EXPRESSION is written in the Common Expression Language. Its variables are the names of results, and run, stage,
    execution and run_id: 'epochs >= 10 && model == "resnet"'. For names that are not identifiers, write
    'results["l2norm/mean"] > 1.0'. A run that lacks a name does not match. If --where is given several times, all
    must be true.

    JSON maps run ids to results. CSV has the columns run_id, run, stage and execution, then one for each result.
    """
    [located] = locate(words, output_dir, flags, least=0)
    tracker = open_tracker(located.base)
    chosen = _chosen(tracker, located)
    keys = list(chosen.keys)
    if located.run is None and form == "table" and not (stages or sorts or expressions):
        _list_runs(keys, RunsHere(output_dir, located.base, frozenset(keys)))
        say_if_misplaced(located.base, keys)
        return
    found: Results = read(tracker, _of_stages(keys, stages))
    for expression in expressions:
        values = _values(found)
        rows = {key: (values[key], results) for key, results in found.items()}
        found = {key: found[key] for key in matching(expression, rows)} if rows else found
    for sort in reversed(sorts if found else ()):
        found = _sorted(found, sort)
    if not found:
        print_message(f"None of {counted(len(keys), 'run id')} matches.")
    say_cached(chosen)
    if form == "table":
        _print_table(found, chosen.cached, located.name.partition("/")[0])
    else:
        {"json": print_json, "csv": _print_csv}[form](found)


def _chosen(tracker: FsspecResultTracker, located: Located) -> Chosen:
    from torchx_kfp.tracking.statements.kinds import run_ids

    run, output_dir = located.run, located.output_dir
    # Keys below the name are listed first: a base may have many other runs.
    keys: list[str] = []
    with contextlib.suppress(KeyRefusedError):  # a run cannot have this name, such as '..'
        keys = tracker.keys(run.rstrip("/") or run) if run is not None else []
    # The results that a cached stage was given are those of another run.
    if keys and run is not None and not _is_here(run, output_dir):
        return Chosen(run.rstrip("/"), tuple(last_attempts(tracker.store, keys, run.rstrip("/"), located.run_ids)))
    known, others = tracker.keys(), run_ids(tracker.store)
    if not known:
        if not others:
            raise nothing(tracker.tracker_base, run)
        raise MissingResultsError(
            f"There are no results under {tracker.tracker_base!r}, only metadata, artifacts or sources of "
            f"{counted(len(others), 'run')}: {listed(others)}. `torchx-kfp show` shows them."
        )
    if run is None:
        return Chosen("", tuple(last_attempts(tracker.store, known, located.base, further=others)))
    return choose_located(located, known, tracker, others)


def _is_here(run: str, output_dir: str) -> bool:
    return Path(output_dir, run.partition("/")[0]).is_dir()


def _list_runs(keys: Iterable[str], here: RunsHere) -> None:
    from torchx_kfp.cli.display.tables import print_table
    from torchx_kfp.tracking.stores.keys import pipeline_run

    stages: dict[str, list[str]] = {}
    for key in keys:
        run = pipeline_run(key)
        stages.setdefault(run, []).append(parts(key).get("stage") or key[len(run) + 1 :].partition("/")[0])
    cached: dict[str, int] = {}
    for run in reversed(list(here.folders)):
        handed_on = here.handed_on(run)
        if handed_on:
            cached[run] = len(handed_on)
            stages.setdefault(run, []).extend(key.split("/")[1] for key in handed_on)
    rows = [
        (
            run,
            str(len(names) - cached.get(run, 0)),
            *([str(cached.get(run, 0))] if cached else []),
            " ".join(sorted(set(filter(None, names)))),
        )
        for run, names in sorted(stages.items())
    ]
    columns = ("run", "with results", *(["cached"] if cached else []), "stages")
    print_table(columns, rows, right=("with results", "cached"))


def _of_stages(keys: list[str], stages: Sequence[str]) -> list[str]:
    if not stages:
        return keys
    there = sorted({parts(key)["stage"] for key in keys if parts(key)})
    for stage in stages:
        if stage not in there:
            raise click.UsageError(
                f"--stage {stage!r} has no results here.{did_you_mean(stage, there)} "
                f"Stages: {listed(there, 20) or 'none'}."
            )
    return [key for key in keys if parts(key).get("stage") in stages]


def _values(found: Results) -> dict[str, dict[str, Any]]:
    """Return the values that an expression may use for each run: its results, and the parts of its run id."""
    taken = {name for results in found.values() for name in results}
    own = {key: {"run_id": key, **parts(key)} for key in found}
    return {
        key: {**{name: part for name, part in own[key].items() if name not in taken}, **results}
        for key, results in found.items()
    }


def _sorted(found: Results, sort: str) -> Results:
    values = _values(found)
    there = dict.fromkeys(name for results in found.values() for name in results)
    descending = sort.startswith("-") and sort not in there
    name = sort[1:] if descending else sort
    if name not in there and name not in OWN:
        raise click.UsageError(f"--sort {sort!r} names {name!r}, {unknown_name(name, list(there))}")
    groups: dict[str, list[str]] = {"number": [], "nan": [], "text": [], "missing": []}
    for key, row in values.items():
        groups[_kind(row[name]) if name in row else "missing"].append(key)
    by: dict[str, Callable[[str], Any]] = {
        "number": lambda key: values[key][name],
        "text": lambda key: str(values[key][name]),
    }
    for kind, value in by.items():
        groups[kind].sort(key=value, reverse=descending)
    return {key: found[key] for group in groups.values() for key in group}


def _kind(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return "number" if isinstance(value, int | float) else "text"


def _print_csv(found: Results) -> None:
    names = list(dict.fromkeys(name for results in found.values() for name in results))
    own = [name for name in ("run", "stage", "execution") if name not in names]
    rows = (
        [key, *(parts(key).get(name) for name in own), *(results.get(name) for name in names)]
        for key, results in found.items()
    )
    print_csv(["run_id", *own, *names], rows)


def _print_table(found: Results, cached: Mapping[str, str], name: str) -> None:
    from torchx_kfp.cli.display.tables import fits, print_table

    # A cached stage is shown in the run that took it from the cache.
    names_here = {key: cached.get(key, key) for key in found}
    runs = {parts(name).get("run") for name in names_here.values()}
    run = runs.pop() if len(runs) == 1 else None
    label = "stage/execution" if run else "run id"
    above = f"Run {titled(name, run)}" if run else ""
    ids = [
        (name[len(run) + 1 :] if run else name) + (" (cached)" if key in cached else "")
        for key, name in names_here.items()
    ]
    names = list(dict.fromkeys(name for results in found.values() for name in results))
    # Each column takes at least three characters, so a table with hundreds of them need not be measured.
    if (width := terminal_width()) is None or 4 * len(names) < width:
        cells = [
            [run_id, *(without_run(show_value(results[name]), run) if name in results else "" for name in names)]
            for run_id, results in zip(ids, found.values(), strict=True)
        ]
        kinds = {name: [results[name] for results in found.values() if name in results] for name in names}
        numbers = [name for name in names if all(map(is_number, kinds[name]))]
        texts = [name for name in names if any(isinstance(value, str) for value in kinds[name])]
        # A result may have the name of the first column.
        columns = [label if label not in names else "", *names]
        if fits(columns, cells, texts):
            print_table(columns, cells, right=numbers, cut=texts, above=above)
            return
    rows = [
        (run_id, without_run(show_results(results), run)) for run_id, results in zip(ids, found.values(), strict=True)
    ]
    print_table((label, "results"), rows, above=above)
