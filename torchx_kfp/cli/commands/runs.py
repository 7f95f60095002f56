"""``torchx-kfp runs``: list the runs on this machine, or on a KFP host. ``results`` lists those of a tracker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.printing import print_json, print_message, terminal_width, this_command
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.hosts import Flags, connect, host_options, known_host_words, names_host
from torchx_kfp.errors import ArgumentError, HostSettingsError
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import duration, printable

if TYPE_CHECKING:
    from torchx_kfp.backend.host import Host, RunSummary
    from torchx_kfp.runs.record import RunRecord


@click.command("runs")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=20, help="How many runs of a host.  [default: 20]"
)
@output_dir_option
@format_option("table", "json")
@host_options
def runs_command(limit: int, output_dir: str, form: str, flags: Flags) -> None:
    """List the runs on this machine; with --host, those on a KFP host. The newest is the first.

    The state of a run is running, succeeded, failed, canceled, or interrupted (its process on this machine was killed).
    A run that KFP has not begun is queued.
    """
    if names_host(flags):
        _list_on_host(connect(flags), limit, form)
    else:
        _list_here(output_dir, form)


def _list_on_host(host: Host, limit: int, form: str) -> None:
    from torchx_kfp.cli.display.tables import fits, print_table

    runs = list(host.list(limit=limit))
    columns, cut = ("run", "name", "state", "started", "took"), ("name",)
    if form == "json":
        print_json([_summary_as_json(run) for run in runs])
    elif runs:
        now = time.time()
        rows = [
            (
                run.run_id,
                printable(run.name),
                str(run.state),
                _started(run.created) if run.created else "",
                duration((run.finished if run.state.is_over and run.finished else now) - run.created)
                if run.created
                else "",
            )
            for run in runs
        ]
        if not fits(columns, rows):
            # The beginning of an id is enough for commands, and a name says more than the rest.
            short = _beginnings([run.run_id for run in runs])
            rows = [(beginning, *row[1:]) for beginning, row in zip(short, rows, strict=True)]
        print_table(columns, rows, right=("took",), cut=cut)
    else:
        print_message(f"There are no runs on {host.connection.name}.")


def _beginnings(run_ids: Sequence[str]) -> list[str]:
    """Return the beginnings of ids that tell them apart, of 8 characters or more."""
    most = max(map(len, run_ids))
    length = next(
        (length for length in range(8, most) if len({run_id[:length] for run_id in run_ids}) == len(run_ids)), most
    )
    return [run_id[:length].rstrip("-") for run_id in run_ids]


def _summary_as_json(run: RunSummary) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "name": run.name,
        "pipeline": run.pipeline,
        "state": str(run.state),
        "started": run.created or None,
        "finished": run.finished,
        "link": run.link,
    }


def _list_here(output_dir: str, form: str) -> None:
    from torchx_kfp.runs.history import find_runs, read_run

    hint = _hint()
    try:
        folders = find_runs(output_dir)
    except ArgumentError as error:
        raise ArgumentError(f"{error} {hint}".strip()) from None
    records = []
    for folder in folders:
        try:
            records.append(read_run(folder))
        except (ArgumentError, OSError) as error:
            print_message(f"Left out: {error}")
    for record in records:
        for sentence in record.corrupt:
            print_message(sentence)
    if form == "json":
        print_json([_as_json(record) for record in records])
    elif records:
        _print_table(records)
    else:
        print_message(f"There are no runs in {output_dir!r}.")
    if hint:
        print_message(hint)


def _hint() -> str:
    """Return how to list the runs of the host that is set up; empty if none is."""
    try:
        words = known_host_words()
    except HostSettingsError:
        return ""  # it does not matter for runs on this machine
    return f"To list those on KFP: {this_command('runs', *words)}" if words else ""


def _done(record: RunRecord) -> int:
    return sum(number for state, number in record.run.counts().items() if state.is_success)


def _failed(record: RunRecord) -> int:
    return record.run.counts().get(State.FAILED, 0)


def _print_table(records: list[RunRecord]) -> None:
    from torchx_kfp.cli.display.tables import print_table

    rows = [
        (
            record.run_id,
            str(record.state),
            _started(record.created),
            duration(record.duration),
            f"{_done(record):,}" + (f", {failed:,} failed" if (failed := _failed(record)) else ""),
        )
        for record in records
    ]
    print_table(("run", "state", "started", "took", "done"), rows, right=("took",))


def _started(seconds: float) -> str:
    """Return the local time at which a run began; a terminal has no room for seconds, or for the current year."""
    then = time.localtime(seconds)
    if terminal_width() is None:
        return time.strftime("%Y-%m-%d %H:%M:%S", then)
    return time.strftime("%m-%d %H:%M" if then.tm_year == time.localtime().tm_year else "%Y-%m-%d %H:%M", then)


def _as_json(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.run_id,
        "pipeline": record.pipeline,
        "state": str(record.state),
        "started": record.created,
        "seconds": round(record.duration, 3),
        "done": _done(record),
        "failed": _failed(record),
        "running": record.run.active,
        **({"link": record.link} if record.folder is None else {"folder": str(record.folder.absolute())}),
    }
