"""``torchx-kfp results``: show the recorded results of stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from torchx_kfp.common.text import counted, did_you_mean, listed, printable
from torchx_kfp.entrypoints.cli.conditions import Comparison, parse_comparison, select
from torchx_kfp.entrypoints.cli.display.printing import (
    Column,
    is_number,
    print_csv,
    print_message,
    print_rows,
    show_value,
    without_run,
)
from torchx_kfp.entrypoints.cli.flags import csv_option, json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, usual_base
from torchx_kfp.entrypoints.cli.recorded import (
    RunRecords,
    Selection,
    last_attempts,
    nothing,
    open_record_tracker,
    parts,
    titled,
)
from torchx_kfp.errors import NotRecordedError
from torchx_kfp.execution.pipeline.walk import task_name
from torchx_kfp.tracking.record_tracker import RecordTracker, is_replay
from torchx_kfp.tracking.store import pipeline_run

#: The id of an execution, its parts, which are None for another key, and its results: what ``--json`` prints.
Row = dict[str, Any]
#: The parts of the id of an execution.
_OWN = ("run", "stage", "execution")


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
    callback=lambda _, __, texts: list(map(parse_comparison, texts)),
    help="Show only stages for which this holds. May be given several times.",
)
@json_option
@csv_option
@finds_runs(recorded=True)
def results_command(
    run: str | None,
    stages: tuple[str, ...],
    sorts: tuple[str, ...],
    comparisons: list[Comparison],
    as_json: bool,
    as_csv: bool,
    lookup: Lookup,
) -> None:
    """Show the results that the stages of RUN have recorded.

    Without RUN, the command lists the runs that have recorded results under the tracker base: that of --tracker-base or
    of the settings, or else that of the newest local run. Cached stages are shown with the results that they took
    from the cache.

    \b
    torchx-kfp results latest
    torchx-kfp results --tracker-base s3://bucket/results --stage train \\
        --where 'accuracy > 0.9' --sort -accuracy

    COMPARISON is NAME OPERATOR VALUE: 'loss < 0.1', 'model == resnet'. NAME is a result, or run, stage, execution or
    execution_id. The operators are == and !=, and for numbers < <= >= >. A run that lacks
    NAME does not match; for other conditions, use --json, or to_frame() of a tracker. The run of
    cached stages is RUN, or else the run that recorded them.

    JSON is a list of executions: execution_id, its parts run, stage and execution, and results. CSV has these columns,
    with one for each result.
    """
    located: RunRecords | None = None
    if run is not None:
        [located] = lookup.locate(run)
        tracker, chosen = located.tracker, located.choose(located.recorded(results=True))
    else:
        base = lookup.base or usual_base(lookup.output_dir)
        if base is None:
            raise click.UsageError("Give a RUN, such as latest, or --tracker-base for all runs there.")
        tracker = open_record_tracker(base)
        chosen = _all(tracker)
        if any(name == "run" for name, _, _ in comparisons):
            print_message("Without RUN, cached stages are listed under the run that recorded them.")
        if not (as_json or as_csv or stages or sorts or comparisons):
            _list_runs(chosen.keys)
            return
    named = located.stages if located else {}
    rows = _select(_read(tracker, chosen, stages), comparisons, sorts, chosen)
    if located is not None and not chosen.keys:
        print_message(located.nothing_recorded(chosen.name))
    elif not rows:
        print_message(f"None of {counted(len(chosen.keys), 'execution')} matches.")
    if as_csv:
        _print_csv(rows)
    else:
        _print_rows(rows, chosen, located.name.partition("/")[0] if located else "", named, as_json=as_json)


def _read(tracker: RecordTracker, chosen: Selection, stages: Sequence[str]) -> list[Row]:
    """Return a row for each execution that has results, of these stages or, if there are none, of all."""
    found = {key: parts(key) for key in chosen.keys}
    there = sorted({its["stage"] for its in found.values() if its})
    asked: set[str] = set()
    for stage in stages:
        same = {stage}.intersection(there) or {each for each in there if task_name(each) == task_name(stage)}
        asked |= same
        if not same:
            raise click.UsageError(
                f"--stage {stage!r} has no results.{did_you_mean(stage, there)} Stages: {listed(there, 20) or 'none'}."
            )
    wanted = [key for key, its in found.items() if not stages or its.get("stage") in asked]
    return [
        {"execution_id": key, **dict.fromkeys(_OWN), **found[key], "results": results}
        for key, results in tracker.get_many(wanted).items()
    ]


def _all(tracker: RecordTracker) -> Selection:
    """Return all executions under a tracker base, without replays."""
    known = tracker.keys()
    if not known:
        raise nothing(tracker.tracker_base)
    if replays := {key for key in known if is_replay(key)}:
        runs = sorted({pipeline_run(key) for key in replays})
        names = printable(listed(runs))
        if replays.issuperset(known):
            raise NotRecordedError(
                f"There are only replays under {tracker.tracker_base!r}: {names}. Name one to see its results."
            )
        which = "it" if len(runs) == 1 else "one"
        print_message(f"Left out: {counted(len(runs), 'replay')}. Name {which} to see its results: {names}.")
    keys = [key for key in known if key not in replays]
    return Selection("", tuple(last_attempts(tracker, keys, tracker.tracker_base)))


def _list_runs(keys: Iterable[str]) -> None:
    stages: dict[str, list[str]] = {}
    for key in keys:
        run = pipeline_run(key)
        stages.setdefault(run, []).append(parts(key).get("stage") or key[len(run) + 1 :].partition("/")[0])
    rows = [{"run": run, "stages": names} for run, names in sorted(stages.items())]
    columns = (
        Column("run"),
        Column("with results", lambda row: len(row["stages"]), right=True),
        Column("stages", lambda row: " ".join(sorted({*row["stages"]} - {""}))),
    )
    print_rows(rows, columns)


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of all results."""
    return list(dict.fromkeys(name for row in rows for name in row["results"]))


