"""Read the nodes of a KFP run as the steps of its stages: those that a local run of the same pipeline would have.

Stages have the same names, states and reasons as in a local run. A stage without nodes has not begun, or never will: it
is decided by the tasks before it, as the local runner does, and at the end of the run or of the pipeline around it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torchx_kfp.common.text import clean, listed
from torchx_kfp.execution.host.nodes import Node, Nodes
from torchx_kfp.execution.host.outcomes import (
    NO_START,
    end_of_stage,
    exit_of,
    pending_reason,
    reason_of_driver,
    together,
)
from torchx_kfp.execution.host.run_pipeline import RunPipeline
from torchx_kfp.execution.host.states import Progress
from torchx_kfp.execution.pipeline.spec import Component, Dag, Task, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask, StageNames, walk, without_indices
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
from torchx_kfp.tracking.recorder import is_run_id

#: The most iterations of a loop that are expected before they begin: Argo's limits are lower, and a host may say more.
_MOST_ITERATIONS = 10_000
_CANCELED = reasons.not_run(reasons.RUN_WAS_ENDED)
#: The place of a step among those of the same thing: the index of the run's period, the rounds of the nested pipelines
#: around it, and a number within these. Whatever is further has a larger place.
Place: TypeAlias = tuple[int, tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Step:
    """An event in the life of a stage, a loop or a nested pipeline, by its name, or of the run, which has none here."""

    of: str
    at: Place
    event: Event


@dataclass(frozen=True)
class DagBody:
    """A DAG while its nodes are read: their names begin with ``base``, and nothing more begins if it is closed.

    ``round`` counts, for the run and each nested pipeline around a stage, how often it was tried again.
    """

    names: StageNames
    base: str
    round: tuple[int, ...]
    is_closed: bool = False


class StageReader:
    """Reads all nodes of a run once."""

    def __init__(self, pipeline: RunPipeline, nodes: Nodes, progress: Progress) -> None:
        """Take what is known of the run.

        Args:
            pipeline: its pipeline.
            nodes: the nodes of its workflow.
            progress: how far it is. If it is over, each stage has an end.
        """
        self._known, self._pipeline = pipeline, pipeline.pipeline
        self._nodes = nodes
        self._progress = progress
        self._steps: list[Step] = []
        #: The time of the last step of each stage.
        self._clocks: dict[str, float] = {}
        self._attempts: Counter[str] = Counter()
        #: The names of the nodes of the last drivers of stages, by the stages' names.
        self.drivers: dict[str, str] = {}

    def read(self) -> list[Step]:
        """Return the steps of all stages so far, in the order of their times."""
        workflow, root = self._nodes.workflow, self._pipeline.root
        run = DagBody(StageNames(), "", (), self._progress.is_over)
        bodies = [
            body
            for _, whole in (self._bodies(workflow, run) if workflow else ())
            for body in self._bodies(f"{whole.base}.root", whole)
        ]
        # Nothing begins in an attempt whose root is omitted because its driver has failed, so only one attempt
        # reports it.
        for _, body in [each for each in bodies if each[0].state is not State.NOT_RUN] or bodies[-1:]:
            self._dag(root, body)
        if not bodies:
            self._dag(root, run)
            self._pending_group(root, StageNames(), f"{workflow}(0).root-driver", run.round)
        # The sort keeps the order of steps with equal times.
        return sorted(self._steps, key=lambda step: step.event.time)

    # DAGs

    def _bodies(self, name: str, scope: DagBody, names: StageNames | None = None) -> list[tuple[Node, DagBody]]:
        """Return the attempts at a node of a DAG. Nothing more begins in one that has ended, or that another follows.

        Args:
            name: the node's name.
            scope: the DAG around it.
            names: the names of the stages inside, if they are others than in the scope.
        """
        bodies, found = self._nodes.attempts(name), []
        for index, body in enumerate(bodies):
            is_closed = scope.is_closed or body.state.is_over or index + 1 < len(bodies)
            found.append((body, DagBody(names or scope.names, body.name, (*scope.round, index), is_closed)))
        return found

    def _dag(self, component: Component, scope: DagBody) -> TaskOutcome:
        """Read the tasks of a DAG."""
        dag = component.as_dag()
        ends: dict[str, TaskOutcome] = {}
        for task in dag.ordered:
            ends[task.name] = self._task(task, ends, scope, dag)
        if scope.is_closed:
            for task in dag.ordered:
                if ends[task.name].state is None and not task.runs_always:
                    ends[task.name] = self._not_begun(task, ends, scope, dag)
                if ends[task.name].state is None:
                    ends[task.name] = self._never(task, scope, ends.values())
        if any(end.state is None for end in ends.values()):
            return TaskOutcome()
        counted = [end for name, end in ends.items() if not reasons.is_ignored(dag.tasks[name], end.state)]
        failed = [name for end in ends.values() if end.state is State.FAILED for name in end.failed or [end.name]]
        return together(counted, failed, max((end.time for end in ends.values()), default=self._progress.started_at))

    def _task(self, task: Task, ends: Mapping[str, TaskOutcome], scope: DagBody, dag: Dag) -> TaskOutcome:
        component = self._pipeline.component_of(task)
        for base in () if dag.hook_before(task) else self._bases(task, scope):
            if self._has_begun(task, base):
                inner = DagBody(scope.names, base, scope.round, scope.is_closed)
                if component.dag is None:
                    return self._stage(task, component, inner)
                return self._loop(task, component, inner) if task.loop else self._group(task, component, inner)
        return self._not_begun(task, ends, scope, dag)

    def _bases(self, task: Task, scope: DagBody) -> list[str]:
        """Return the names of nodes around the task: an exit task is a hook of each task before it."""
        if not task.runs_always or not task.depends_on:
            return [scope.base]
        hooks = [f"{scope.base}.{upstream}.onExit" for upstream in task.depends_on]
        return [attempts[-1].name for hook in hooks if (attempts := self._nodes.attempts(hook))]

    def _has_begun(self, task: Task, base: str) -> bool:
        name = f"{base}.{task.name}"
        first = self._nodes.get(f"{name}-driver") or self._nodes.get(name)
        return first is not None and first.state not in (State.SKIPPED, State.NOT_RUN)

    def _not_begun(self, task: Task, ends: Mapping[str, TaskOutcome], scope: DagBody, dag: Dag) -> TaskOutcome:
        """Decide on a task without nodes."""
        before = [ends[name] for name in task.depends_on]
        state, reason = reasons.after_upstream(dag, task, before)
        if state.is_pending:
            return TaskOutcome()
        return self._pass_over(task, scope, state, reason, max(end.time for end in before))

    def _never(
        self, task: Task, scope: DagBody, others: Iterable[TaskOutcome], *, iteration: StageNames | None = None
    ) -> TaskOutcome:
        """Report that a task, or an iteration of a loop, does not begin any more, unless a later answer may say why.

        Args:
            task: the task.
            scope: the scope, in which nothing more begins.
            others: the ends of the other tasks or iterations in it.
            iteration: the names of the stages in the iteration.
        """
        failed = next((each.failed or [each.name] for each in others if each.state is State.FAILED), None)
        if self._progress.last.canceled_at is not None:
            why = _CANCELED
        elif failed:
            why = reasons.not_run(reasons.ends_the_run(failed[0]))
        elif self._progress.is_over:
            why = NO_START
        else:
            return TaskOutcome()
        time = self._progress.last.ended_at or max([*(each.time for each in others), self._progress.started_at])
        return self._pass_over(task, scope, State.NOT_RUN, why, time, iteration=iteration)

    def _pass_over(
        self,
        task: Task,
        scope: DagBody,
        state: State,
        reason: str,
        time: float,
        *,
        iteration: StageNames | None = None,
    ) -> TaskOutcome:
        """Report that a task and all stages inside it do not run, or those of one iteration of a loop."""
        component = self._pipeline.component_of(task)
        if component.dag is None:
            names = [(scope.names.of(task.name), task.name)]
        else:
            inside = iteration or scope.names.inside(task)
            names = [(place.name, place.task.name) for place in self._inside(component, inside)]
        for name, of in names:
            self._finish(StageResult(name, of, state, reason=reason), scope, time)
        group = names[0][0] if task.is_group and names else scope.names.of(task.name)
        return TaskOutcome(group, state, reason == _CANCELED, time)

    # Groups of tasks

    def _group(self, task: Task, component: Component, scope: DagBody) -> TaskOutcome:
        """Read a nested pipeline or a branch."""
        path = f"{scope.base}.{task.name}"
        driver, node = self._nodes.get(f"{path}-driver"), self._nodes.get(path)
        if driver is not None and driver.state is State.FAILED:
            return self._unprepared(task, driver, scope)
        if node is None:
            self._pending_group(component, scope.names.inside(task), f"{path}-driver", scope.round)
        if node is None or node.state is State.NOT_RUN:
            return TaskOutcome()
        if node.state is State.SKIPPED:
            return self._pass_over(task, scope, State.SKIPPED, reasons.CONDITION_IS_FALSE, self._time(node.start))
        end, before = TaskOutcome(), 0
        for body, inner in self._bodies(path, scope, scope.names.inside(task)):
            if before and not task.is_group:
                name, start = scope.names.of(task.name), self._time(body.start, end.time)
                failed = reasons.failed_in(end.failed)
                retried = PipelineRetried(name, before, failed, max(0.0, start - end.time), time=end.time)
                self._report(name, retried, before, scope.round)
            end, before = self._dag(component, inner), before + 1
        return self._group_end(task, component, node, end, scope)

    def _group_end(self, task: Task, component: Component, node: Node, end: TaskOutcome, scope: DagBody) -> TaskOutcome:
        state = node.state if node.state in (State.SUCCEEDED, State.FAILED) else end.state if scope.is_closed else None
        if state is None:
            return TaskOutcome()
        end.state, end.name, end.time = state, scope.names.of(task.name), self._time(node.end, end.time)
        if end.is_canceled and state is not State.SUCCEEDED:
            end.state = State.CANCELED
        if task.is_group:
            first = next((place.name for place in self._inside(component, scope.names.inside(task))), end.name)
            end.name = listed(end.failed, reasons.MOST_NAMED) or first
        else:
            end.failed = []
        return end

    def _loop(self, task: Task, component: Component, scope: DagBody) -> TaskOutcome:
        node = self._nodes.get(f"{scope.base}.{task.name}")
        if node is None:
            return TaskOutcome()
        end = TaskOutcome()
        for _, inner in self._bodies(node.name, scope):
            end = self._iterations(task, component, inner)
        if end.state in (State.SKIPPED, State.NOT_RUN):
            return end
        return self._group_end(task, component, node, end, scope)

    def _iterations(self, task: Task, component: Component, scope: DagBody) -> TaskOutcome:
        """Read the iterations of a loop; ``scope`` is the loop's own node."""
        driver = self._nodes.get(f"{scope.base}.iteration-driver")
        group = self._nodes.get(f"{scope.base}.iteration-iterations")
        if driver is not None and driver.state is State.FAILED:
            return self._unprepared(task, driver, scope)
        is_empty = group is not None and group.state is State.SKIPPED and task.condition is None
        if group is not None and group.state is State.SKIPPED and not is_empty:
            return self._pass_over(task, scope, State.SKIPPED, reasons.CONDITION_IS_FALSE, self._time(group.start))
        items: list[Node] = []
        while (item := self._nodes.get(f"{scope.base}.iteration-iterations({len(items)}:{len(items)})")) is not None:
            items.append(item)
        count = 0 if is_empty else self._count(task, driver, len(items), scope)
        if group is None or count is None:
            return TaskOutcome()
        names = [
            without_indices(place.name)
            for place in self._inside(component, scope.names.inside(task))
            if not place.looped
        ]
        time = self._time(group.start)
        name = scope.names.of(task.name)
        self._report(name, LoopStarted(name, count, tuple(names), time=time), count, scope.round)
        ends = [self._iteration(task, component, scope, index, item) for index, item in enumerate(items)]
        if scope.is_closed:
            ends += [
                self._never(task, scope, ends, iteration=scope.names.inside_iteration(index))
                for index in range(len(items), count)
            ]
        if len(ends) < count or any(end.state is None for end in ends):
            return TaskOutcome()
        failed = [name for end in ends for name in end.failed]
        return together(ends, failed, time)

    def _count(self, task: Task, driver: Node | None, seen: int, scope: DagBody) -> int | None:
        """Return the number of iterations, as far as it is known; None if it is not."""
        found = driver.decision("iteration-count") if driver is not None else ""
        known = self._known.items.get(without_indices(scope.names.of(task.name)))
        if found.isdecimal() and len(found) < 10:
            known = int(found)
        if known is None:
            return seen or (0 if scope.is_closed and not self._progress.is_over else None)
        return max(seen, min(known, _MOST_ITERATIONS))

    def _iteration(self, task: Task, component: Component, scope: DagBody, index: int, item: Node) -> TaskOutcome:
        names, end = scope.names.inside_iteration(index), TaskOutcome()
        for _, whole in self._bodies(item.name, scope, names):
            name = f"{whole.base}.iteration-item"
            driver = self._nodes.get(f"{name}-driver")
            bodies = self._bodies(name, whole)
            if driver is not None and driver.state is State.FAILED:
                end = self._unprepared(task, driver, whole)
            elif bodies and bodies[-1][0].state not in (State.SKIPPED, State.NOT_RUN):
                for _, body in bodies:
                    end = self._dag(component, body)
            else:
                end = self._never(task, whole, (), iteration=names) if whole.is_closed else TaskOutcome()
        return end

    def _unprepared(self, task: Task, driver: Node, scope: DagBody) -> TaskOutcome:
        """Report that KFP's driver has failed before a task."""
        time = self._time(driver.end, driver.start)
        if self._progress.is_canceled(driver.end):
            return self._pass_over(task, scope, State.NOT_RUN, _CANCELED, time)
        name = scope.names.of(task.name)
        reason = f"could not be prepared: {reason_of_driver(self._nodes, driver)}"
        self._finish(StageResult(name, task.name, State.FAILED, reason=clean(reason)), scope, time)
        return TaskOutcome(name, State.FAILED, time=time)

    # Stages

    def _stage(self, task: Task, component: Component, scope: DagBody) -> TaskOutcome:
        name, path = scope.names.of(task.name), f"{scope.base}.{task.name}"
        driver, node = self._nodes.get(f"{path}-driver"), self._nodes.get(path)
        if component.importer is not None or is_volume_task(component):
            return self._pod_of_kfp(task, component, node, scope)
        first = driver or node
        assert first is not None
        self._report(name, StageWaiting(name, task.name, time=self._time(first.start)), 0, scope.round)
        if driver is not None and driver.state is State.FAILED:
            return self._unprepared(task, driver, scope)
        if node is not None and node.state is State.SKIPPED:
            return self._pass_over(task, scope, State.SKIPPED, reasons.CONDITION_IS_FALSE, self._time(node.start))
        pods = [pod for body in self._nodes.attempts(path) for pod in self._nodes.attempts(f"{body.name}.executor")]
        starting = [*self._nodes.attempts(f"{path}-driver")[-1:], *pods[-1:]]
        if driver is not None:
            self.drivers[name] = starting[0].name
        is_skipped = bool(pods) and pods[-1].state is State.SKIPPED
        pods = [pod for pod in pods if pod.state is not State.SKIPPED]
        begun = [pod for pod in pods if pod.has_begun]
        self._report_attempts(task, pods, scope, is_over=node is not None and node.state.is_over)
        self._pending(name, task.name, starting, scope.round)
        last = begun[-1] if begun else None
        is_cached = last is None and (is_skipped or (not pods and node is not None and node.state is State.SUCCEEDED))
        state, reason, end = end_of_stage(self._progress, node, last, is_cached=is_cached)
        if state is None:
            return TaskOutcome()
        exit_code = exit_of(last)[0] if last is not None and state is State.FAILED else None
        if last is not None and last.state is State.SUCCEEDED:
            exit_code = 0
        pod = last.pod if last is not None else ""
        tracked = self._known.tracked.get(without_indices(name)) if pod else None
        run_id = f"{self._progress.run_id}/{tracked.facts.stage}/{pod}" if tracked else ""
        started = begun[0].start if begun else None
        time = self._time(end, started)
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
            run_id=run_id if is_run_id(run_id, self._progress.run_id) else None,
            tracker_base=tracked.tracker_base if tracked else None,
            started_at=started,
        )
        self._finish(result, scope, time)
        is_canceled = state is State.CANCELED or (
            state is State.NOT_RUN and self._progress.last.canceled_at is not None
        )
        return TaskOutcome(name, state, is_canceled, time)

    def _report_attempts(self, task: Task, pods: Sequence[Node], scope: DagBody, *, is_over: bool) -> None:
        """Report the attempts that have begun, after those in earlier rounds."""
        name, period = scope.names.of(task.name), self._progress.last
        is_over = is_over or period.state.is_over or period.canceled_at is not None
        for index, pod in enumerate(pods):
            if not pod.has_begun:
                continue
            self._attempts[name] += 1
            number = self._attempts[name]
            started = StageStarted(name, pod.pod, number, task.name, time=self._time(pod.start))
            self._report(name, started, 2 * number, scope.round)
            if pod.state is not State.FAILED:
                continue
            end = self._time(pod.end, pod.start)
            if index + 1 < len(pods):
                delay = max(0.0, self._time(pods[index + 1].start, end) - end)
            elif task.retry is not None and index < task.retry.count and not is_over:
                delay = task.retry.delay(index + 1)
            else:
                continue
            retried = StageRetried(name, number, clean(exit_of(pod)[1]), delay, time=end)
            self._report(name, retried, 2 * number + 1, scope.round)

    def _pod_of_kfp(self, task: Task, component: Component, node: Node | None, scope: DagBody) -> TaskOutcome:
        """Read a task that KFP does by itself: an import, or a volume claim that is made or deleted."""
        name = scope.names.of(task.name)
        if node is None:
            return TaskOutcome()
        pods = self._nodes.attempts(node.name)
        self._pending(name, task.name, pods[-1:], scope.round)
        time = self._time(node.end, node.start)
        state, reason, failed = node.state, "", ""
        if state is State.FAILED:
            if self._progress.is_canceled(node.end):
                return self._pass_over(task, scope, State.NOT_RUN, _CANCELED, time)
            reason = exit_of(self._nodes.failed_attempt(node), is_import=component.importer is not None)[1]
            if component.importer is not None:
                # Its log says why.
                self._report_attempts(task, pods, scope, is_over=True)
                failed = pods[-1].pod
        elif state is not State.SUCCEEDED:
            if self._progress.last.state is not State.SUCCEEDED:
                return TaskOutcome()
            state = State.SUCCEEDED
        result = StageResult(
            name, task.name, state, reason=clean(reason), attempts=len(pods) if failed else 0, pod_name=failed,
            started_at=node.start,
        )  # fmt: skip
        self._finish(result, scope, time)
        return TaskOutcome(name, state, time=time)

    def _pending(self, name: str, task: str, pods: Iterable[Node], round_: tuple[int, ...]) -> None:
        """Report what the first of these pods that has not begun waits for."""
        if pod := next((pod for pod in pods if pod.state is State.QUEUED and pod.pod), None):
            event = StagePending(name, task, pending_reason(pod), time=self._time(pod.start))
            self._report(name, event, 2 * self._attempts[name] + 1, round_)

    def _pending_group(self, component: Component, names: StageNames, driver: str, round_: tuple[int, ...]) -> None:
        """Report what KFP's driver of a group waits for, at the first stage of the group."""
        if first := next((place for place in self._inside(component, names) if not place.looped), None):
            self._pending(first.name, first.task.name, self._nodes.attempts(driver)[-1:], round_)

    # Helpers

    def _time(self, *times: float | None) -> float:
        return next((time for time in times if time is not None), self._progress.started_at)

    def _inside(self, component: Component, names: StageNames) -> Iterator[ScopedTask]:
        return (place for place in walk(self._pipeline, component, names) if place.is_stage)

    def _finish(self, result: StageResult, scope: DagBody, time: float) -> None:
        self._report(result.name, StageFinished(result, time=time), math.inf, scope.round)

    def _report(self, name: str, event: Event, number: float, round_: tuple[int, ...]) -> None:
        # Clocks of pods and of KFP differ: a step is not older than the one before it.
        time = self._clocks[name] = max(event.time, self._clocks.get(name, event.time))
        event = replace(event, time=time) if time > event.time else event
        self._steps.append(Step(name, (self._progress.period_at(time), round_, number), event))
