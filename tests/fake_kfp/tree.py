"""The nodes of a run's workflow, as Argo makes them from what KFP's compiler makes of a pipeline.

For each task there is a driver (``train-driver``), and a DAG (``train``) with the pod of the stage (``executor``), or
with the tasks of a nested pipeline or branch. A loop is a DAG with a driver, and a task group with a DAG for each
iteration. An importer, and a task that makes a volume claim, are one pod. An exit task is a hook of the task before it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from graphlib import TopologicalSorter

from tests.fake_kfp.argo import Naming, Node, executor_template, pull_problem
from tests.fake_kfp.facts import Ended, Facts, given_to
from tests.fake_kfp.pod_spec import pod_spec_patch
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, Task, is_volume_task
from torchx_kfp.execution.runs.vocabulary import State

OMITTED = "omitted: depends condition not met"
_CONDITION_FALSE = "when 'false != false' evaluated false"
_CACHED = "when 'true != true' evaluated false"
_DEADLINE = "Step exceeded its deadline"
#: The exit code of a stage's pod, whatever that of the stage is: KFP's launcher is its process. Second, if it is ended.
_FAILS, _TERMINATED = 1, 143


def make_nodes(pipeline: Pipeline, facts: Facts, names: Naming) -> dict[str, Node]:
    """Return the nodes by their names, in the order in which Argo makes them, more or less."""
    return _Tree(pipeline, facts, names).nodes


class _Tree:
    def __init__(self, pipeline: Pipeline, facts: Facts, names: Naming) -> None:
        self._pipeline = pipeline
        self._facts = facts
        self._names = names
        self.nodes: dict[str, Node] = {}
        #: When the run was over, and whether it was ended before its tasks were.
        self._over = facts.over.time if facts.over else None
        self._is_cut = facts.ending is not None
        if facts.started is None:
            return
        end = None
        if facts.over:
            state = State.SUCCEEDED if facts.over.state is State.SUCCEEDED else State.FAILED
            end = Ended(state, "", facts.over.time)
        entry = self._add(names.workflow, "DAG", "entrypoint", facts.started.time, end)
        self._driver(f"{entry}.root-driver", facts.started.time, facts.opened.get(names.root))
        if names.root in facts.opened:
            self._scope(pipeline.root, self._add(f"{entry}.root", "DAG", "root", facts.opened[names.root], end))

    # Nodes

    def _add(
        self,
        name: str,
        kind: str,
        template: str,
        begin: float,
        end: Ended | None,
        *,
        message: str = "",
        exit_code: str = "",
        outputs: Mapping[str, str] | None = None,
    ) -> str:
        """Add a node, as a Retry and as its first attempt. Return the name of the latter."""
        first = self._attempt(name, 0, kind, template, begin, end, message=message, exit_code=exit_code)
        told = message if kind == "Pod" else ""
        history = [each for each in self.nodes[first].history if each[0] != "Pending"]
        if self._is_cut and history[-1][0] == "Failed":
            told = f"retry exceeded workflow deadline {self._deadline()}"
        attempt = replace(self.nodes[first], outputs=dict(outputs or {}))
        self.nodes |= {name: replace(attempt, name=name, type="Retry", history=history, message=told), first: attempt}
        return first

    def _attempt(
        self,
        name: str,
        number: int,
        kind: str,
        template: str,
        begin: float,
        end: Ended | None,
        *,
        message: str = "",
        exit_code: str = "",
    ) -> str:
        """Add an attempt of a node. Return its name."""
        if end is None and self._over is not None:
            end = Ended(State.FAILED, "", self._over)
        history = [("Pending", begin)] if kind == "Pod" else []
        history.append(("Running", begin))
        if end is not None:
            history.append(("Failed" if end.state in (State.FAILED, State.CANCELED) else "Succeeded", end.time))
        attempt = self._names.attempt(name, number)
        ended = end.time if end is not None else None
        self.nodes[attempt] = Node(attempt, kind, template, history, ended, message, exit_code=exit_code)
        return attempt

    def _deadline(self) -> str:
        assert self._facts.ending
        return time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(self._facts.ending.time))

    def _skip(self, name: str, template: str, when: float, phase: str, message: str) -> None:
        self.nodes[name] = Node(name, "Skipped", template, [(phase, when)], when, message)

    # Tasks

    def _scope(self, component: Component, dag: str) -> None:
        """Add the tasks of a DAG."""
        tasks = component.as_dag().tasks
        graph = {name: tasks[name].depends_on for name in sorted(tasks)}
        for name in TopologicalSorter(graph).static_order():
            task, node = tasks[name], f"{dag}.{name}"
            if _is_hook(task):
                self._hook(component, task, dag)
                continue
            if not all(self._is_over(f"{dag}.{other}") for other in task.depends_on):
                continue
            begun, ended = self._facts.begun.get(node), self._facts.ended.get(node)
            if (ended and ended.is_omitted and not self._starts_anyway(node)) or (begun is None and self._is_settled):
                when = ended.time if ended else self._over
                assert when is not None
                self._omit(task, node, when)
            elif begun is not None:
                self._task(task, node, begun)

    @property
    def _is_settled(self) -> bool:
        return self._is_cut and self._over is not None

    def _is_over(self, task: str) -> bool:
        return task in self.nodes and self.nodes[task].ended is not None

    def _starts_anyway(self, node: str) -> bool:
        return self._facts.stages.get(node) in self._facts.attempts

    def _hook(self, component: Component, task: Task, dag: str) -> None:
        parent = f"{dag}.{task.depends_on[0]}"
        node = f"{self._names.attempt(f'{parent}.onExit')}.{task.name}"
        begun, ended = self._facts.begun.get(node), self._facts.ended.get(node)
        if begun is None or parent not in self.nodes or (ended and "in its place" in ended.reason):
            return
        self._add(f"{parent}.onExit", "DAG", f"exit-hook-{component.name}-{task.name}", begun, ended)
        self._task(task, node, begun)

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

    def _task(self, task: Task, node: str, begun: float) -> None:
        component = self._pipeline.component_of(task)
        if task.loop is not None:
            self._loop(task, component, node, begun)
        elif component.dag is not None:
            self._group(task, component, node, begun)
        elif _is_one_pod(component):
            ended = self._facts.ended.get(node)
            # KFP's importer ends with 2 after a line of Go's log that is fatal.
            message, code = _exit(ended, fails=2)
            self._add(node, "Pod", self._template(task, component), begun, ended, message=message, exit_code=code)
        else:
            self._stage(task, component, node, begun)

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
        """Add a driver; ``done`` is when it ended, and ``outputs`` what it has decided."""
        end = None if done is None else Ended(State.FAILED if failed else State.SUCCEEDED, "", done)
        message = f"main: Error (exit code {_FAILS})" if failed else _DEADLINE if end is None and self._over else ""
        code = "" if end is None else str(_FAILS if failed else 0)
        of_dag = {"execution-id": str(100 + len(self.nodes)), "iteration-count": "0", "condition": "nil"}
        said = {} if end is None or failed else {**of_dag, **(outputs or {})}
        if template != "system-dag-driver" and said:
            said = {"condition": "nil", **(outputs or {})}
        self._add(node, "Pod", template, begun, end, message=message, outputs=said, exit_code=code)

    def _group(self, task: Task, component: Component, node: str, begun: float) -> None:
        """Add a nested pipeline, a branch, or the tasks that an exit task follows."""
        facts, ended = self._facts, self._facts.ended.get(node)
        tries = [self._names.attempt(node)]
        while task.retry is not None and (again := self._names.attempt(node, len(tries))) in facts.opened:
            tries.append(again)
        opened = facts.opened.get(tries[0])
        done = opened if opened is not None else ended.time if ended else None
        failed = ended is not None and opened is None and ended.state is State.FAILED
        skipped = ended is not None and ended.state is State.SKIPPED
        condition = {} if task.condition is None else {"condition": "false" if skipped else "true"}
        self._driver(f"{node}-driver", begun, done, failed=failed, outputs=condition)
        if skipped and ended is not None:
            self._skip(node, component.name, ended.time, "Skipped", _CONDITION_FALSE)
        elif opened is not None:
            self._add(node, "DAG", component.name, opened, ended)
            for number, name in enumerate(tries[1:], 1):
                self._end_attempt(tries[number - 1], facts.opened[name])
                self._attempt(node, number, "DAG", component.name, facts.opened[name], ended)
            for name in tries:
                self._scope(component, name)
        elif failed and ended is not None:
            self._skip(node, component.name, ended.time, "Omitted", OMITTED)

    def _loop(self, task: Task, component: Component, node: str, begun: float) -> None:
        facts, ended = self._facts, self._facts.ended.get(node)
        items = facts.items.get(node)
        inner = self._add(node, "DAG", self._template(task, component), begun, ended)
        first = facts.opened.get(self._names.iteration(node, 0))
        done = first if first is not None else ended.time if ended else None
        failed = bool(ended and items is None and ended.reason)
        count = {} if items is None else {"iteration-count": str(items)}
        self._driver(f"{inner}.iteration-driver", begun, done, failed=failed, outputs=count)
        group, template = f"{inner}.iteration-iterations", f"{component.name}-iteration"
        if items == 0 and ended is not None:
            self._skip(group, template, ended.time, "Skipped", "Skipped, empty params")
        elif failed and ended is not None:
            self._skip(group, template, ended.time, "Omitted", OMITTED)
        elif first is not None:
            if ended is None and self._over is not None:
                ended = Ended(State.FAILED, "", self._over)
            history = [("Running", first)]
            if ended is not None:
                history.append(("Failed" if ended.state is not State.SUCCEEDED else "Succeeded", ended.time))
            self.nodes[group] = Node(group, "TaskGroup", template, history, ended.time if ended else None)
            for index in range(facts.items[node]):
                self._iteration(component, f"{group}({index}:{index})", self._names.iteration(node, index))

    def _iteration(self, component: Component, name: str, tasks: str) -> None:
        begin, end = self._facts.opened.get(tasks), self._facts.closed.get(tasks)
        if begin is not None:
            iteration = self._add(name, "DAG", f"{component.name}-iteration", begin, end)
            self._driver(f"{iteration}.iteration-item-driver", begin, begin)
            self._scope(component, self._add(f"{iteration}.iteration-item", "DAG", component.name, begin, end))

    # Stages

    def _stage(self, task: Task, component: Component, node: str, begun: float) -> None:
        facts = self._facts
        stage = facts.stages[node]
        attempts = facts.attempts.get(stage, [])
        finished = facts.finished.get(stage)
        result = finished.result if finished else None
        is_cached = result is not None and result.state is State.CACHED
        failed = result is not None and stage not in facts.driven and result.state is State.FAILED
        done = facts.driven.get(stage, finished.time if finished and (is_cached or failed) else None)
        patch = "" if is_cached or not attempts else pod_spec_patch(component, given_to(attempts[0]))
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
        elif attempts:  # otherwise the run is being retried
            self._pods(component, stage, executor, template, ended)

    def _pods(self, component: Component, stage: str, executor: str, template: str, ended: Ended | None) -> None:
        """Add a stage's pods."""
        attempts, retried = self._facts.attempts[stage], self._facts.retried.get(stage, [])
        message, code = _exit(ended)
        self._add(executor, "Pod", template, attempts[0].time, ended, message=message, exit_code=code)
        for number, attempt in enumerate(attempts, 1):
            name = self._names.attempt(executor, number - 1)
            if number > 1:
                self._attempt(
                    executor, number - 1, "Pod", template, attempt.time, ended, message=message, exit_code=code
                )  # fmt: skip
            self.nodes[name].stage, self.nodes[name].attempt = stage, number
            if component.container and (problem := pull_problem(component.container.image)):
                self.nodes[name].history = [each for each in self.nodes[name].history if each[0] != "Running"]
                self.nodes[name].message = self.nodes[name].message if ended or self._over else problem
            if number <= len(retried):
                message_then, code_then = _exit(Ended(State.FAILED, "", 0))
                self._end_attempt(name, retried[number - 1].time, message_then, code_then)
                if number == len(attempts) and ended is None and self._over is None:
                    # It waits for the next attempt.
                    self.nodes[executor].message = f"Backoff for {retried[-1].delay:g} s"

    def _end_attempt(self, name: str, when: float, message: str = "", exit_code: str = "") -> None:
        """Make an attempt one that has failed before the next one."""
        node = self.nodes[name]
        node.history = [each for each in node.history if each[0] in ("Pending", "Running")] + [("Failed", when)]
        node.ended, node.message, node.exit_code = when, message, exit_code


def _is_hook(task: Task) -> bool:
    return task.runs_always and bool(task.depends_on)


def _is_one_pod(component: Component) -> bool:
    return component.importer is not None or is_volume_task(component)


def _executor(task: Task, component: Component) -> str:
    return executor_template(component.platform.get("podMetadata"), retries=task.retry is not None)


def _exit(ended: Ended | None, *, fails: int = _FAILS) -> tuple[str, str]:
    """Return the message and the exit code of a pod."""
    if ended is None:
        return "", ""
    if ended.state in (State.FAILED, State.CANCELED):
        code = _TERMINATED if ended.state is State.CANCELED else fails
        return f"main: Error (exit code {code})", str(code)
    return "", "0"
