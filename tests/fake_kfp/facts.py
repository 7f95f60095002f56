"""The facts about a run at one moment, from the lines of its journal: see ``child``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.runs.events import (
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StageRetried,
    StageStarted,
    decode,
)
from torchx_kfp.execution.runs.vocabulary import State


@dataclass(frozen=True)
class Ended:
    """How a task has ended: its state in the local run, why, and when."""

    state: State
    reason: str
    time: float

    @property
    def is_omitted(self) -> bool:
        """Whether it never began because of a task before it."""
        return self.state is State.NOT_RUN or self.reason.startswith("was not run")


@dataclass
class Facts:
    """Tasks and DAGs have the names of their Argo nodes; stages have those of the local run."""

    begun: dict[str, float] = field(default_factory=dict)
    #: The stage of each task.
    stages: dict[str, str] = field(default_factory=dict)
    opened: dict[str, float] = field(default_factory=dict)
    closed: dict[str, Ended] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    attempts: dict[str, list[StageStarted]] = field(default_factory=lambda: defaultdict(list))
    retried: dict[str, list[StageRetried]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[str, StageFinished] = field(default_factory=dict)
    #: When the pod of each stage began first. A retry of the run keeps the stage's driver.
    driven: dict[str, float] = field(default_factory=dict)
    started: RunStarted | None = None
    ending: RunEnding | None = None
    over: RunFinished | None = None
    refused: str = ""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one more line."""
        fact, when = line.get("fact"), line["time"]
        if fact is None:
            self._add_event(line)
        elif fact == "begun":
            self.begun.setdefault(line["task"], when)
            self.stages[line["task"]] = line["stage"]
        elif fact == "opened":
            self.opened.setdefault(line["dag"], when)
        elif fact == "closed":
            state = State.FAILED if line["failed"] else State.SUCCEEDED
            self.closed.setdefault(line["dag"], Ended(state, "", when))
        elif fact == "loop":
            self.items[line["task"]] = line["items"]
        elif fact == "ended":
            self.ended.setdefault(line["task"], Ended(State(line["state"]), line["reason"], when))
        elif fact == "refused":
            self.refused = line["reason"]
        elif fact == "retry":
            self._retry()

    def _retry(self) -> None:
        """Forget what a retry of the run removes: how it and what has failed in it ended, and what was omitted.

        Drivers that have succeeded are kept, and so are DAGs with their starts.
        """
        self.ending = self.over = None
        succeeded = State.SUCCEEDED, State.CACHED, State.SKIPPED
        self.closed = {dag: end for dag, end in self.closed.items() if end.state in succeeded}
        for task in [task for task, end in self.ended.items() if end.state not in succeeded]:
            stage = self.stages.get(task, "")
            if self.ended.pop(task).is_omitted or (task not in self.opened and stage not in self.attempts):
                self.begun.pop(task, None)
        # Stages of a run that was canceled have ended without an end of their task.
        for stage in [stage for stage, end in self.finished.items() if end.result.state not in succeeded]:
            for kept in (self.attempts, self.retried, self.finished):
                kept.pop(stage, None)

    def _add_event(self, line: Mapping[str, Any]) -> None:
        event = decode(line)
        if isinstance(event, RunStarted):
            self.started = self.started or event
        elif isinstance(event, RunEnding):
            self.ending = event
        elif isinstance(event, RunFinished):
            self.over = event
        elif isinstance(event, StageStarted):
            self.attempts[event.name].append(event)
            self.driven.setdefault(event.name, event.time)
        elif isinstance(event, StageRetried):
            self.retried[event.name].append(event)
        elif isinstance(event, StageFinished) and not event.kept:
            self.finished[event.result.name] = event


def given_to(started: StageStarted) -> dict[str, Any]:
    """Return the inputs of a stage, including artifacts."""
    return {**started.inputs, **started.artifacts}