def _select(rows: Sequence[Row], where: Sequence[Comparison], sorts: Sequence[str], chosen: Selection) -> list[Row]:
    """Return the rows for which all comparisons hold, sorted; names are results and parts of execution ids."""
    runs = [chosen.run_of(row["execution_id"]) for row in rows]
    values = {}
    for row, run in zip(rows, runs, strict=True):
        own = {name: run if name == "run" else row[name] for name in ("execution_id", *_OWN) if row[name]}
        values[row["execution_id"]] = {name: [value] for name, value in {**own, **row["results"]}.items()}
    row_of = {row["execution_id"]: row for row in rows}
    return [row_of[key] for key in select(values, where, sorts, ("execution_id", *_OWN))]


def _print_csv(rows: Sequence[Row]) -> None:
    names = _names(rows)
    own = [name for name in _OWN if name not in names]
    print_csv(
        ["execution_id", *own, *names],
        ([row["execution_id"], *map(row.get, own), *map(row["results"].get, names)] for row in rows),
    )


def _print_rows(rows: Sequence[Row], chosen: Selection, name: str, named: Mapping[str, str], *, as_json: bool) -> None:
    keys = [row["execution_id"] for row in rows]
    runs = {row["run"] and chosen.run_of(row["execution_id"]) for row in rows}
    run = runs.pop() if len(runs) == 1 else None
    heading, labels = "execution", dict(zip(keys, keys, strict=True))
    if run:
        # If the run itself is known, stages have their names in other tables.
        heading = "stage" if named.keys() >= {*keys} else "stage/execution"
        labels = {
            key: named.get(key, key.partition("/")[2]) + (" (cached)" if key in chosen.cached else "") for key in keys
        }

    def column(result: str) -> Column:
        values = [row["results"][result] for row in rows if result in row["results"]]

        def cell(row: Mapping[str, Any]) -> str:
            found = row["results"]
            return without_run(show_value(found[result]), run) if result in found else ""

        return Column(result, cell, right=all(map(is_number, values)))

    names = _names(rows)
    # A result may be named like the first column.
    first = Column("" if heading in names else heading, lambda row: labels[row["execution_id"]])
    print_rows(rows, [first, *map(column, names)], as_json=as_json, above=f"Run {titled(name, run)}" if run else "")
