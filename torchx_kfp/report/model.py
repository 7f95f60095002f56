"""What a run's folder says of the run, as plain data."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.pipeline.load import load_pipeline
from torchx_kfp.pipeline.names import indices_of, without_indices
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.pipeline.walk import positions
from torchx_kfp.report.inputs import input_names, named
from torchx_kfp.runs.events import (
    Event,
    RunFinished,
    RunStarted,
    StageFinished,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.runs.history import INTERRUPTED, RUNNING, read_run
from torchx_kfp.runs.journal import EVENTS_FILE
from torchx_kfp.runs.result import StageResult, State

#: A state that neither stages nor runs have in ``local``: of a stage that has not started.
WAITING = "waiting"


@dataclass(frozen=True)
class Attempt:
    """One process of a stage. ``end`` is None while it runs, and where the runner was killed before it ended."""

    number: int
    start: float
    end: float | None
    state: str
    reason: str = ""


@dataclass(frozen=True)
class StageView:
    """A stage of the run: in a loop, in one of its iterations.

    ``path`` is the name without the indices of loops, which are in ``indices``; ``waiting_since`` is when the stage's
    inputs were there.
    """

    name: str
    path: str
    indices: tuple[int, ...]
    state: str
    result: StageResult
    attempts: tuple[Attempt, ...] = ()
    waiting_since: float | None = None


@dataclass(frozen=True)
class RunView:
    """A run as its folder shows it at the time ``now``. Times are in seconds since the epoch.

    ``sessions`` are the times in which a runner was at work: one, and another one for each time that the run was
    resumed. ``unreadable`` are sentences about what of its record is damaged.
    """

    run_id: str
    folder: Path
    pipeline: str
    state: str
    now: float
    sessions: tuple[tuple[float, float], ...]
    stages: tuple[StageView, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    not_applied: tuple[str, ...] = ()
    finished: RunFinished | None = None
    spec: Pipeline | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def started(self) -> float:
        return self.sessions[0][0]

    @property
    def duration(self) -> float:
        """Seconds in which a runner was at work."""
        return sum(end - start for start, end in self.sessions)


def read_model(folder: Path, now: float | None = None) -> RunView:
    """The run in this folder, as far as it has come.

    Raises:
        ArgumentError: the folder holds no run, or nothing has happened in it yet.
    """
    record = read_run(folder)
    events = record.events
    first = next((event for event in events if isinstance(event, RunStarted)), None)
    if first is None:
        raise ArgumentError(f"The folder {str(folder)!r} has no event of a run in its {EVENTS_FILE} yet.")
    now = time.time() if now is None else now
    spec = _spec(record.pipeline_file)
    last = events[-1]
    return RunView(
        run_id=first.run_id,
        folder=folder,
        pipeline=first.pipeline,
        state=record.state,
        now=now,
        sessions=_sessions(events, now if record.state == RUNNING else None),
        stages=tuple(_in_order(_named(_stages(events, record.state, folder), spec), spec)),
        arguments=first.arguments or record.arguments,
        options=record.options,
        not_applied=first.not_applied,
        finished=last if isinstance(last, RunFinished) else None,
        spec=spec,
        unreadable=record.corrupt,
    )


def _spec(path: Path) -> Pipeline | None:
    try:
        return load_pipeline(path)
    except PipelineFileError:
        return None


def _sessions(events: Iterable[Event], now: float | None) -> tuple[tuple[float, float], ...]:
    sessions: list[tuple[float, float]] = []
    for event in events:
        if isinstance(event, RunStarted) or not sessions:
            sessions.append((event.time, event.time))
        sessions[-1] = (sessions[-1][0], max(sessions[-1][1], event.time))
    if now is not None:
        sessions[-1] = (sessions[-1][0], max(sessions[-1][1], now))
    return tuple(sessions)


class _Stage:
    """A stage while its events are read."""

    def __init__(self, name: str, task: str) -> None:
        self.name = name
        self.task = task
        self.state = WAITING
        self.waiting_since: float | None = None
        self.attempts: list[Attempt] = []
        self.started: StageStarted | None = None
        self.result: StageResult | None = None

    def end_attempt(self, end: float | None, state: str, reason: str = "") -> None:
        if self.attempts and self.attempts[-1].state == RUNNING:
            self.attempts[-1] = dataclasses.replace(self.attempts[-1], end=end, state=state, reason=reason)

    def view(self, folder: Path, recorded: Iterable[Path]) -> StageView:
        result = self.result or StageResult(
            self.name,
            self.task,
            State.NOT_RUN,  # there is none for a stage that runs: that of the view counts
            attempts=len(self.attempts),
            pod_name=self.started.pod_name if self.started else "",
            log_file=self.started.log_file if self.started else None,
            inputs=self.started.inputs if self.started else {},
            started_at=self.attempts[0].start if self.attempts else None,
        )
        # The folder may have been moved, or come from another machine.
        for before in recorded:
            if result.log_file is not None and result.log_file.is_relative_to(before):
                result = dataclasses.replace(result, log_file=folder / result.log_file.relative_to(before))
                break
        return StageView(
            name=self.name,
            path=without_indices(self.name),
            indices=indices_of(self.name),
            state=self.state,
            result=result,
            attempts=tuple(self.attempts),
            waiting_since=self.waiting_since,
        )


def _stages(events: Iterable[Event], run_state: str, folder: Path) -> Iterator[StageView]:
    stages: dict[str, _Stage] = {}
    recorded: set[Path] = set()
    for event in events:
        if isinstance(event, RunStarted):
            recorded.add(event.folder)
            _leave_unfinished(stages.values(), INTERRUPTED)
        elif isinstance(event, StageWaiting):
            stage = stages.setdefault(event.name, _Stage(event.name, event.task))
            stage.state, stage.waiting_since, stage.result = WAITING, event.time, None
        elif isinstance(event, StageStarted):
            stage = stages.setdefault(event.name, _Stage(event.name, event.task))
            stage.state, stage.started, stage.result = RUNNING, event, None
            stage.attempts.append(Attempt(len(stage.attempts) + 1, event.time, None, RUNNING))
        elif isinstance(event, StageRetried):
            stage = stages.setdefault(event.name, _Stage(event.name, event.name))
            stage.end_attempt(event.time, str(State.FAILED), event.reason)
            stage.state = WAITING
        elif isinstance(event, StageFinished):
            result = event.result
            stage = stages.setdefault(result.name, _Stage(result.name, result.task))
            stage.end_attempt(event.time, str(result.state), result.reason)
            stage.state, stage.result = str(result.state), result
    if run_state != RUNNING:
        _leave_unfinished(stages.values(), str(State.CANCELED) if run_state == State.CANCELED else INTERRUPTED)
    for stage in stages.values():
        yield stage.view(folder, recorded)


def _leave_unfinished(stages: Iterable[_Stage], state: str) -> None:
    for stage in stages:
        stage.end_attempt(None, state)
        if stage.state in (RUNNING, WAITING):
            stage.state = state if stage.attempts else str(State.NOT_RUN)


def _named(stages: Iterable[StageView], spec: Pipeline | None) -> Iterator[StageView]:
    """The stages with their inputs under the pipeline's names."""
    names = input_names(spec) if spec else {}
    for stage in stages:
        its = named(stage.result.inputs, names.get(stage.path, {}))
        yield dataclasses.replace(stage, result=dataclasses.replace(stage.result, inputs=its))


def _in_order(stages: Iterable[StageView], spec: Pipeline | None) -> list[StageView]:
    """In the pipeline's order, those of a loop in its order; as they began where the pipeline is not known."""
    views = list(stages)
    places = positions(spec) if spec else {}
    for view in views:
        places.setdefault(view.path, len(places))
    return sorted(views, key=lambda view: (places[view.path], view.indices))
