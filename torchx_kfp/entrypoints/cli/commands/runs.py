"""``torchx-kfp runs``: list local runs and those on a KFP host. ``results`` lists the runs of a tracker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import UUID, counted, duration
from torchx_kfp.entrypoints.cli.display.printing import Column, print_message, print_rows, terminal_width
from torchx_kfp.entrypoints.cli.flags import json_option, refuse_empty, seconds
from torchx_kfp.entrypoints.cli.lookup import Lookup, connect, finds_runs, lists_host, names_host
from torchx_kfp.errors import ArgumentError, HostError
from torchx_kfp.execution.runs.history import find_runs, read_run
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.vocabulary import RUN_STATES, State

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunFilter, RunSummary

#: The keys of a run for programs, in order, and an unknown run.
_KEYS = "run name pipeline state started seconds done failed running cannot_start link folder"
UNKNOWN: Mapping[str, Any] = dict.fromkeys(_KEYS.split())
#: The characters of a host's run id on a terminal: two groups.
_BEGINNING = 13


@click.command("runs")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(0),
    default=20,
    help="The maximum number of runs to list; 0 for all.  [default: 20]",
)
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in RUN_STATES]),
    multiple=True,
    help="Only runs in this state. May be given several times.",
)
@click.option("--name", metavar="TEXT", callback=refuse_empty, help="Only runs with this text in their names.")
@click.option(
    "--newer-than", metavar="AGE", type=seconds, help="Only runs that started within this time, such as 12h or 7d."
)
@json_option
@finds_runs()
def runs_command(
    limit: int,
    states: tuple[str, ...],
    name: str | None,
    newer_than: float | None,
    as_json: bool,
    lookup: Lookup,
) -> None:
    """List local runs and those on the configured KFP host, newest first.

    With --host, only the runs on that host are listed, and with --output-dir, only those in that directory. A run is
    queued (KFP has not started it), running, succeeded, failed, canceled, or interrupted (its local process was
    killed). A host that does not answer within some seconds is omitted with a message; without local runs, that is an
    error.

    Experiments and archived runs of a host are in KFP's UI, and in `kfp run list`.
    """
    from torchx_kfp.execution.host.host_runs import RunFilter

    chosen = tuple(State(state) for state in states)
    where = RunFilter(chosen, name or "", newer_than=newer_than)
    most, now, is_on_host = limit or None, time.time(), names_host(lookup.flags)

    def on_host() -> tuple[str, list[dict[str, Any]]]:
        host = connect(lookup.flags, is_patient=is_on_host)
        return f"on {host.connection.name}", [summary_as_json(run, now) for run in host.list(where, limit=most)]

    def here() -> tuple[str, list[dict[str, Any]]]:
        return f"in {lookup.output_dir!r}", _runs_here(lookup.output_dir, where, most, now)

    asks_host = is_on_host or (chosen != (State.INTERRUPTED,) and lists_host(lookup.flags))
    rows: list[dict[str, Any]] = []
    places: list[str] = []
    failures: list[HostError | ArgumentError] = []
    for read in [*([on_host] if asks_host else []), *([] if is_on_host else [here])]:
        try:
            place, found = read()
            places.append(place)
            rows += found
        except (HostError, ArgumentError) as error:
            failures.append(error)
    missing = [error for error in failures if isinstance(error, HostError)]
    if failures and not rows and (missing or not places):
        raise failures[0]
    for failure in missing:
        print_message(f"The runs on the KFP host are missing: {failure}")
    rows = sorted(rows, key=lambda row: row["started"] or 0.0, reverse=True)[:most]
    if not rows and not as_json:
        none = "No run {} matches." if where != RunFilter() else "There are no runs {}."
        print_message("\n".join([*map(none.format, places), *map(str, failures)]))
        return
    print_rows(rows, RUN_COLUMNS, as_json=as_json)


def _runs_here(output_dir: str, where: RunFilter, most: int | None, now: float) -> list[dict[str, Any]]:
    """Return the local runs that a filter selects; report unreadable ones and whether older ones exist.

    Raises:
        ArgumentError: there is no such directory.
    """
    folders = find_runs(output_dir)
    rows: list[dict[str, Any]] = []
    for read, folder in enumerate(folders):
        if most is not None and len(rows) == most:
            print_message(f"{counted(len(folders) - read, 'older run')} in {output_dir}: --limit 0 lists all runs.")
            break
        try:
            record = read_run(folder)
        except (ArgumentError, OSError) as error:
            print_message(f"Left out: {error}")
            continue
        for sentence in record.corrupt:
            print_message(sentence)
        if where.selects(record.run.state, record.run_id, now - record.created):
            rows.append(run_as_json(record))
    return rows


def run_as_json(record: RunRecord) -> dict[str, Any]:
    """Return a run for JSON; unknown values are null."""
    counts = record.run.counts()
    return {
        **UNKNOWN,
        "run": record.run_id,
        "name": record.name or None,
        "pipeline": record.pipeline,
        "state": str(record.run.state),
        "started": record.created,
        "seconds": round(record.duration, 3),
        "done": sum(number for state, number in counts.items() if state.is_success),
        "failed": counts.get(State.FAILED, 0),
        "running": record.run.active,
        "cannot_start": {stage.name: stage.reason for stage in record.run.stages if stage.is_stuck},
        "link": record.link or None,
        "folder": None if record.folder is None else str(record.folder.absolute()),
    }


def summary_as_json(run: RunSummary, now: float) -> dict[str, Any]:
    """Return a host's run with the same keys."""
    end = run.finished if run.state.is_over and run.finished else now
    return {
        **UNKNOWN,
        "run": run.run_id,
        "name": run.name,
        "pipeline": run.pipeline,
        "state": str(run.state),
        "started": run.created or None,
        "seconds": round(end - run.created, 3) if run.created else None,
        "link": run.link or None,
    }


def _run(row: Mapping[str, Any]) -> str:
    """Return a run's id; on a terminal, only the beginning of a host's id, which commands accept."""
    run = str(row["run"])
    return run[:_BEGINNING] if UUID.fullmatch(run) and terminal_width() is not None else run


def _done(row: Mapping[str, Any]) -> str | None:
    """Return the numbers of succeeded and failed stages."""
    if row["done"] is None:
        return None
    return f"{row['done']:,}" + (f", {row['failed']:,} failed" if row["failed"] else "")


def _started(seconds: float) -> str:
    """Return the local start time of a run; on a terminal, without seconds and the current year."""
    then = time.localtime(seconds)
    if terminal_width() is None:
        return time.strftime("%Y-%m-%d %H:%M:%S", then)
    return time.strftime("%m-%d %H:%M" if then.tm_year == time.localtime().tm_year else "%Y-%m-%d %H:%M", then)


#: The columns of a table of runs.
RUN_COLUMNS = (
    Column("run", _run),
    Column("name"),
    Column("state"),
    Column("started", lambda row: row["started"] and _started(row["started"])),
    Column("took", lambda row: None if row["seconds"] is None else duration(row["seconds"]), right=True),
    Column("done", _done),
)
