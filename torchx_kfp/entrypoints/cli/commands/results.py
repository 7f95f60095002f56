"""``torchx-kfp results``: show the results that stages have recorded."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, did_you_mean, listed, printable
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.conditions import Condition, in_order
from torchx_kfp.entrypoints.cli.display.printing import (
    at,
    is_number,
    print_csv,
    print_json,
    print_message,
    show_results,
    show_value,
    terminal_width,
    without_run,
)
from torchx_kfp.entrypoints.cli.flags import csv_option, json_option, refuse_empty
from torchx_kfp.entrypoints.cli.lookup import Lookup, connect, finds_runs, usual_base
from torchx_kfp.entrypoints.cli.recorded import (
    Chosen,
    Recorded,
    last_attempts,
    nothing,
    open_recorder,
    parts,
    titled,
)
from torchx_kfp.errors import ArgumentError, MissingResultsError, TorchxKfpError

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.tracking import Result
    from torchx_kfp.tracking.recorder import Recorder

    #: Results by run id.
    Results = Mapping[str, Mapping[str, Result]]

#: The names that a run has besides those of its results, and what precedes the names of its tags.
_OWN = ("run", "stage", "execution", "run_id")
_TAG = "tag."


@click.command("results")
@click.argument("run", metavar="[RUN[/STAGE]]", required=False)
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
    "--where",
    "comparisons",
    metavar="COMPARISON",
    multiple=True,
    help="Show only runs for which this holds. May be given several times.",
)
@click.option(
    "--schedule",
    metavar="NAME",
    callback=refuse_empty,
    help="Show the runs that this schedule of the host has started, the oldest first.",
)
@json_option
@csv_option
@finds_runs(recorded=True)
def results_command(
    run: str | None,
    stages: tuple[str, ...],
    sorts: tuple[str, ...],
    comparisons: tuple[str, ...],
    schedule: str | None,
    as_json: bool,
    as_csv: bool,
    lookup: Lookup,
) -> None:
    """Show the results that the stages of RUN have recorded.

    Without RUN, the command lists the runs that have recorded results under the tracker base: that of --tracker-base or
    of the settings, or else that of the newest run here. Cached stages of a run on this machine are shown with the
    results that they took from the cache.

    \b
    torchx-kfp results latest
    torchx-kfp results --tracker-base s3://bucket/results --stage train \\
        --where 'accuracy > 0.9' --sort -accuracy
    torchx-kfp results --schedule nightly --stage train

    COMPARISON is NAME OPERATOR VALUE: 'loss < 0.1', 'model == resnet'. NAME is a result, or run, stage, execution or
    run_id, or a tag: 'tag.team == vision'. The operators are < <= == != >= >. A run that lacks NAME does not match; for
    other conditions, use --json, or to_frame() of a tracker.

    JSON maps run ids to results. CSV has the columns run_id, run, stage and execution, then one for each result.
    """
    located: Recorded | None = None
    if schedule is not None:
        if run is not None:
            raise click.UsageError("--schedule names the runs: give no RUN.")
        recorder, chosen = _of_schedule(schedule, lookup)
    elif run is not None:
        [located] = lookup.locate(run)
        recorder, chosen = located.recorder, _chosen(located)
    else:
        base = lookup.base or usual_base(lookup.output_dir)
        if base is None:
            raise click.UsageError("Give a RUN, such as latest, or --tracker-base for all runs there.")
        recorder = open_recorder(base)
        chosen = _all(recorder)
        if not (as_json or as_csv or stages or sorts or comparisons):
            _list_runs(chosen.keys)
            return
    keys, named = list(chosen.keys), located.stages if located else {}
    found: Results = recorder.get_many(_of_stages(_in_order(keys, named), stages))
    found = _matching(found, list(map(Condition.parse, comparisons)), recorder)
    for sort in reversed(sorts if found else ()):
        found = _sorted(found, sort)
    if located is not None and not keys:
        print_message(located.nothing_recorded(chosen.name, "no results"))
    elif not found:
        print_message(f"None of {counted(len(keys), 'run id')} matches.")
    chosen.say_cached()
    if as_json:
        print_json(found)
    elif as_csv:
        _print_csv(found)
    elif keys:
        _print_table(found, chosen, located.name.partition("/")[0] if located else "", named)


def _chosen(located: Recorded) -> Chosen:
    known = located.recorded(results=True)
    if not known and located.run is None:
        raise _nothing(located.recorder, located.word)
    return located.choose(known)


def _all(recorder: Recorder) -> Chosen:
    """Return all run ids under a tracker base, without those of replays."""
    from torchx_kfp.tracking.store import pipeline_run

    known = recorder.keys()
    if not known:
        raise _nothing(recorder)
    if replays := recorder.replays_among(known):
        runs = sorted({pipeline_run(key) for key in replays})
        names = printable(listed(runs))
        if replays.issuperset(known):
            raise MissingResultsError(
                f"There are only replays under {recorder.tracker_base!r}: {names}. Name one to see its results."
            )
        which = "it" if len(runs) == 1 else "one"
        print_message(f"Left out: {counted(len(runs), 'replay')}. Name {which} to see its results: {names}.")
    keys = [key for key in known if key not in replays]
    return Chosen("", tuple(last_attempts(recorder, keys, recorder.tracker_base)))


def _nothing(recorder: Recorder, run: str | None = None) -> TorchxKfpError:
    if not (others := recorder.run_ids()):
        return nothing(recorder.tracker_base, run)
    return MissingResultsError(
        f"There are no results under {recorder.tracker_base!r}, only metadata, artifacts or sources of "
        f"{counted(len(others), 'run')}: {listed(others)}. `torchx-kfp show` shows them."
    )


def _of_schedule(name: str, lookup: Lookup) -> tuple[Recorder, Chosen]:
    """Return the records of the runs of a schedule, labeled with the times for which they were made.

    Raises:
        ArgumentError: there is no such schedule, or it has no tracker base.
        TrackerBaseError: only pods have the tracker base, or only the schedule names it.
        MissingResultsError: no run has recorded anything.
    """
    from torchx_kfp.execution.host.run_filter import RunFilter
    from torchx_kfp.execution.host.schedules import Schedules

    host = connect(lookup.flags)
    schedules = Schedules(host)
    given = lookup.base or schedules.find(name).tracker_base
    if not given:
        raise ArgumentError(
            f"The pipeline of the schedule {name!r} has no parameter {TRACKER_BASE!r} with a value. Name "
            "the tracker base: --tracker-base."
        )
    if lookup.base is None:
        lookup.verify_trusted(given, ran_here=False)
    recorder = open_recorder(given)
    where = RunFilter(archived=None, schedule_id=schedules.find_id(name))
    runs = sorted(host.list(where), key=lambda run: run.scheduled)
    if not runs:
        raise MissingResultsError(
            f"{host.connection.name} has no runs of the schedule {name!r}. `torchx-kfp schedule list` says if it is "
            "paused."
        )
    found: dict[str, RunSummary] = {}
    for run in runs:
        keys = recorder.keys(run.run_id)
        found |= dict.fromkeys(last_attempts(recorder, keys, run.run_id) if keys else (), run)
    labels = {key: f"{at(run.scheduled)}  {parts(key).get('stage', '')}".rstrip() for key, run in found.items()}
    if not labels:
        raise MissingResultsError(f"No run of {name!r} has results under {given!r}, of {counted(len(runs), 'run')}.")
    if without := len(runs) - len({run.run_id for run in found.values()}):
        print_message(
            f"{without:,} of {counted(len(runs), 'run')} without results: in progress, failed, or taken from the cache."
        )
    return recorder, Chosen(name, tuple(labels), labels=labels)


def _list_runs(keys: Iterable[str]) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.tracking.store import pipeline_run

    stages: dict[str, list[str]] = {}
    for key in keys:
        run = pipeline_run(key)
        stages.setdefault(run, []).append(parts(key).get("stage") or key[len(run) + 1 :].partition("/")[0])
    rows = [(run, str(len(names)), " ".join(sorted({*names} - {""}))) for run, names in sorted(stages.items())]
    print_table(("run", "with results", "stages"), rows, right=("with results",))


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
    taken = set(_names(found))
    own = {key: {"run_id": key, **parts(key)} for key in found}
    return {
        key: {**{name: part for name, part in own[key].items() if name not in taken}, **results}
        for key, results in found.items()
    }


def _names(found: Results) -> list[str]:
    """Return the names of all results."""
    return list(dict.fromkeys(name for results in found.values() for name in results))


def _matching(found: Results, comparisons: Sequence[Condition], recorder: Recorder) -> Results:
    """Return the results of the runs for which all comparisons hold."""
    from torchx_kfp.tracking.store import pipeline_run

    values = _values(found)
    if any(each.name.startswith(_TAG) for each in comparisons):
        tags = recorder.records(map(pipeline_run, found), "tags")
        for key, its in values.items():
            named = {f"{_TAG}{name}": value for name, value in tags[pipeline_run(key)].tags.items()}
            values[key] = {**named, **its}
    known = {name for its in values.values() for name in its} - {*_OWN}
    for each in comparisons if found else ():
        _check_name("--where", f"{each.name} {each.operator} {each.value}", each.name, known)
    return {
        key: results
        for key, results in found.items()
        if all(each.name in values[key] and each.holds(values[key][each.name]) for each in comparisons)
    }


def _sorted(found: Results, sort: str) -> Results:
    values, there = _values(found), _names(found)
    descending = sort.startswith("-") and sort not in there
    name = sort[1:] if descending else sort
    _check_name("--sort", sort, name, there)
    return {key: found[key] for key in in_order(values, name, descending=descending)}


def _print_csv(found: Results) -> None:
    names = _names(found)
    own = [name for name in ("run", "stage", "execution") if name not in names]
    rows = (
        [key, *(parts(key).get(name) for name in own), *(results.get(name) for name in names)]
        for key, results in found.items()
    )
    print_csv(["run_id", *own, *names], rows)


def _in_order(keys: list[str], named: Mapping[str, str]) -> list[str]:
    """Return run ids in the order of the names of their stages, fit[2] before fit[10], if these are known."""
    if not named.keys() >= {*keys}:
        return keys
    pieces = {key: re.split(r"([0-9]+)", named[key]) for key in keys}
    return sorted(keys, key=lambda key: [int(piece) if at % 2 else piece for at, piece in enumerate(pieces[key])])


def _print_table(found: Results, chosen: Chosen, name: str, stages: Mapping[str, str]) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import fits, print_table

    cached = chosen.cached
    # A cached stage is shown in the run that took it from the cache.
    names_here = {key: cached.get(key, key) for key in found}
    runs = {parts(name).get("run") for name in names_here.values()}
    run = runs.pop() if len(runs) == 1 else None
    # Stages have the names of all other tables, if the run itself is known.
    known = stages if run else {}
    label = ("stage" if known.keys() >= {*found} else "stage/execution") if run else "run id"
    above = f"Run {titled(name, run)}" if run else ""
    ids = [
        known.get(key, name[len(run) + 1 :] if run else name) + (" (cached)" if key in cached else "")
        for key, name in names_here.items()
    ]
    if chosen.labels:
        run, label, above, ids = None, "run of", "", [chosen.labels[key] for key in found]
    names = _names(found)
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


def _check_name(option: str, text: str, name: str, there: Collection[str]) -> None:
    """Raise UsageError for a name that no run has: most of them are typos."""
    if name in there or name in _OWN:
        return
    recorded = f"The recorded results are: {listed(sorted(there), 20)}." if there else "No results are recorded."
    if name.startswith(_TAG):
        tags = [other.removeprefix(_TAG) for other in there if other.startswith(_TAG)]
        recorded = f"Their tags: {listed(sorted(tags), 20)}." if tags else "There are no tags yet."
    raise click.UsageError(
        f"{option} {text!r} names {name!r}, which no run here has recorded.{did_you_mean(name, there)} {recorded}"
    )
