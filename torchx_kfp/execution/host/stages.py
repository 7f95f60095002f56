"""Derive the events of stages from the nodes of a KFP run: those of a local run of the same pipeline.

Stages have the same names, states and reasons as in a local run. A stage without nodes has not started, or never will:
its upstream tasks decide, as in the local runner, and the end of the run or of the pipeline around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from typing import NamedTuple

from torchx_kfp.common.text import clean, listed
from torchx_kfp.execution.host.nodes import Node, Nodes
from torchx_kfp.execution.host.outcomes import (
    CANCELED,
    NO_START,
    end_of_stage,
    exit_of,
    group_outcome,
    pending_reason,
    reason_of_driver,
)
from torchx_kfp.execution.host.states import Progress
from torchx_kfp.execution.pipeline.spec import Component, Dag, Pipeline, Task, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask, StageNames, walk_tasks, without_indices
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.events import (
    Event,
    LoopStarted,
    PipelineRetried,
    StageFinished,
    StagePending,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.reasons import TaskOutcome
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import is_run_id

#: The most iterations of a loop that are expected before they start. Argo's limits are lower; a host may report more.
_MOST_ITERATIONS = 10_000
#: The attempt number of a final event: no attempt follows.
_LAST = 1 << 31


class Phase(IntEnum):
    """The phases of an attempt, in order."""

    QUEUED = auto()
    STARTED = auto()
    RETRIED = auto()
    PENDING = auto()
    ENDING = auto()
    ENDED = auto()


class Progression(NamedTuple):
    """The progress of a stage, loop or nested pipeline at an event; later events compare as larger.

    Attributes:
        period: the index of the run's period.
        rounds: the number of retries of each nested pipeline around it.
        attempt: the attempt within these rounds; for a loop, the number of its iterations.
    """

    period: int
    rounds: tuple[int, ...] = ()
    attempt: int = 0
    phase: Phase = Phase.QUEUED


@dataclass(frozen=True, slots=True)
class OrderedEvent:
    """An event of the stage, loop or nested pipeline named ``of``, or of the run if that is empty."""

    of: str
    at: Progression
    event: Event


@dataclass(frozen=True)
class DagNode:
    """The node of a DAG while its tasks are read, with its state and the names of the stages in it.

    If ``is_closed``, no more tasks start in it.
    """

    node: str
    names: StageNames
    rounds: tuple[int, ...]
    is_closed: bool
    state: State = State.RUNNING


class StageReader:
    """Reads the nodes of a run once."""

    def __init__(
        self,
        pipeline: Pipeline,
        tracked: Mapping[str, ScopedTask],
        nodes: Nodes,
        progress: Progress,
        known: Mapping[str, OrderedEvent],
        patches: Mapping[str, str],
    ) -> None:
        """Create a reader.

        Args:
            tracked: the tracked stages by name without indices.
            progress: the progress of the run. After its end, each stage gets a final event.
            known: the last event of each stage, loop and nested pipeline. Nodes of stages that finished in this period
                are not read again.
            patches: the pod spec patches of drivers, by stage.
        """
        self._pipeline, self._tracked, self._nodes = pipeline, tracked, nodes
        self._progress, self._known, self._known_patches = progress, known, patches
        self._events: list[OrderedEvent] = []
        #: The time of the last event of each stage, and its number of attempts, in all rounds.
        self._clocks: dict[str, float] = {}
        self._attempts: Counter[str] = Counter()
        #: The pod spec patches of drivers, by stage: see ``PodSpec``.
        self.patches: dict[str, str] = {}

    def read(self) -> list[OrderedEvent]:
        """Return the events of all stages so far, in order of time; for a known end, only that."""
        workflow, root = self._nodes.workflow, self._pipeline.root
        run = DagNode("", StageNames(), (), self._progress.is_over)
        wholes = self._bodies(workflow, run, run.names) if workflow else []
        for whole in wholes:
            self._nodes.get(f"{whole.node}.root-driver")
        bodies = [body for whole in wholes for body in self._bodies(f"{whole.node}.root", whole, run.names)]
        # No task starts in an attempt whose root is omitted because its driver failed, so only one attempt reports it.
        for body in [each for each in bodies if each.state is not State.NOT_RUN] or bodies[-1:] or [run]:
            self._dag(root, body)
        if not bodies:
            self._pending_group(root, run, f"{workflow}(0).root-driver")
        # The sort keeps the order of events with equal times.
        return sorted(self._events, key=lambda item: item.event.time)

    # DAGs

    def _bodies(self, name: str, around: DagNode, names: StageNames) -> list[DagNode]:
        """Return the attempts of a DAG's node. Tasks start only in the last one, while it is unfinished."""
        nodes = self._nodes.attempts(name)
        closed = [around.is_closed or node.state.is_over or node is not nodes[-1] for node in nodes]
        return [
            DagNode(node.name, names, (*around.rounds, index), closed[index], node.state)
            for index, node in enumerate(nodes)
        ]

    def _dag(self, component: Component, scope: DagNode) -> TaskOutcome:
        """Read the tasks of a DAG, started ones first, because others may depend on them."""
        dag = component.as_dag()
        begun = {task.name: self._read_started(task, scope, dag) for task in dag.ordered}
        ends = {name: end or TaskOutcome() for name, end in begun.items()}
        for task in dag.ordered:
            if begun[task.name] is None or (scope.is_closed and ends[task.name].state is None):
                ends[task.name] = self._resolve(task, ends, scope, dag)
        if any(end.state is None for end in ends.values()):
            return TaskOutcome()
        counted = [end for name, end in ends.items() if not reasons.is_ignored(dag.tasks[name], end.state)]
        failed = [name for end in ends.values() if end.state is State.FAILED for name in end.failed or [end.name]]
        return group_outcome(
            counted, failed, max((end.time for end in ends.values()), default=self._progress.started_at)
        )

    def _read_started(self, task: Task, scope: DagNode, dag: Dag) -> TaskOutcome | None:
        """Read a started task; return None if it has not started."""
        component, around = self._pipeline.component_of(task), [scope.node]
        if component.dag is None and (end := self._known_end(scope.names.of(task.name), scope)):
            return end
        if task.ignores_failures and task.depends_on:  # it is a hook of each task before it
            hooks = (self._nodes.attempts(f"{scope.node}.{before}.onExit") for before in task.depends_on)
            around = [attempts[-1].name for attempts in hooks if attempts]
        for node in () if dag.hook_instead_of(task) else around:
            first = self._nodes.get(f"{node}.{task.name}-driver") or self._nodes.get(f"{node}.{task.name}")
            if first is not None and first.state not in (State.SKIPPED, State.NOT_RUN):
                inner = replace(scope, node=node)
                read = self._stage if component.dag is None else self._group
                return read(task, component, inner)
        return None

    def _resolve(self, task: Task, ends: Mapping[str, TaskOutcome], scope: DagNode, dag: Dag) -> TaskOutcome:
        """Resolve a task that has not started, or has not ended although its DAG is closed."""
        before = [ends[name] for name in task.depends_on]
        state, reason = reasons.after_upstream(dag, task, before)
        if not state.is_pending:
            return self._report_not_run(task, scope, state, reason, max(end.time for end in before))
        return self._report_never_started(task, scope, ends.values()) if scope.is_closed else TaskOutcome()

    def _report_never_started(
        self, task: Task, scope: DagNode, others: Iterable[TaskOutcome], *, inside: StageNames | None = None
    ) -> TaskOutcome:
        """Report that a task, or the iteration of a loop that has these names, will never start.

        ``others`` are the outcomes of the other tasks or iterations. The outcome stays open while a later response may
        give the reason.
        """
        failed = next((each.failed or [each.name] for each in others if each.state is State.FAILED), None)
        if self._progress.last.canceled_at is not None:
            why = CANCELED
        elif failed:
            why = reasons.not_run(reasons.ends_the_run(failed[0]))
        elif self._progress.is_over:
            why = NO_START
        else:
            return TaskOutcome()
        time = self._progress.last.ended_at or max([*(each.time for each in others), self._progress.started_at])
        return self._report_not_run(task, scope, State.NOT_RUN, why, time, inside=inside)

    def _report_not_run(
        self, task: Task, scope: DagNode, state: State, reason: str, time: float, *, inside: StageNames | None = None
    ) -> TaskOutcome:
        """Report that all stages of a task, or of the iteration with these names, do not run."""
        component = self._pipeline.component_of(task)
        names = [(scope.names.of(task.name), task.name)]
        if component.dag is not None:
            stages = self._stages_in(component, inside or scope.names.inside(task))
            names = [(place.name, place.task.name) for place in stages]
        ends = [self._finish(StageResult(name, of, state, reason=reason), scope, time) for name, of in names]
        if component.dag is None:
            return ends[0]
        group = names[0][0] if task.is_group and names else scope.names.of(task.name)
        return TaskOutcome(group, state, reason == CANCELED, time)

    # Groups of tasks

    def _group(self, task: Task, component: Component, scope: DagNode) -> TaskOutcome:
        """Read a nested pipeline, a branch or a loop."""
        path, name = f"{scope.node}.{task.name}", scope.names.of(task.name)
        inside = scope.names if task.loop else scope.names.inside(task)
        node = self._nodes.get(path)
        if end := self._stopped(task, self._nodes.get(f"{path}-driver"), node, scope):
            return end
        if node is None:
            self._pending_group(component, replace(scope, names=inside), f"{path}-driver")
        if node is None or node.state is State.NOT_RUN:
            return TaskOutcome()
        end, attempts = TaskOutcome(), self._nodes.attempts(path)
        for number, body in enumerate(self._bodies(path, scope, inside)):
            if number and not task.is_group:
                start = self._time(attempts[number].start, end.time)
                delay = max(0.0, start - end.time)
                retried = PipelineRetried(name, number, reasons.failed_in(end.failed), delay, time=end.time)
                self._report(name, retried, scope, number, Phase.RETRIED)
            end = self._iterations(task, component, body) if task.loop else self._dag(component, body)
        if task.loop and end.state in (State.SKIPPED, State.NOT_RUN):
            return end
        state = node.state if node.state in (State.SUCCEEDED, State.FAILED) else end.state if scope.is_closed else None
        if state is None:
            return TaskOutcome()
        if end.is_canceled and state is not State.SUCCEEDED:
            state = State.CANCELED
        time = self._time(node.end, end.time)
        if not task.is_group:
            return TaskOutcome(name, state, end.is_canceled, time)
        first = next((place.name for place in self._stages_in(component, scope.names.inside(task))), name)
        return TaskOutcome(listed(end.failed, reasons.MOST_NAMED) or first, state, end.is_canceled, time, end.failed)

    def _iterations(self, task: Task, component: Component, scope: DagNode) -> TaskOutcome:
        """Read the iterations of a loop; ``scope`` is the loop's own node."""
        driver = self._nodes.get(f"{scope.node}.iteration-driver")
        group = self._nodes.get(f"{scope.node}.iteration-iterations")
        is_empty = group is not None and group.state is State.SKIPPED and task.condition is None
        if end := self._stopped(task, driver, None if is_empty else group, scope):
            return end
        items: list[Node] = []
        while (item := self._nodes.get(f"{scope.node}.iteration-iterations({len(items)}:{len(items)})")) is not None:
            items.append(item)
        if group is None:
            return TaskOutcome()
        decided = driver.decision("iteration-count") if driver is not None else ""
        expected = int(decided) if decided.isdecimal() and len(decided) < 10 else 0
        count = 0 if is_empty else max(len(items), min(expected, _MOST_ITERATIONS))
        inside = self._stages_in(component, scope.names.inside(task))
        names = tuple(without_indices(place.name) for place in inside if not place.looped)
        name, time = scope.names.of(task.name), self._time(group.start)
        self._report(name, LoopStarted(name, count, names, time=time), scope, count, Phase.STARTED)
        ends = [self._iteration(task, component, scope, index, item) for index, item in enumerate(items)]
        if scope.is_closed:
            missing = map(scope.names.inside_iteration, range(len(items), count))
            ends += [self._report_never_started(task, scope, ends, inside=names_inside) for names_inside in missing]
        if len(ends) < count or any(end.state is None for end in ends):
            return TaskOutcome()
        failed = [name for end in ends for name in end.failed]
        return group_outcome(ends, failed, time)

    def _iteration(self, task: Task, component: Component, scope: DagNode, index: int, item: Node) -> TaskOutcome:
        names, end = scope.names.inside_iteration(index), TaskOutcome()
        for whole in self._bodies(item.name, scope, names):
            path = f"{whole.node}.iteration-item"
            bodies = self._bodies(path, whole, names)
            if stopped := self._stopped(task, self._nodes.get(f"{path}-driver"), None, whole):
                end = stopped
            elif bodies and bodies[-1].state not in (State.SKIPPED, State.NOT_RUN):
                end = [self._dag(component, body) for body in bodies][-1]
            else:
                end = self._report_never_started(task, whole, (), inside=names) if whole.is_closed else TaskOutcome()
        return end

    def _stopped(self, task: Task, driver: Node | None, node: Node | None, scope: DagNode) -> TaskOutcome | None:
        """Report a task, or an iteration, that was not started because its driver failed or its condition is false."""
        if driver is not None and driver.state is State.FAILED:
            time = self._time(driver.end, driver.start)
            if self._progress.is_canceled(driver.end):
                return self._report_not_run(task, scope, State.NOT_RUN, CANCELED, time)
            reason = clean(f"could not be prepared: {reason_of_driver(self._nodes, driver)}")
            result = StageResult(scope.names.of(task.name), task.name, State.FAILED, reason=reason)
            return self._finish(result, scope, time)
        if node is not None and node.state is State.SKIPPED:
            return self._report_not_run(task, scope, State.SKIPPED, reasons.CONDITION_IS_FALSE, self._time(node.start))
        return None

    # Stages

    def _stage(self, task: Task, component: Component, scope: DagNode) -> TaskOutcome:
        name, path = scope.names.of(task.name), f"{scope.node}.{task.name}"
        driver, node = self._nodes.get(f"{path}-driver"), self._nodes.get(path)
        if component.importer is not None or is_volume_task(component):
            return self._pod_of_kfp(task, component, node, scope)
        first = driver or node
        assert first is not None
        self._report(name, StageWaiting(name, task.name, time=self._time(first.start)), scope, 0, Phase.QUEUED)
        if end := self._stopped(task, driver, node, scope):
            return end
        pods = [pod for body in self._nodes.attempts(path) for pod in self._nodes.attempts(f"{body.name}.executor")]
        starting = [*self._nodes.attempts(f"{path}-driver")[-1:], *pods[-1:]]
        if driver is not None and (patch := starting[0].decision("pod-spec-patch")):
            self.patches[name] = patch
        if pods:
            is_cached = pods[-1].state is State.SKIPPED
        else:  # the host may name the pod in another way
            is_over = node is not None and node.state is State.SUCCEEDED
            is_cached = is_over and driver is not None and starting[0].decision("cached-decision") == "true"
        self._report_attempts(task, pods, scope, is_over=node is not None and node.state.is_over)
        self._pending(name, task.name, starting, scope)
        begun = [pod for pod in pods if pod.has_begun]
        last = begun[-1] if begun else None
        state, reason, ended = end_of_stage(self._progress, node, last, is_cached=is_cached and last is None)
        if state is None:
            return TaskOutcome()
        exit_code = exit_of(last)[0] if last is not None and state is State.FAILED else None
        if last is not None and last.state is State.SUCCEEDED:
            exit_code = 0
        pod = last.pod if last is not None else ""
        tracked = self._tracked.get(without_indices(name)) if pod or state is State.CACHED else None
        run_id = f"{self._progress.run_id}/{tracked.decoded.stage}/{pod}" if tracked and pod else ""
        started = begun[0].start if begun else None
        time = self._time(ended, started)
        result = StageResult(
            name,
            task.name,
            state,
            exit_code=exit_code,
            reason=clean(reason),
            duration=max(0.0, time - started) if started is not None else 0.0,
            attempts=self._attempts[name],
            pod_name=pod,
            # The host names the pod in it.
            execution_id=run_id if is_run_id(run_id, self._progress.run_id) else None,
            tracker_base=tracked.tracker_base if tracked else None,
            may_fail=tracked is not None and tracked.decoded.may_fail,
            started_at=started,
        )
        return self._finish(result, scope, time)

    def _report_attempts(self, task: Task, pods: Sequence[Node], scope: DagNode, *, is_over: bool) -> None:
        """Report the started attempts, after those of earlier rounds."""
        name, period = scope.names.of(task.name), self._progress.last
        is_over = is_over or period.state.is_over or period.canceled_at is not None
        pods = [pod for pod in pods if pod.state is not State.SKIPPED]
        for index, pod in enumerate(pods):
            if not pod.has_begun:
                continue
            self._attempts[name] += 1
            number = self._attempts[name]
            started = StageStarted(name, pod.pod, number, task.name, time=self._time(pod.start))
            self._report(name, started, scope, number, Phase.STARTED)
            if pod.state is not State.FAILED:
                continue
            end = self._time(pod.end, pod.start)
            if index + 1 < len(pods):
                delay = max(0.0, self._time(pods[index + 1].start, end) - end)
            elif task.retry is not None and index < task.retry.count and not is_over:
                delay = task.retry.delay(index + 1) or 0.0
            else:
                continue
            retried = StageRetried(name, number, clean(exit_of(pod)[1]), delay, time=end)
            self._report(name, retried, scope, number, Phase.RETRIED)

    def _pod_of_kfp(self, task: Task, component: Component, node: Node | None, scope: DagNode) -> TaskOutcome:
        """Read a task that KFP runs itself: an import, or the creation or deletion of a volume claim."""
        if node is None:
            return TaskOutcome()
        name, is_import = scope.names.of(task.name), component.importer is not None
        pods, time = self._nodes.attempts(node.name), self._time(node.end, node.start)
        self._pending(name, task.name, pods[-1:], scope)
        result = StageResult(name, task.name, State.SUCCEEDED, started_at=node.start)
        if node.state is State.FAILED:
            if self._progress.is_canceled(node.end):
                return self._report_not_run(task, scope, State.NOT_RUN, CANCELED, time)
            reason = clean(exit_of(self._nodes.failed_attempt(node), is_import=is_import)[1])
            result = replace(result, state=State.FAILED, reason=reason)
            if is_import:
                # Its log says why.
                self._report_attempts(task, pods, scope, is_over=True)
                result = replace(result, attempts=len(pods), pod_name=pods[-1].pod)
        elif State.SUCCEEDED not in (node.state, self._progress.last.state):
            return TaskOutcome()
        return self._finish(result, scope, time)

    def _pending(self, name: str, task: str, pods: Iterable[Node], scope: DagNode) -> None:
        """Report why the first pod that has not started is waiting."""
        if pod := next((pod for pod in pods if pod.state is State.QUEUED and pod.pod), None):
            event = StagePending(name, task, pending_reason(pod), time=self._time(pod.start))
            self._report(name, event, scope, self._attempts[name], Phase.PENDING)

    def _pending_group(self, component: Component, scope: DagNode, driver: str) -> None:
        """Report why the driver of a group is waiting, at the group's first stage."""
        stages = self._stages_in(component, scope.names)
        if first := next((place for place in stages if not place.looped), None):
            self._pending(first.name, first.task.name, self._nodes.attempts(driver)[-1:], scope)

    # Helpers

    def _time(self, *times: float | None) -> float:
        return next((time for time in times if time is not None), self._progress.started_at)

    def _stages_in(self, component: Component, names: StageNames) -> Iterable[ScopedTask]:
        return (place for place in walk_tasks(self._pipeline, component, names) if place.is_stage)

    def _finish(self, result: StageResult, scope: DagNode, time: float) -> TaskOutcome:
        return _outcome(result, self._report(result.name, StageFinished(result, time=time), scope, _LAST, Phase.ENDED))

    def _known_end(self, name: str, scope: DagNode) -> TaskOutcome | None:
        """Return the outcome of a stage that was reported before: no later response changes it."""
        item = self._known.get(name)
        if item is None or item.at != Progression(len(self._progress.periods) - 1, scope.rounds, _LAST, Phase.ENDED):
            return None
        assert isinstance(item.event, StageFinished)
        self._events.append(item)
        if patch := self._known_patches.get(name):
            self.patches[name] = patch
        self._clocks[name] = item.event.time
        self._attempts[name] = max(self._attempts[name], item.event.result.attempts)
        return _outcome(item.event.result, item.event.time)

    def _report(self, name: str, event: Event, scope: DagNode, attempt: int, phase: Phase) -> float:
        """Report an event, and return its time."""
        # Clocks of pods and of KFP differ: no event is older than the one before it.
        time = self._clocks[name] = max(event.time, self._clocks.get(name, event.time))
        event = replace(event, time=time) if time > event.time else event
        at = Progression(self._progress.period_at(time), scope.rounds, attempt, phase)
        self._events.append(OrderedEvent(name, at, event))
        return time


def _outcome(result: StageResult, time: float) -> TaskOutcome:
    is_canceled = result.state is State.CANCELED or result.reason == CANCELED
    return TaskOutcome(result.name, result.state, is_canceled, time)
