"""The nodes of a run's workflow, as Argo makes them from the compiled pipeline.

For each task there is a driver (``train-driver``), and a DAG (``train``) with the pod of the stage (``executor``), or
with the tasks of a nested pipeline or branch. A loop is a DAG with a driver, and a task group with a DAG for each
iteration. An importer, and a task that makes a volume claim, are one pod. An exit task is a hook of the task before it.

The local run has events of stages and loops: nested pipelines and branches begin and end with the tasks in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from torchx_kfp.execution.pipeline.spec import Component, Pipeline, Task, is_volume_task
from torchx_kfp.execution.pipeline.walk import StageNames
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp_dev_host.argo import Naming, Node, executor_template, is_hook
from torchx_kfp_dev_host.facts import Facts, TaskFacts
from torchx_kfp_dev_host.pod_spec import pod_spec_patch

OMITTED = "omitted: depends condition not met"
_CONDITION_FALSE = "when 'false != false' evaluated false"
_CACHED = "when 'true != true' evaluated false"
_DEADLINE = "Step exceeded its deadline"
#: The exit code of a stage's pod, whatever that of the stage is: KFP's launcher is its process. Second, if it is ended.
_FAILS, _TERMINATED = 1, 143


@dataclass(frozen=True)
class Ended:
    """The end of a task: its state in the local run, reason and time."""

    state: State
    reason: str
    time: float


@dataclass(frozen=True)
class Course:
    """The course of a task or DAG: its start and its end.

    ``passed_over`` is why nothing in it ran: the same reason for all stages.
    """

    begun: float | None = None
    ended: Ended | None = None
    passed_over: str = ""

    @property
    def is_omitted(self) -> bool:
        """Whether it never started because of an earlier task or the end of the run."""
        return self.passed_over.startswith("was not run")


@dataclass(frozen=True)
class Dag:
    """A DAG of the workflow: the names of the stages in it, and the facts about them."""

    component: Component
    names: StageNames
    facts: Facts
    node: str


def make_nodes(pipeline: Pipeline, facts: Facts, names: Naming) -> dict[str, Node]:
    """Return the nodes by name, roughly in the order in which Argo makes them."""
    return _Tree(pipeline, facts, names).nodes


class _Tree:
    def __init__(self, pipeline: Pipeline, facts: Facts, names: Naming) -> None:
        self._pipeline = pipeline
        self._names = names
        self.nodes: dict[str, Node] = {}
        #: When the run was over, and its end before those of its tasks.
        self._over = facts.over.time if facts.over else None
        self._ending = facts.ending
        if facts.started is None:
            return
        end = None
        if facts.over:
            state = State.SUCCEEDED if facts.over.state is State.SUCCEEDED else State.FAILED
            end = Ended(state, "", facts.over.time)
        root = Dag(pipeline.root, StageNames(), facts, names.root)
        opened = self._course_of(root).begun or self._over
        entry = self._add(names.workflow, "DAG", "entrypoint", facts.started.time, end)
        self._driver(f"{entry}.root-driver", facts.started.time, opened)
        if opened is not None:
            self._add(f"{entry}.root", "DAG", "root", opened, end)
            self._scope(root)

    # What the stages say about the tasks around them

    def _course_of(self, dag: Dag) -> Course:
        """Return the course of the tasks in a DAG."""
        tasks = dag.component.as_dag().tasks.values()
        return _together((task, self._course(dag, task)) for task in tasks)

    def _course(self, dag: Dag, task: Task) -> Course:
        """Return the course of a task."""
        component, name = self._pipeline.component_of(task), dag.names.of(task.name)
        facts = dag.facts.tasks.get(name, _UNKNOWN)
        if facts.finished is not None:
            result, when = facts.finished.result, facts.finished.time
            passed = not facts.attempts and result.state in (State.NOT_RUN, State.SKIPPED)
            began = facts.waiting or (facts.loop.time if facts.loop else when)
            return Course(began, Ended(result.state, result.reason, when), result.reason if passed else "")
        if component.dag is None:
            return Course(facts.waiting)
        if facts.loop is not None:
            return self._course_of_loop(dag, task, facts.loop.time, facts.loop.iterations)
        course = self._course_of(self._body(dag, task))
        if course.passed_over:
            if course.is_omitted or (task.condition is not None and course.passed_over == reasons.CONDITION_IS_FALSE):
                return course
            assert course.ended
            course = Course(course.begun, replace(course.ended, state=State.SUCCEEDED, reason=""))
        return course

    def _course_of_loop(self, dag: Dag, task: Task, begun: float, iterations: int) -> Course:
        courses = [self._course_of(self._iteration_of(dag, task, index)) for index in range(iterations)]
        ended = _together((task, course) for course in courses).ended if courses else Ended(State.SUCCEEDED, "", begun)
        return Course(begun, ended)

    def _body(self, dag: Dag, task: Task) -> Dag:
        """Return the DAG of a nested pipeline, or of another group."""
        node = self._names.attempt(self._node_of(dag, task))
        return Dag(self._pipeline.component_of(task), dag.names.inside(task), dag.facts, node)

    def _iteration_of(self, dag: Dag, task: Task, index: int) -> Dag:
        names, node = dag.names.inside_iteration(index), self._names.iteration(self._node_of(dag, task), index)
        return Dag(self._pipeline.component_of(task), names, dag.facts, node)

    def _node_of(self, dag: Dag, task: Task) -> str:
        return self._names.task(dag.node, task)

    # Nodes

    def _add(
        self,
        name: str,
        kind: str,
        template: str,
        begin: float,
        end: Ended | None,
        *,
        fails: int = _FAILS,
        message: str = "",
        outputs: Mapping[str, str] | None = None,
    ) -> str:
        """Add a node, as a Retry and as its first attempt. Return the name of the latter."""
        first = self._attempt(name, 0, kind, template, begin, end, fails)
        node = self.nodes[first]
        node.message, node.outputs = node.message or message, dict(outputs or {})
        told = node.message
        if self._ending and node.phase == "Failed":
            deadline = time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(self._ending.time))
            told = f"retry exceeded workflow deadline {deadline}"
        self.nodes[name] = replace(node, name=name, type="Retry", message=told)
        return first

    def _attempt(
        self, name: str, number: int, kind: str, template: str, begin: float, end: Ended | None, fails: int = _FAILS
    ) -> str:
        """Add an attempt of a node. Return its name; ``fails`` is the exit code of a pod that fails."""
        attempt, phase = self._names.attempt(name, number), "Running"
        message, code = _exit(end, fails) if kind == "Pod" else ("", "")
        if end is None and self._over is not None:
            end = Ended(State.FAILED, "", self._over)
        if end is not None:
            phase = "Failed" if end.state in (State.FAILED, State.CANCELED) else "Succeeded"
        ended = end.time if end is not None else None
        self.nodes[attempt] = Node(attempt, kind, template, phase, begin, ended, message, exit_code=code)
        return attempt

    def _skip(self, name: str, template: str, when: float, phase: str, message: str) -> None:
        self.nodes[name] = Node(name, "Skipped", template, phase, when, when, message)

    # Tasks

    def _scope(self, dag: Dag) -> None:
        """Add the tasks of a DAG."""
        tasks = dag.component.as_dag().tasks
        graph = {name: tasks[name].depends_on for name in sorted(tasks)}
        for name in TopologicalSorter(graph).static_order():
            task, node, course = tasks[name], self._node_of(dag, tasks[name]), self._course(dag, tasks[name])
            if is_hook(task):
                self._hook(dag, task, course)
            elif not all(self._is_over(f"{dag.node}.{other}") for other in task.depends_on):
                continue
            elif course.is_omitted or (course.begun is None and self._is_settled):
                when = course.ended.time if course.ended else self._over
                assert when is not None
                self._omit(task, node, when)
            elif course.begun is not None:
                self._task(dag, task, course.begun, course.ended)

    @property
    def _is_settled(self) -> bool:
        return self._ending is not None and self._over is not None

    def _is_over(self, task: str) -> bool:
        return task in self.nodes and self.nodes[task].ended is not None

    def _hook(self, dag: Dag, task: Task, course: Course) -> None:
        parent, begun, ended = f"{dag.node}.{task.depends_on[0]}", course.begun, course.ended
        if begun is None or parent not in self.nodes or (ended and "in its place" in ended.reason):
            return
        self._add(f"{parent}.onExit", "DAG", f"exit-hook-{dag.component.name}-{task.name}", begun, ended)
        self._task(dag, task, begun, ended)

    def _omit(self, task: Task, node: str, when: float) -> None:
        component = self._pipeline.component_of(task)
        if task.loop is None and not _is_one_pod(component):
            driver = "system-dag-driver" if component.dag is not None else "system-container-driver"
            self._skip(f"{node}-driver", driver, when, "Omitted", OMITTED)
        self._skip(node, self._template(task, component), when, "Omitted", OMITTED)

    def _template(self, task: Task, component: Component) -> str:
        if task.loop is not None:
            return f"{component.name}-{task.name}-iterator"
        if component.dag is not None:
            return component.name
        if component.importer is not None:
            return "system-importer"
        if is_volume_task(component):
            return "system-container-driver"
        return _executor(task, component).replace("-impl", "-executor")

    def _task(self, dag: Dag, task: Task, begun: float, ended: Ended | None) -> None:
        component = self._pipeline.component_of(task)
        if task.loop is not None:
            self._loop(dag, task, begun, ended)
        elif component.dag is not None:
            self._group(dag, task, begun, ended)
        elif _is_one_pod(component):
            # KFP's importer ends with 2 after a line of Go's log that is fatal.
            first = self._add(self._node_of(dag, task), "Pod", self._template(task, component), begun, ended, fails=2)
            self.nodes[first].stage = dag.names.of(task.name)
        else:
            self._stage(dag, task, begun)

    def _driver(
        self,
        node: str,
        begun: float,
        done: float | None,
        *,
        failed: bool = False,
        template: str = "system-dag-driver",
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        """Add a driver; ``done`` is its end, and ``outputs`` are its decisions."""
        end = None if done is None else Ended(State.FAILED if failed else State.SUCCEEDED, "", done)
        said = {"iteration-count": "0"} if template == "system-dag-driver" else {}
        said.update(outputs or {})
        message = _DEADLINE if end is None and self._over else ""
        self._add(node, "Pod", template, begun, end, message=message, outputs={} if end is None or failed else said)

    def _group(self, dag: Dag, task: Task, begun: float, ended: Ended | None) -> None:
        """Add a nested pipeline, a branch, or the tasks that an exit task follows."""
        component, node = self._pipeline.component_of(task), self._node_of(dag, task)
        failed = dag.facts.tasks.get(dag.names.of(task.name), _UNKNOWN).finished is not None
        skipped = ended is not None and ended.state is State.SKIPPED
        self._driver(f"{node}-driver", begun, begun, failed=failed)
        if skipped:
            self._skip(node, component.name, begun, "Skipped", _CONDITION_FALSE)
        elif failed:
            self._skip(node, component.name, begun, "Omitted", OMITTED)
        else:
            self._add(node, "DAG", component.name, begun, ended)
            body = self._body(dag, task)
            if self._course_of(body).begun is not None:
                self._scope(body)

    def _loop(self, dag: Dag, task: Task, begun: float, ended: Ended | None) -> None:
        component, node = self._pipeline.component_of(task), self._node_of(dag, task)
        known = dag.facts.tasks[dag.names.of(task.name)].loop
        inner = self._add(node, "DAG", self._template(task, component), begun, ended)
        count = {} if known is None else {"iteration-count": str(known.iterations)}
        self._driver(f"{inner}.iteration-driver", begun, begun, failed=known is None, outputs=count)
        group, template = f"{inner}.iteration-iterations", f"{component.name}-iteration"
        if known is None:
            self._skip(group, template, begun, "Omitted", OMITTED)
        elif not known.iterations:
            self._skip(group, template, begun, "Skipped", "Skipped, empty params")
        else:
            if ended is None and self._over is not None:
                ended = Ended(State.FAILED, "", self._over)
            phase = "Running" if ended is None else "Succeeded" if ended.state is State.SUCCEEDED else "Failed"
            self.nodes[group] = Node(group, "TaskGroup", template, phase, begun, ended.time if ended else None)
            for index in range(known.iterations):
                self._iteration(f"{group}({index}:{index})", self._iteration_of(dag, task, index))

    def _iteration(self, name: str, dag: Dag) -> None:
        course = self._course_of(dag)
        if course.begun is not None:
            template = dag.component.name
            iteration = self._add(name, "DAG", f"{template}-iteration", course.begun, course.ended)
            self._driver(f"{iteration}.iteration-item-driver", course.begun, course.begun)
            self._add(f"{iteration}.iteration-item", "DAG", template, course.begun, course.ended)
            self._scope(dag)

    # Stages

    def _stage(self, dag: Dag, task: Task, begun: float) -> None:
        component, node, stage = self._pipeline.component_of(task), self._node_of(dag, task), dag.names.of(task.name)
        facts = dag.facts.tasks[stage]
        finished = facts.finished
        result = finished.result if finished else None
        is_cached = result is not None and result.state is State.CACHED
        failed = result is not None and facts.driven is None and result.state is State.FAILED
        done = facts.driven
        if done is None and finished and (is_cached or failed):
            done = finished.time
        patch = ""
        if facts.attempts and not is_cached:
            first = facts.attempts[0]
            patch = pod_spec_patch(component, {**first.inputs, **first.artifacts})
        outputs = {"pod-spec-patch": patch, "cached-decision": str(is_cached).lower()}
        self._driver(
            f"{node}-driver", begun, done, failed=failed, template="system-container-driver", outputs=outputs
        )  # fmt: skip
        template = _executor(task, component)
        outer = template.replace("-impl", "-executor")
        if done is None or failed:
            when = done if done is not None else self._over if self._is_settled else None
            if when is not None:
                self._skip(node, outer, when, "Omitted", OMITTED)
            return
        ended = Ended(result.state, result.reason, finished.time) if finished and result else None
        executor = f"{self._add(node, 'DAG', outer, done, ended)}.executor"
        if is_cached:
            self._skip(executor, template, done, "Skipped", _CACHED)
        elif facts.attempts:  # otherwise the run is being retried
            self._pods(stage, facts, executor, template, ended)

    def _pods(self, stage: str, facts: TaskFacts, executor: str, template: str, ended: Ended | None) -> None:
        """Add a stage's pods."""
        attempts, retried = facts.attempts, facts.retried
        self._add(executor, "Pod", template, attempts[0].time, ended)
        for number, attempt in enumerate(attempts, 1):
            name = self._names.attempt(executor, number - 1)
            if number > 1:
                self._attempt(executor, number - 1, "Pod", template, attempt.time, ended)
            self.nodes[name].stage, self.nodes[name].started_as = stage, attempt
            if number <= len(retried):
                message_then, code_then = _exit(Ended(State.FAILED, "", 0))
                self._end_attempt(name, retried[number - 1].time, message_then, code_then)
                if number == len(attempts) and ended is None and self._over is None:
                    # It waits for the next attempt.
                    self.nodes[executor].message = f"Backoff for {retried[-1].delay:g} s"

    def _end_attempt(self, name: str, when: float, message: str = "", exit_code: str = "") -> None:
        """Mark an attempt as failed, before the next one."""
        node = self.nodes[name]
        node.phase, node.ended, node.message, node.exit_code = "Failed", when, message, exit_code


