"""How far a run is: a state machine over its events. It draws nothing, and knows no time but that of the events."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchx_kfp.pipeline.names import indices_of, without_indices
from torchx_kfp.runs.events import (
    Event,
    LoopStarted,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.runs.result import StageResult, State

#: Last lines of a running stage that are kept.
LINES = 5


class Phase(enum.Enum):
    """Where a stage is."""

    FAILED = "failed"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    CACHED = "cached"
    CANCELED = "canceled"
    NOT_RUN = "not run"
    SKIPPED = "skipped"
    #: Its inputs are known, and it waits for its turn.
    QUEUED = "queued"
    #: It waits for other stages.
    WAITING = "waiting"

    @property
    def is_active(self) -> bool:
        """Whether there is something to see of it."""
        return self in (Phase.RUNNING, Phase.RETRYING)


_ENDS = {
    State.SUCCEEDED: Phase.DONE,
    State.CACHED: Phase.CACHED,
    State.FAILED: Phase.FAILED,
    State.SKIPPED: Phase.SKIPPED,
    State.NOT_RUN: Phase.NOT_RUN,
    State.CANCELED: Phase.CANCELED,
}


@dataclass
class Stage:
    """One stage; in a loop, in one of its iterations. Times are in seconds since the epoch."""

    name: str
    phase: Phase = Phase.QUEUED
    attempt: int = 0
    started_at: float | None = None
    ended_at: float = 0.0
    #: Of a stage that is tried again: why, and when.
    reason: str = ""
    retry_at: float = 0.0
    last: StageStarted | None = None
    result: StageResult | None = None


@dataclass
class Task:
    """All stages of one name: more than one in a loop, and none before its inputs are known."""

    name: str
    looped: bool = False
    stages: dict[str, Stage] = field(default_factory=dict)
    #: Those to look at, the latest last.
    active: dict[str, Stage] = field(default_factory=dict)
    failed: dict[str, Stage] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float = 0.0
    #: How many stages loops will have, as far as they have begun.
    expected: int = 0
    _counts: Counter[Phase] = field(default_factory=Counter)

    @property
    def counts(self) -> Mapping[Phase, int]:
        """How many stages there are of each phase."""
        if not self.stages and not self.expected:
            return {Phase.WAITING: 1}
        return self._counts + Counter({Phase.WAITING: max(0, self.expected - len(self.stages))})

    def move(self, stage: Stage, phase: Phase) -> None:
        """Takes the stage to the phase; a stage may run again after its end (in a nested pipeline's retry)."""
        if stage.name in self.stages:
            self._counts[stage.phase] -= 1
        self.stages[stage.name] = stage
        self._counts[phase] += 1
        stage.phase = phase
        for those, belongs in ((self.active, phase.is_active), (self.failed, phase is Phase.FAILED)):
            if belongs:
                those[stage.name] = stage
            else:
                those.pop(stage.name, None)


@dataclass
class Group:
    """A nested pipeline; the root's name is empty."""

    name: str = ""
    members: list[Group | Task] = field(default_factory=list)


class Progress:
    """A run, as far as its events have told."""

    def __init__(self, outline: Mapping[str, bool] | None = None) -> None:
        """``outline``: the stages that are known before, see ``local.outline``."""
        self.started: RunStarted | None = None
        self.ending: RunEnding | None = None
        self.finished: RunFinished | None = None
        self.root = Group()
        self.tasks: dict[str, Task] = {}
        self._groups = {"": self.root}
        self._loops: dict[str, int] = {}
        self._lines: dict[str, deque[str]] = {}
        self._unfinished: dict[str, str] = {}
        for name, looped in (outline or {}).items():
            self._task(name).looped = looped

    def on_event(self, event: Event) -> None:
        """Takes the next event of the run."""
        if isinstance(event, RunStarted):
            self.started, self.ending, self.finished = event, None, None
        elif isinstance(event, LoopStarted):
            # One in a nested pipeline that is retried begins again.
            more = event.iterations - self._loops.get(event.name, 0)
            self._loops[event.name] = event.iterations
            for name in event.stages:
                task = self._task(name)
                task.expected += more
                task.looped = True
        elif isinstance(event, StageWaiting):
            self._move(event.name, Phase.QUEUED)
        elif isinstance(event, StageStarted):
            stage = self._move(event.name, Phase.RUNNING)
            stage.attempt, stage.last = event.attempt, event
            if event.attempt == 1 or stage.started_at is None:
                stage.started_at, stage.result = event.time, None
            task = self.task_of(event.name)
            task.started_at = event.time if task.started_at is None else task.started_at
        elif isinstance(event, StageRetried):
            stage = self._move(event.name, Phase.RETRYING)
            stage.reason, stage.retry_at = event.reason, event.time + event.delay
        elif isinstance(event, StageFinished):
            stage = self._move(event.result.name, _ENDS[event.result.state])
            stage.result, stage.ended_at = event.result, event.time
            stage.attempt = event.result.attempts
            self.task_of(stage.name).ended_at = event.time
            self._lines.pop(stage.name, None)
            self._unfinished.pop(stage.name, None)
        elif isinstance(event, RunEnding):
            self.ending = event
        elif isinstance(event, RunFinished):
            self.finished = event

    def on_line(self, stage: str, line: str) -> None:
        """Takes a line of a stage's output. The first may come before the event of the stage's start."""
        if not line or line.isspace():
            return
        lines = self._lines.get(stage)
        if lines is None:
            lines = self._lines[stage] = deque(maxlen=LINES)
        lines.append(line)

    def on_unfinished(self, stage: str, line: str) -> None:
        """Takes the line that the stage has not ended yet."""
        self._unfinished[stage] = line

    def lines_of(self, stage: str) -> list[str]:
        """The last lines of a running stage's output, without empty ones."""
        unfinished = self._unfinished.get(stage, "")
        lines = [*self._lines.get(stage, ()), *([unfinished] if unfinished.strip() else [])]
        return lines[-LINES:]

    def counts(self, group: Group | Task | None = None) -> dict[Phase, int]:
        """How many stages there are of each phase, in the run or the group."""
        total = dict.fromkeys(Phase, 0)
        for task in self._tasks_in(group or self.root):
            for phase, number in task.counts.items():
                total[phase] += number
        return {phase: number for phase, number in total.items() if number}

    def results(self) -> list[StageResult]:
        """How the stages have ended, in the pipeline's order; those of a loop in its order."""
        found = [stage for task in self.tasks.values() for stage in sorted(task.stages.values(), key=_position)]
        return [stage.result for stage in found if stage.result is not None]

    def task_of(self, stage: str) -> Task:
        """The task that the stage belongs to."""
        return self._task(without_indices(stage))

    def _move(self, name: str, phase: Phase) -> Stage:
        task = self.task_of(name)
        task.looped |= name != task.name
        stage = task.stages.get(name) or Stage(name)
        task.move(stage, phase)
        return stage

    def _task(self, name: str) -> Task:
        if name not in self.tasks:
            self.tasks[name] = Task(name)
            self._group(name.rpartition("/")[0]).members.append(self.tasks[name])
        return self.tasks[name]

    def _group(self, name: str) -> Group:
        if name not in self._groups:
            self._groups[name] = Group(name)
            self._group(name.rpartition("/")[0]).members.append(self._groups[name])
        return self._groups[name]

    def _tasks_in(self, member: Group | Task) -> Iterator[Task]:
        if isinstance(member, Task):
            yield member
            return
        for inner in member.members:
            yield from self._tasks_in(inner)


def _position(stage: Stage) -> tuple[int, ...]:
    return indices_of(stage.name)
