"""The facts about a run at one moment, from the events of its local run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from torchx_kfp.execution.runs.events import (
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
from torchx_kfp.execution.runs.vocabulary import State

_KEPT = (State.SUCCEEDED, State.CACHED, State.SKIPPED)


@dataclass
class TaskFacts:
    """The facts about a stage, a loop, or another group that could not start."""

    waiting: float | None = None
    #: When its pod began first. A retry of the run keeps the stage's driver.
    driven: float | None = None
    attempts: list[StageStarted] = field(default_factory=list)
    retried: list[StageRetried] = field(default_factory=list)
    finished: StageFinished | None = None
    loop: LoopStarted | None = None

    def retry(self) -> None:
        """Forget its failure; its driver, if it ran, and its DAG stay."""
        if self.finished is None or self.finished.result.state not in _KEPT:
            if not self.attempts:
                self.waiting = None
            self.attempts, self.retried, self.finished = [], [], None


@dataclass
class Facts:
    """Tasks have the names of their stages in the local run."""

    tasks: dict[str, TaskFacts] = field(default_factory=lambda: defaultdict(TaskFacts))
    started: RunStarted | None = None
    ending: RunEnding | None = None
    over: RunFinished | None = None

    def add(self, event: Event) -> None:
        """Apply an event."""
        if isinstance(event, RunStarted):
            self.started = self.started or event
            if self.over is not None:
                self._retry()
        elif isinstance(event, RunEnding):
            self.ending = event
        elif isinstance(event, RunFinished):
            self.over = event
        elif isinstance(event, LoopStarted):
            self.tasks[event.name].loop = event
        elif isinstance(event, StageWaiting):
            task = self.tasks[event.name]
            task.waiting = task.waiting or event.time
        elif isinstance(event, StageStarted):
            task = self.tasks[event.name]
            task.attempts.append(event)
            task.driven = task.driven or event.time
        elif isinstance(event, StageRetried):
            self.tasks[event.name].retried.append(event)
        elif isinstance(event, StageFinished):
            self.tasks[event.result.name].finished = event

    def _retry(self) -> None:
        """Forget the failed and omitted tasks, which a retry removes.

        Drivers that have succeeded are kept, and so are DAGs with their starts.
        """
        self.ending = self.over = None
        for task in self.tasks.values():
            task.retry()
