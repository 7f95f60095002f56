"""Describe a run as a whole: ``torchx-kfp show RUN``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.text import duration, moment
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, show_value
from torchx_kfp.entrypoints.cli.flags import Flags
from torchx_kfp.entrypoints.cli.resolver import base_of
from torchx_kfp.entrypoints.cli.selection import open_recorder
from torchx_kfp.errors import ArgumentError, TrackerError
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.execution.runs.source import RunRecord
    from torchx_kfp.tracking.records import Record


def describe_run(record: RunRecord, flags: Flags, *, as_json: bool) -> None:
    """Print a run's state, parameters, tags, code and what it resumes, and the table of its stages.

    Args:
        record: the run.
        flags: the options of the host.
        as_json: whether to print one JSON object instead.
    """
    base, recorded = _recorded(record, flags)
    resumes = [record.resumes] if record.resumes else list(recorded.resumes if recorded else ())
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
        own = {"tracker_base": base or None, "arguments": record.arguments, "tags": recorded.tags if recorded else {}}
        code = [asdict(each) for each in recorded.code] if recorded else []
        print_json({**run_as_json(record), "resumes": resumes, **own, "code": code, "stages": stages})
        return
    _print(record, base, recorded, resumes)


def _recorded(record: RunRecord, flags: Flags) -> tuple[str, Record | None]:
    """Return the run's tracker base and what is recorded there about the run as a whole, if it has one."""
    try:
        base = base_of(record, flags)
    except ArgumentError:  # it has none, or several
        return "", None
    except TrackerError as error:
        print_message(str(error))
        return "", None
    try:
        return base, open_recorder(base).record(record.run_id)
    except TrackerError as error:
        print_message(f"Tags and code are missing: {error}")
        return base, None


def _print(record: RunRecord, base: str, recorded: Record | None, resumes: list[str]) -> None:
    from torchx_kfp.entrypoints.cli.display.summary import print_stages
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.tracking.recorder import describe_code

    facts = {
        "name": record.name,
        "pipeline": record.pipeline,
        "state": str(record.state),
        "started": moment(record.created),
        "took": duration(record.duration),
        "tracker base": base,
        "folder": "" if record.folder is None else str(record.folder),
        "page": record.link,
    }
    rows = [("run", name, value) for name, value in facts.items() if value]
    said = {TRACKER_BASE_PARAMETER} if base else set()
    if recorded is not None and recorded.code:
        said.add(WORKSPACE_PARAMETER)
    rows += [("parameter", name, show_value(value)) for name, value in record.arguments.items() if name not in said]
    if recorded is not None:
        rows += [("tag", name, value) for name, value in recorded.tags.items()]
        rows += [("code", name, value) for code in recorded.code for name, value in describe_code(code).items()]
    rows += [("resumes", "", run) for run in resumes]
    print_table(("what", "name", "value"), rows, above=f"Run {record.run_id}")
    print_text("")
    print_stages(record.run.result().stages)


def done_and_failed(record: RunRecord) -> tuple[int, int]:
    """Return the numbers of stages that have succeeded, and that have failed."""
    counts = record.run.counts()
    return sum(number for state, number in counts.items() if state.is_success), counts.get(State.FAILED, 0)


def run_as_json(record: RunRecord) -> dict[str, Any]:
    """Return a run for programs."""
    done, failed = done_and_failed(record)
    return {
        "run": record.run_id,
        "pipeline": record.pipeline,
        "state": str(record.state),
        "started": record.created,
        "seconds": round(record.duration, 3),
        "done": done,
        "failed": failed,
        "running": record.run.active,
        "resumes": record.resumes or None,
        **({"link": record.link} if record.folder is None else {"folder": str(record.folder.absolute())}),
    }
