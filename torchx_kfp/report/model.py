"""Read a run's folder into plain data: the run, its stages, and which of them read which."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.pipeline.load import load_pipeline
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.report.input_names import Names, input_names, named
from torchx_kfp.runs.events import RunFinished
from torchx_kfp.runs.history import read_run
from torchx_kfp.runs.journal import PIPELINE_FILE
from torchx_kfp.runs.record import RunRecord
from torchx_kfp.runs.result import StageResult
from torchx_kfp.runs.state import Attempt, Session, StageState, outline
from torchx_kfp.runs.vocabulary import State


@dataclass(frozen=True)
class StageView:
    """One stage of the run; in a loop, one iteration.

    ``path`` is the name without the indices of loops, which are in ``indices``. ``queued_at`` is the time at which the
    stage's inputs were known. The inputs of ``result`` have the pipeline's names.
    """

    name: str
    path: str
    indices: tuple[int, ...]
    state: State
    result: StageResult
    attempts: Sequence[Attempt] = ()
    queued_at: float | None = None


@dataclass(frozen=True)
class RunView:
    """A run as its record shows it at the time ``now``. Times are in seconds since the epoch.

    A run on this machine has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI. ``sessions`` are
    the periods in which a runner worked on the run; each resume begins another one. ``unreadable`` are sentences about
    damaged parts of the record, and ``named`` the tracker bases that the user has named.
    """

    run_id: str
    folder: Path | None
    link: str
    pipeline: str
    state: State
    now: float
    sessions: Sequence[Session]
    duration: float
    stages: tuple[StageView, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    not_applied: tuple[str, ...] = ()
    finished: RunFinished | None = None
    spec: Pipeline | None = None
    unreadable: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def started(self) -> float:
        """The time at which the run was first started."""
        return self.sessions[0].start


@dataclass(frozen=True)
class Read:
    """A read: the input ``name`` of ``stage`` is the run id of ``source``, which is None if no stage has that id."""

    stage: StageView
    name: str
    run_id: str
    source: StageView | None


def find_reads(stages: Iterable[StageView], run_id: str) -> list[Read]:
    """Return all reads between stages of the run, in order.

    An input counts as a run id if its value is the run id of another stage, or has the form of one of this run. The
    latter belongs to a stage that has been repeated since.
    """
    stages = list(stages)
    known = {stage.result.run_id: stage for stage in reversed(stages) if stage.result.run_id}
    reads = []
    for stage in stages:
        for name, value in stage.result.inputs.items():
            for candidate in dict.fromkeys(_texts(value)):
                source = known.get(candidate)
                if source is not stage and (source is not None or _is_run_of(candidate, run_id)):
                    reads.append(Read(stage, name, candidate, source))
    return reads


def by_task(reads: Iterable[Read]) -> Mapping[tuple[str, str], list[Read]]:
    """Group the reads by task, all iterations of a loop together: ``(path, source's path or run id)``."""
    grouped: dict[tuple[str, str], list[Read]] = {}
    for read in reads:
        grouped.setdefault((read.stage.path, read.source.path if read.source else read.run_id), []).append(read)
    return grouped


def read_model(folder: Path, now: float | None = None) -> RunView:
    """Return the run in this folder, as far as it has come.

    Raises:
        ArgumentError: the folder is not that of a run, or the run has no event yet.
    """
    spec = _spec(partial(load_pipeline, folder / PIPELINE_FILE))
    return view(read_run(folder, outline(spec) if spec is not None else None), now)


def view(record: RunRecord, now: float | None = None) -> RunView:
    """Return the recorded run, as far as it has come. ``now`` is the current time.

    Raises:
        ArgumentError: the run has no event yet.
    """
    run, spec = record.run, _spec(record.load)
    if run.first is None:
        raise ArgumentError(f"The run {record.run_id} has not started yet: nothing has happened in it.")
    now = time.time() if now is None else now
    sessions = list(run.sessions)
    if run.state is State.RUNNING:
        sessions[-1] = Session(sessions[-1].start, max(now, sessions[-1].end))
    names = input_names(spec) if spec is not None else {}
    return RunView(
        run_id=run.run_id,
        folder=record.folder,
        link=record.link,
        pipeline=run.first.pipeline,
        state=run.state,
        now=now,
        sessions=tuple(sessions),
        duration=run.duration(now),
        stages=tuple(_view(stage, names.get(stage.path, {})) for stage in run.stages),
        arguments=run.first.arguments or record.arguments,
        options=record.options,
        not_applied=run.first.not_applied,
        finished=run.finished,
        spec=spec,
        unreadable=record.corrupt,
    )


def _view(stage: StageState, names: Names) -> StageView:
    result = stage.result
    return StageView(
        name=stage.name,
        path=stage.path,
        indices=stage.indices,
        state=stage.state,
        result=dataclasses.replace(result, inputs=named(result.inputs, names)),
        attempts=stage.attempts,
        queued_at=stage.queued_at,
    )


def _spec(load: Callable[[], Pipeline]) -> Pipeline | None:
    try:
        return load()
    except PipelineFileError:
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


def _is_run_of(text: str, run_id: str) -> bool:
    return text.startswith(f"{run_id}/") and text.count("/") == 2