#: Nothing is known of a task.
_UNKNOWN = TaskFacts()


def _together(courses: Iterable[tuple[Task, Course]]) -> Course:
    """Return the course of a DAG with these tasks."""
    known = list(courses)
    begun = min((course.begun for _, course in known if course.begun is not None), default=None)
    ends = [(task, course.ended) for task, course in known if course.ended is not None]
    if not known or len(ends) < len(known):
        return Course(begun)
    time = max(end.time for _, end in ends)
    passed_over, *others = {course.passed_over for _, course in known}
    if passed_over and not others:
        return Course(begun, Ended(ends[0][1].state, passed_over, time), passed_over)
    failed = any(
        end.state in (State.NOT_RUN, State.CANCELED)
        or (end.state is State.FAILED and not reasons.is_ignored(task, end.state))
        for task, end in ends
    )
    return Course(begun, Ended(State.FAILED if failed else State.SUCCEEDED, "", time))


def _is_one_pod(component: Component) -> bool:
    return component.importer is not None or is_volume_task(component)


def _executor(task: Task, component: Component) -> str:
    return executor_template(component.platform.get("podMetadata"), retries=task.retry is not None)


def _exit(ended: Ended | None, fails: int = _FAILS) -> tuple[str, str]:
    """Return the message and the exit code of a pod."""
    if ended is None:
        return "", ""
    if ended.state in (State.FAILED, State.CANCELED):
        code = _TERMINATED if ended.state is State.CANCELED else fails
        return f"main: Error (exit code {code})", str(code)
    return "", "0"
