"""The state of a run, computed from its events.

The live view, the final table, ``RunResult``, ``runs``, ``logs``, ``cancel`` and the report all read a ``RunState``. It
draws nothing and reads no clock: times come from events and callers. Events can come from the local runner, from a
run's folder, or from a backend that is polled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torchx_kfp.execution.pipeline.walk import indices_of, without_indices
from torchx_kfp.execution.runs.events import (
    Event,
    LoopStarted,
    PipelineRetried,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePending,
    StageReplicas,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.vocabulary import State


@dataclass
class Attempt:
    """One process of a stage. ``end`` is None while it runs, or if its end is unknown."""

    started: StageStarted
    state: State = State.RUNNING
    end: float | None = None
    reason: str = ""
    #: Whether its end may still be reported.
    is_open: bool = True

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return self.started.attempt

    @property
    def start(self) -> float:
        """The start time of the attempt, in seconds since the epoch."""
        return self.started.time


@dataclass
class StageState:
    """One stage; in a loop, in one of its iterations. Times are in seconds since the epoch.

    Attributes:
        name: the stage's name, unique in the run, such as ``inner/train[2,0]``.
        task: the task's name.
        state: the current state.
        attempts: all attempts, including those before the run was retried on KFP.
        started_at: the time of the first start since the stage was last queued.
        ended_at: the time at which the stage ended.
        reason: why the stage is retried or did not succeed, as a clause.
        retry_at: the time at which the next attempt is due, if the stage is retried.
        last_end: the last result of the stage; it may be running again.
        replicas: the running and all replicas of a distributed stage; None if they are unknown.
    """

    name: str
    task: str
    state: State = State.WAITING
    attempts: list[Attempt] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float = 0.0
    reason: str = ""
    retry_at: float = 0.0
    last_end: StageResult | None = None
    replicas: tuple[int, int] | None = None
    #: Whether nothing has happened since ``last_end``.
    _has_ended: bool = False

    @property
    def is_stuck(self) -> bool:
        """Whether the stage cannot start yet; ``reason`` says why."""
        return self.state is State.QUEUED and bool(self.reason)

    @property
    def path(self) -> str:
        """The name without the indices of loops."""
        return without_indices(self.name)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of loops in the name."""
        return indices_of(self.name)

    @property
    def result(self) -> StageResult:
        """The stage's result, which is partial until the stage ends."""
        if self.last_end is not None and self.last_end.state is self.state:
            return self.last_end
        last = self.attempts[-1].started if self.attempts else None
        return StageResult(
            self.name,
            self.task,
            self.state,
            reason=self.reason,
            attempts=last.attempt if last else 0,
            pod_name=last.pod_name if last else "",
            log_file=last.log_file if last else None,
            inputs=last.inputs if last else {},
            started_at=self.started_at,
            replicas=self.replicas[1] if self.replicas else None,
        )

    def queue(self) -> None:
        """Start a new series of attempts: the inputs are known."""
        self.started_at, self._has_ended, self.reason = None, False, ""

    def start(self, event: StageStarted) -> None:
        """Add an attempt."""
        if self.started_at is None or self._has_ended:
            self.started_at = event.time
        self.attempts.append(Attempt(event))
        self._has_ended, self.reason, self.replicas = False, "", None

    def retry(self, reason: str, when: float) -> None:
        """Record the reason for another attempt, and the time at which it is due."""
        self.reason, self.retry_at, self._has_ended = reason, when, False

    def finish(self, result: StageResult, when: float) -> None:
        """Record the stage's result and the time at which it ended."""
        self.end_attempt(result.state, when, result.reason)
        self.task, self.last_end, self.ended_at, self.reason = result.task, result, when, result.reason
        self._has_ended = True

    def end_attempt(self, state: State, end: float | None, reason: str = "") -> None:
        """End the last attempt, if it is still open."""
        if self.attempts and self.attempts[-1].is_open:
            last = self.attempts[-1]
            last.state, last.end, last.reason, last.is_open = state, end, reason, end is None

    def abandoned(self, state: State) -> State:
        """Return the stage's state after the end of the run: ``state`` if the stage was running."""
        if self.state.is_over:
            return self.state
        if self._has_ended and self.last_end is not None:
            return self.last_end.state
        return state if self.attempts else State.NOT_RUN


