"""Runs as rows: of ``torchx-kfp runs``, of the page of runs, and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.text import UUID, duration
from torchx_kfp.entrypoints.cli.display.printing import terminal_width
from torchx_kfp.entrypoints.cli.display.tables import Column
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
#: The keys of a run for programs, in their order.
_KEYS = (
    "run name pipeline state started seconds done failed running cannot_start resumes schedule scheduled link folder"
)
UNKNOWN: Mapping[str, Any] = dict.fromkeys(_KEYS.split())
#: The length of the beginning of a host's run id that a terminal shows: two of its groups.
_BEGINNING = 13


def run_as_json(record: RunRecord) -> dict[str, Any]:
    """Return a run for programs: the keys are those of all runs, and what is not known of one is null."""
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
        "resumes": record.resumes or None,
        "link": record.link or None,
        "folder": None if record.folder is None else str(record.folder.absolute()),
    }


def summary_as_json(run: RunSummary, now: float) -> dict[str, Any]:
    """Return a run in a host's list with the same keys."""
    end = run.finished if run.state.is_over and run.finished else now
    return {
        **UNKNOWN,
        "run": run.run_id,
        "name": run.name,
        "pipeline": run.pipeline,
        "state": str(run.state),
        "started": run.created or None,
        "seconds": round(end - run.created, 3) if run.created else None,
        "resumes": run.resumes or None,
        "schedule": run.schedule_id or None,
        "scheduled": run.scheduled or None,
        "link": run.link or None,
    }


def _run(row: Mapping[str, Any]) -> str:
    """Return a run's id; on a terminal, the beginning of a host's, which commands take: the name says more."""
    run = str(row["run"])
    return run[:_BEGINNING] if UUID.fullmatch(run) and terminal_width() is not None else run


def _done(row: Mapping[str, Any]) -> str | None:
    """Return the numbers of stages that have succeeded, and that have failed."""
    if row["done"] is None:
        return None
    return f"{row['done']:,}" + (f", {row['failed']:,} failed" if row["failed"] else "")


def _started(seconds: float) -> str:
    """Return the local time at which a run began; a terminal has no room for seconds, or for the current year."""
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
    Column("resumes"),
)
