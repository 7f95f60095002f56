"""Describe runs as a whole: ``torchx-kfp show RUN``, and the rows and columns of ``torchx-kfp runs``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.text import duration, moment, without_passwords
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER
from torchx_kfp.entrypoints.cli.display.printing import (
    print_json,
    print_message,
    print_text,
    show_value,
    terminal_width,
)
from torchx_kfp.entrypoints.cli.lookup import Lookup
from torchx_kfp.entrypoints.cli.recorded import open_recorder
from torchx_kfp.errors import ArgumentError, TrackerError
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.display.tables import Column
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.execution.runs.record import RunRecord
    from torchx_kfp.tracking.records import Record


def describe_run(record: RunRecord, lookup: Lookup, *, as_json: bool) -> None:
    """Print a run's state, parameters, tags, code and what it resumes, and the table of its stages.

    Args:
        record: the run.
        lookup: where runs are.
        as_json: whether to print one JSON object instead.
    """
    from torchx_kfp.entrypoints.cli.display.summary import print_stages
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.tracking.recorder import describe_code

    base, recorded = _recorded(record, lookup)
    resumes = [record.resumes] if record.resumes else list(recorded.resumes)
    result = record.run.result()
    for sentence in record.corrupt:
        print_message(sentence)
    if as_json:
        stages = [
            {
                "stage": stage.name,
                "state": str(stage.state),
                "seconds": round(stage.duration, 3),
                "run_id": stage.run_id,
                "inputs": stage.inputs,
                "results": stage.measures,
                "reason": stage.reason,
            }
            for stage in result.stages
        ]
        own = {"resumes": resumes, "tracker_base": base or None, "arguments": record.arguments, "tags": recorded.tags}
        print_json({**run_as_json(record), **own, "code": [asdict(it) for it in recorded.code], "stages": stages})
        return
    facts = {
        "name": record.name,
        "pipeline": record.pipeline,
        "state": str(record.run.state),
        "started": moment(record.created),
        "took": duration(record.duration),
        "tracker base": without_passwords(base),
        "folder": "" if record.folder is None else str(record.folder),
        "page": record.link,
    }
    said = {TRACKER_BASE_PARAMETER} if base else set()
    if recorded.code:
        said.add(WORKSPACE_PARAMETER)
    rows = [
        *(("run", name, value) for name, value in facts.items() if value),
        *(("parameter", name, show_value(value)) for name, value in record.arguments.items() if name not in said),
        *(("tag", name, value) for name, value in recorded.tags.items()),
        *(("code", name, value) for code in recorded.code for name, value in describe_code(code).items()),
        *(("resumes", "", run) for run in resumes),
    ]
    print_table(("what", "name", "value"), rows, above=f"Run {record.run_id}")
    print_text("")
    print_stages(result.stages)


def _recorded(record: RunRecord, lookup: Lookup) -> tuple[str, Record]:
    """Return the run's tracker base, if it has one, and what is recorded there about the run as a whole."""
    from torchx_kfp.tracking.records import Record

    base = ""
    try:
        base = lookup.base_of(record)
        return base, open_recorder(base).record(record.run_id)
    except ArgumentError:  # it has none, or several
        pass
    except TrackerError as error:
        print_message(f"Tags and code are missing: {error}")
    return base, Record()


def run_as_json(record: RunRecord) -> dict[str, Any]:
    """Return a run for programs: the keys are those of all runs, and what is not known of one is null."""
    counts = record.run.counts()
    return {
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
        "schedule": None,
        "scheduled": None,
        "link": record.link or None,
        "folder": None if record.folder is None else str(record.folder.absolute()),
    }


def summary_as_json(run: RunSummary, now: float) -> dict[str, Any]:
    """Return a run in a host's list with the same keys."""
    end = run.finished if run.state.is_over and run.finished else now
    return {
        "run": run.run_id,
        "name": run.name,
        "pipeline": run.pipeline,
        "state": str(run.state),
        "started": run.created or None,
        "seconds": round(end - run.created, 3) if run.created else None,
        "done": None,
        "failed": None,
        "running": None,
        "cannot_start": None,
        "resumes": run.resumes or None,
        "schedule": run.schedule_id or None,
        "scheduled": run.scheduled or None,
        "link": run.link or None,
        "folder": None,
    }


def run_columns() -> tuple[Column, ...]:
    """Return the columns of a table of runs."""
    from torchx_kfp.entrypoints.cli.display.tables import Column

    return (
        Column("run"),
        Column("name", cut=True),
        Column("state"),
        Column("started", lambda row: row["started"] and _started(row["started"])),
        Column("took", lambda row: None if row["seconds"] is None else duration(row["seconds"]), right=True),
        Column("done", _done),
        Column("resumes"),
    )


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