@dataclass
class Session:
    """A period in which a runner worked on the run. Each retry on KFP starts another one."""

    start: float
    end: float
    #: The duration that the runner has measured.
    seconds: float | None = None

    @property
    def duration(self) -> float:
        """The session's length in seconds."""
        return max(0.0, self.end - self.start) if self.seconds is None else self.seconds


class RunState:
    """The state of a run according to its events."""

    def __init__(self, stages: Mapping[str, bool] | None = None) -> None:
        """Start without events; ``stages`` are the pipeline's, if known (see ``outline``)."""
        #: The starts of the run and of its last session, and the events of that session's end.
        self.first: RunStarted | None = None
        self.started: RunStarted | None = None
        self.ending: RunEnding | None = None
        self.finished: RunFinished | None = None
        self.sessions: list[Session] = []
        #: The stages of each task, by their names: several in a loop, and none until their inputs are known.
        self.tasks: dict[str, dict[str, StageState]] = {name: {} for name in stages or ()}
        #: How many stages the loops that have begun will have, by task; only for tasks in loops.
        self.expected = Counter({name: 0 for name, looped in (stages or {}).items() if looped})
        #: The stages that have had an event, by their names, in the order of their first ones.
        self.by_name: dict[str, StageState] = {}
        self._loops: dict[str, int] = {}
        self._is_lost = False

    def on_event(self, event: Event) -> None:
        """Update the state with the next event of the run."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif not self.sessions:
            self.sessions.append(Session(event.time, event.time))
        self.sessions[-1].end = max(event.time, self.sessions[-1].start)
        match event:
            case LoopStarted():
                # A loop begins again if the nested pipeline around it is retried.
                more = event.iterations - self._loops.get(event.name, 0)
                self._loops[event.name] = event.iterations
                for name in event.stages:
                    self.tasks.setdefault(name, {})
                    self.expected[name] += more
            case StageWaiting():
                self._move(event.name, State.QUEUED, event.task).queue()
            case StagePending():
                self._move(event.name, State.QUEUED, event.task).reason = event.reason
            case StageStarted():
                self._move(event.name, State.RUNNING, event.task).start(event)
            case StageReplicas():
                self._move(event.name, State.RUNNING).replicas = event.running, event.total
            case StageRetried():
                stage = self._move(event.name, State.RETRYING)
                stage.end_attempt(State.FAILED, event.time, event.reason)
                stage.retry(event.reason, event.time + event.delay)
            case PipelineRetried():
                for stage in self.by_name.values():
                    if stage.state is State.FAILED and stage.name.startswith(f"{event.name}/"):
                        self._move(stage.name, State.RETRYING).retry(stage.reason, event.time + event.delay)
            case StageFinished():
                result = event.result.judged()
                self._move(result.name, result.state, result.task).finish(result, event.time)
            case RunEnding():
                self.ending = event
            case RunFinished():
                self.finished, self._is_lost = event, False
                self.sessions[-1].seconds = event.duration
                self._abandon(State.CANCELED if event.state is State.CANCELED else State.INTERRUPTED)

    def mark_interrupted(self) -> None:
        """Record that no process runs the pipeline, unless the run has ended."""
        if self.finished is None:
            self._is_lost = True
            self._abandon(State.INTERRUPTED)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.first.run_id if self.first else ""

    @property
    def state(self) -> State:
        """The state of the run itself."""
        if self.finished is not None:
            return self.finished.state
        return State.INTERRUPTED if self._is_lost else State.RUNNING

    @property
    def stages(self) -> list[StageState]:
        """The stages in the order of the pipeline and of its loops, including stages without an event so far."""
        stages_in_order = []
        for path, stages in self.tasks.items():
            stages_in_order += sorted(stages.values(), key=lambda stage: (stage.indices, stage.name))
            if not stages and not self.expected[path] and self._unheard is not None:
                stages_in_order.append(StageState(path, path.rpartition("/")[2], self._unheard))
        return stages_in_order

    @property
    def ends(self) -> list[StageResult]:
        """The last result of each stage that has ended; it may be older than the last session."""
        return [stage.last_end for stage in self.by_name.values() if stage.last_end is not None]

    def end_of(self, stage: str) -> StageResult | None:
        """Return the last result of a stage, if it has ended."""
        found = self.by_name.get(stage)
        return found.last_end if found is not None else None

    def attempts_at(self, stage: str) -> list[StageStarted]:
        """Return the starts of all attempts at a stage."""
        found = self.by_name.get(stage)
        return [attempt.started for attempt in found.attempts] if found is not None else []

    def stage_of_pod(self, pod: str) -> str:
        """Return the name of the stage to which a pod belongs; empty if there is none."""
        stages = self.by_name.values()
        names = (stage.name for stage in stages for attempt in stage.attempts if attempt.started.pod_name == pod)
        return next(names, "")

    @property
    def active(self) -> list[str]:
        """The names of the active stages."""
        return [stage.name for stage in self.stages if stage.state.is_active]

    def counts(self, tasks: Iterable[str] | None = None) -> dict[State, int]:
        """Return the number of stages in each state, the worst state first, in the run or in some of its tasks."""
        total: Counter[State] = Counter()
        for path in self.tasks if tasks is None else tasks:
            stages, expected = self.tasks[path], self.expected[path]
            total.update(stage.state for stage in stages.values())
            if self._unheard is not None:  # the state of stages without an event
                total[self._unheard] += max(0, expected - len(stages)) if stages or expected else 1
        return {state: total[state] for state in State if total[state]}

    def duration(self, now: float | None = None) -> float:
        """Return the seconds for which a runner has worked on the run; the time before a retry on KFP does not count.

        Args:
            now: the current time, in seconds since the epoch; by default, an unfinished run counts up to its last
                event.
        """
        total = sum(session.duration for session in self.sessions)
        if self.state is State.RUNNING and self.sessions and now is not None:
            total += max(0.0, now - self.sessions[-1].end)
        return total

    def has_ended(self, stage: str) -> bool:
        """Return whether the stage finished in this session of the run."""
        found = self.by_name.get(stage)
        return self.state.is_over or (found is not None and found.state.is_over)

    def result(self, now: float | None = None) -> RunResult:
        """Return the run's result, as ``torchx_kfp.local.run`` returns it.

        Args:
            now: the current time, in seconds since the epoch; without it, running stages have no duration.
        """
        finished = self.finished
        stages = [stage.result for stage in self.stages]
        if now is not None:
            # The clock of a host may be ahead.
            active = {it.name: max(0.0, now - (it.started_at or now)) for it in stages if it.state.is_active}
            stages = [replace(it, duration=active.get(it.name, it.duration)) for it in stages]
        return RunResult(
            pipeline=self.first.pipeline if self.first else "",
            run_id=self.run_id,
            state=self.state,
            folder=self.started.folder if self.started else None,
            link=self.started.link if self.started else "",
            duration=self.duration(),
            stages=tuple(stages),
            outputs=finished.outputs if finished else {},
            artifacts=finished.artifacts if finished else {},
            reason=finished.reason if finished else "",
        )

    @property
    def _unheard(self) -> State | None:
        """The state of stages without an event; None if there are no such stages."""
        if self.state is State.INTERRUPTED:
            return State.NOT_RUN
        # A run that has ended has an event of each stage: a loop without items has no stages.
        return None if self.state.is_over else State.WAITING

    def _start(self, event: RunStarted) -> None:
        if self.sessions:
            self.mark_interrupted()
            for stage in [*self.by_name.values()]:
                for attempt in stage.attempts:
                    attempt.is_open = False
                if stage.state is State.NOT_RUN and not stage.attempts:
                    # Its name may change: a loop that had not begun had no indices.
                    del self.tasks[stage.path][stage.name], self.by_name[stage.name]
                elif not stage.state.is_success:
                    stage.state = State.WAITING
        self.first = self.first or event
        self.started, self.ending, self.finished, self._is_lost = event, None, None, False
        self.sessions.append(Session(event.time, event.time))

    def _abandon(self, state: State) -> None:
        for stage in self.by_name.values():
            if not stage.state.is_over:
                stage.state = stage.abandoned(state)
                stage.end_attempt(state, None)

    def _move(self, name: str, state: State, task: str = "") -> StageState:
        """Put a stage, known or new, into a state, and return it."""
        path = without_indices(name)
        stages = self.tasks.setdefault(path, {})
        if name != path:
            self.expected.setdefault(path, 0)
        if name not in self.by_name:
            self.by_name[name] = stages[name] = StageState(name, task or path.rpartition("/")[2])
        self.by_name[name].state = state
        return self.by_name[name]
