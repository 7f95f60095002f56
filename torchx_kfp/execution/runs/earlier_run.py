"""Read what is left of a run that is to be resumed: how its stages ended, and whether their results are still there."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

from torchx_kfp.common.text import shown
from torchx_kfp.errors import ArgumentError, PipelineFileError, TrackerError
from torchx_kfp.execution.runs.history import find_run, read_run
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.resume import EarlierRun, missing_files
from torchx_kfp.execution.runs.resume_record import continuation_of
from torchx_kfp.execution.runs.source import RunRecord, why_not_read
from torchx_kfp.tracking.recorder import Recorder


@runtime_checkable
class HasEarlierRun(Protocol):
    """A run that says itself what is known of it, as one on a host."""

    def earlier(self) -> EarlierRun:
        """Return what is known of the run."""


#: A run that can be resumed: its id, its folder, its result, or a run on a host.
Resumable: TypeAlias = Union[HasEarlierRun, RunResult, str, "os.PathLike[str]"]


def read_earlier(run: Resumable, output_dir: str | os.PathLike[str]) -> EarlierRun:
    """Return what is known of a run that is to be resumed: see ``plan_run``."""
    if isinstance(run, RunResult):
        if run.folder is None:
            raise ArgumentError(
                f"The run {run.run_id} is on a KFP host: pass the run itself, torchx_kfp.host.attach({run.run_id!r}), "
                "not its result."
            )
        run = run.folder
    if isinstance(run, (str, os.PathLike)):
        return earlier_run(read_run(find_run(output_dir, os.fspath(run))))
    if not isinstance(run, HasEarlierRun):
        raise ArgumentError(f"resume must be a run, such as its id, but is {shown(run)}.")
    return run.earlier()


def earlier_run(
    record: RunRecord,
    *,
    named: Collection[str] = (),
    ends: Mapping[str, StageResult] | None = None,
    values: Mapping[tuple[str, str], Any] | None = None,
) -> EarlierRun:
    """Return what is known of a run that is to be resumed.

    Args:
        record: the run.
        named: the tracker bases that the user has named.
        ends: how its stages ended, if more is known of that than the record has.
        values: outputs that its stages were given: see ``EarlierRun``.

    Raises:
        ArgumentError: the run's pipeline is not recorded.
    """
    try:
        pipeline = record.load()
    except PipelineFileError as error:
        raise ArgumentError(f"The run {record.run_id} cannot be resumed: {error}") from None
    continuation = continuation_of(pipeline.description)
    found = {end.name: end for end in continuation.ends} if continuation else {}
    found |= record.run.ends if ends is None else ends
    gone: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    tracked: dict[str, list[StageResult]] = {}
    for end in found.values():
        if not end.state.is_success:
            continue
        if why := missing_files(end) if record.folder is not None else "":
            gone[end.name] = why
        # On a host, a stage whose results are not found may have had none.
        if end.tracker_base and (end.results or record.folder is None):
            tracked.setdefault(end.tracker_base, []).append(end)
    for base, stages in tracked.items():
        why = why_not_read(base, named, ran_here=record.folder is not None)
        there: dict[str, list[str]] = {}
        removed: set[str] = set()
        try:
            if not why:
                recorder = Recorder.open(record.absolute_base(base))
                there = {run: recorder.keys(run) for run in {_run_of(end) for end in stages} if run}
                removed = {run for run, keys in there.items() if not (keys or _has_records(recorder, run))}
        except TrackerError as error:
            why = str(error)
        if why:
            unreadable[base] = why.rstrip(".")
            continue
        for end in stages:
            run = _run_of(end)
            # gc removes whole runs: if anything else of it is there, a stage without results has recorded nothing.
            if end.run_id not in there.get(run, []) and (end.results or run in removed or not run):
                gone[end.name] = f"no results of it are under {record.absolute_base(base)!r} (any more)"
    return EarlierRun(record, pipeline, found, values or {}, gone, unreadable)


def _has_records(recorder: Recorder, run: str) -> bool:
    """Tell whether a tracker base has anything of a pipeline run besides results."""
    return bool(recorder.records([run]))


def _run_of(end: StageResult) -> str:
    return (end.run_id or "").partition("/")[0]
