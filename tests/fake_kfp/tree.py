"""The nodes of a run's workflow, as Argo makes them from what KFP's compiler makes of a pipeline.

For each task there is a driver (``train-driver``), and a DAG (``train``) with the pod of the stage (``executor``), or
with the tasks of a nested pipeline or branch. A loop is a DAG with a driver, and a task group with a DAG for each
iteration. An importer, and a task that makes a volume claim, are one pod. An exit task is a hook of the task before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from tests.fake_kfp.argo import Naming, Node, executor_template, pull_problem
from tests.fake_kfp.facts import Ended, Facts, given_to
from tests.fake_kfp.pod_spec import pod_spec_patch
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, Task, volume_task
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
        started = facts.started
        #: When the run was over, and whether it was ended before its tasks were.
        self._over = facts.over.time if facts.over else None
        self._is_cut = facts.ending is not None
        if started is None:
            return
        end = self._end_of_run()
        entry = self._add(names.workflow, "DAG", "entrypoint", "", started.time, end)
        self._connect([entry], self._driver("root-driver", entry, started.time, self._facts.opened.get(names.root)))
        if names.root in facts.opened:
            outer = f"{entry}.root"
            inner = self._add(outer, "DAG", "root", entry, facts.opened[names.root], end, inputs=_inputs("dag"))
            self._connect([self._last(f"{entry}.root-driver")], outer)
            self._scope(pipeline.root, inner)
            self._close(inner, pipeline.root)
        if end is not None:
            self.nodes[entry].outbound = [self._last(f"{entry}.root")] if f"{entry}.root" in self.nodes else []

    def _end_of_run(self) -> Ended | None:
        over = self._facts.over
        return (
            Ended(State.SUCCEEDED if over.state is State.SUCCEEDED else State.FAILED, "", over.time) if over else None
        )

    # Nodes

    def _add(
        self,
        name: str,
        kind: str,
        template: str,
        boundary: str,
        begin: float,
        end: Ended | None,
        *,
        message: str = "",
        hooked: bool = False,
        **more: Any,
    ) -> str:
        """Add a node that is there twice if the workflow has defaults. Return the name of its attempt."""
        last = self._names.attempt(name)
        history = [("Running", begin)]
        if end is None and self._over is not None:
            end = Ended(State.FAILED, "", self._over)
        if end is not None:
            phase = "Failed" if end.state in (State.FAILED, State.CANCELED) else "Succeeded"
            history.append((phase, end.time))
        ended = end.time if end is not None else None
        flag: dict[str, bool] | None = {"hooked": True} if hooked else None
        if last != name:
            told = message if kind == "Pod" else ""
            if self._is_cut and history[-1][0] == "Failed":
                told = f"retry exceeded workflow deadline {self._deadline()}"
            self.nodes[name] = Node(
                name, "Retry", template, boundary, list(history), ended, told, children=[last], flag=flag, **more
            )
            flag = {"retried": True}
        made = history if kind != "Pod" else [("Pending", begin), *history]
        self.nodes[last] = Node(
            last, kind, template, boundary, made, ended, message, flag=flag if flag is not None else {}, **more
        )
        return last

    def _deadline(self) -> str:
        assert self._facts.ending
        return time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(self._facts.ending.time))

    def _skip(self, name: str, template: str, boundary: str, when: float, phase: str, message: str) -> None:
        self.nodes[name] = Node(name, "Skipped", template, boundary, [(phase, when)], when, message, flag={})

    def _connect(self, after: list[str], name: str) -> None:
        for other in after:
            if name not in self.nodes[other].children:
                self.nodes[other].children.append(name)

    def _last(self, name: str) -> str:
        """Return the last attempt of a node, or the node itself."""
        tries = self._tries(name)
        return tries[-1] if tries else name

    def _tries(self, name: str) -> list[str]:
        """Return the attempts of a node; its hook is a child as well."""
        node = self.nodes[name]
        return [child for child in node.children if not child.endswith(".onExit")] if node.type == "Retry" else []

    def _outbound(self, name: str) -> list[str]:
        """Return the nodes that the next tasks follow: Argo's ``getOutboundNodes``."""
        node = self.nodes[name]
        if node.type == "Retry":
            return [self._last(name)]
        if node.type == "TaskGroup" and node.children:
            return [each for child in node.children for each in self._outbound(child)]
        return node.outbound if node.type == "DAG" else [name]

    def _close(self, dag: str, component: Component) -> None:
        """Record the last nodes of a DAG that has ended."""
        if self.nodes[dag].ended is None:
            return
        tasks = component.as_dag().tasks
        before = {name for task in tasks.values() if not _is_hook(task) for name in task.depends_on}
        leaves = [f"{dag}.{name}" for name in sorted(tasks) if name not in before and not _is_hook(tasks[name])]
        self.nodes[dag].outbound = [each for leaf in leaves if leaf in self.nodes for each in self._outbound(leaf)]

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
            upstream = [f"{dag}.{other}" for other in task.depends_on]
            if not all(self._is_over(other) for other in upstream):
                continue
            after = [each for other in upstream for each in self._outbound(other)] or [dag]
            begun, ended = self._facts.begun.get(node), self._facts.ended.get(node)
            if (ended and ended.is_omitted and not self._starts_anyway(node)) or (begun is None and self._is_settled):
                when = ended.time if ended else self._over
                assert when is not None
                self._omit(task, node, dag, after, when)
            elif begun is not None:
                self._task(task, node, dag, after, begun)

    @property
    def _is_settled(self) -> bool:
        return self._is_cut and self._over is not None

    def _is_over(self, task: str) -> bool:
        return task in self.nodes and self.nodes[task].ended is not None

    def _starts_anyway(self, node: str) -> bool:
        return self._facts.stages.get(node) in self._facts.attempts

    def _hook(self, component: Component, task: Task, dag: str) -> None:
        parent = f"{dag}.{task.depends_on[0]}"
        hook = f"{parent}.onExit"
        node = f"{self._names.attempt(hook)}.{task.name}"
        begun = self._facts.begun.get(node)
        ended = self._facts.ended.get(node)
        if begun is None or parent not in self.nodes or (ended and "in its place" in ended.reason):
            return
        template = f"exit-hook-{component.name}-{task.name}"
        inner = self._add(hook, "DAG", template, dag, begun, ended, hooked=True)
        self._connect([parent], hook)
        self._task(task, node, inner, [inner], begun)
        if self.nodes[inner].ended is not None:
            self.nodes[inner].outbound = self._outbound(node)

    def _omit(self, task: Task, node: str, dag: str, after: list[str], when: float) -> None:
        component = self._pipeline.component_of(task)
        template = self._template(task, component)
        if task.loop is None and not _is_one_pod(component):
            driver = "system-dag-driver" if component.dag is not None else "system-container-driver"
            self._skip(f"{node}-driver", driver, dag, when, "Omitted", OMITTED)
            self._connect(after, f"{node}-driver")
            after = [f"{node}-driver"]
        self._skip(node, template, dag, when, "Omitted", OMITTED)
        self._connect(after, node)

    def _template(self, task: Task, component: Component) -> str:
        if task.loop is not None:
            return f"{component.name}-{task.name}-iterator"
        if component.dag is not None:
            return component.name
        if component.importer is not None:
            return "system-importer"
        if volume_task(component):
            return "system-container-driver"
        return _executor(task, component).replace("-impl", "-executor")

    def _task(self, task: Task, node: str, dag: str, after: list[str], begun: float) -> None:
        component = self._pipeline.component_of(task)
        if task.loop is not None:
            self._loop(task, component, node, dag, after, begun)
        elif component.dag is not None:
            self._group(task, component, node, dag, after, begun)
        elif _is_one_pod(component):
            ended = self._facts.ended.get(node)
            # KFP's importer ends with 2 after a line of Go's log that is fatal.
            message, code = _exit(ended, fails=2)
            self._add(node, "Pod", self._template(task, component), dag, begun, ended, message=message, exit_code=code)
            self._connect(after, node)
        else:
            self._stage(task, component, node, dag, after, begun)

    def _driver(
        self, name: str, dag: str, begun: float, done: float | None, *, reason: str = "", **outputs: str
    ) -> str:
        """Add the driver of a DAG; ``done`` is when it ended, and ``reason`` why it failed."""
        node = f"{dag}.{name}"
        end = None if done is None else Ended(State.FAILED if reason else State.SUCCEEDED, reason, done)
        message = f"main: Error (exit code {_FAILS})" if reason else _DEADLINE if end is None and self._over else ""
        said = {} if end is None or reason else _outputs(self._identity(node), outputs)
        code = "" if end is None else str(_FAILS if reason else 0)
        inputs = _inputs("system-dag-driver")
        self._add(
            node, "Pod", "system-dag-driver", dag, begun, end,
            message=message, inputs=inputs, outputs=said, exit_code=code,
        )  # fmt: skip
        return node

    def _identity(self, node: str) -> str:
        """Make up the number that a DAG has in ML Metadata."""
        return str(100 + len(self.nodes))

    def _group(self, task: Task, component: Component, node: str, dag: str, after: list[str], begun: float) -> None:
        """Add a nested pipeline, a branch, or the tasks that an exit task follows."""
        facts, ended = self._facts, self._facts.ended.get(node)
        retries = task.retry is not None
        tries = [self._names.attempt(node, 0, retries=retries)]
        while retries and (following := self._names.attempt(node, len(tries), retries=True)) in facts.opened:
            tries.append(following)
        opened = facts.opened.get(tries[0])
        done = opened if opened is not None else ended.time if ended else None
        failed = ended.reason if ended and opened is None and ended.state is State.FAILED else ""
        skipped = ended is not None and ended.state is State.SKIPPED
        condition = {} if task.condition is None else {"condition": "false" if skipped else "true"}
        driver = self._driver(f"{task.name}-driver", dag, begun, done, reason=failed, **condition)
        self._connect(after, driver)
        before = [self._last(driver)]
        if skipped and ended is not None:
            self._skip(node, component.name, dag, ended.time, "Skipped", _CONDITION_FALSE)
        elif opened is not None:
            self._add(node, "DAG", component.name, dag, opened, ended, inputs=_inputs("dag"))
            if retries and not self._names.defaults:
                self._again(node, tries[0], "Retry")
            for number, name in enumerate(tries[1:], 1):
                self._end_attempt(tries[number - 1], facts.opened[name])
                self._again(node, name, "DAG", facts.opened[name], ended)
            for name in tries:
                self._scope(component, name)
                self._close(name, component)
        elif failed and ended is not None:
            self._skip(node, component.name, dag, ended.time, "Omitted", OMITTED)
        if node in self.nodes:
            self._connect(before, node)

    def _loop(self, task: Task, component: Component, node: str, dag: str, after: list[str], begun: float) -> None:
        facts, ended = self._facts, self._facts.ended.get(node)
        items = facts.items.get(node)
        inner = self._add(node, "DAG", self._template(task, component), dag, begun, ended, inputs=_inputs("dag"))
        self._connect(after, node)
        first = facts.opened.get(self._names.iteration(node, 0))
        done = first if first is not None else ended.time if ended else None
        failed = ended.reason if ended and items is None else ""
        count = {} if items is None else {"iteration_count": str(items)}
        driver = self._driver("iteration-driver", inner, begun, done, reason=failed, **count)
        self._connect([inner], driver)
        group = f"{inner}.iteration-iterations"
        template = f"{component.name}-iteration"
        if items == 0 and ended is not None:
            self._skip(group, template, inner, ended.time, "Skipped", "Skipped, empty params")
        elif failed and ended is not None:
            self._skip(group, template, inner, ended.time, "Omitted", OMITTED)
        elif first is not None:
            self._group_of_iterations(task, component, node, inner, group, first, ended)
        if group in self.nodes:
            self._connect([self._last(driver)], group)
            if self.nodes[inner].ended is not None:
                self.nodes[inner].outbound = self._outbound(group)

    def _group_of_iterations(
        self,
        task: Task,
        component: Component,
        node: str,
        inner: str,
        group: str,
        first: float,
        ended: Ended | None,
    ) -> None:
        facts, template = self._facts, f"{component.name}-iteration"
        if ended is None and self._over is not None:
            ended = Ended(State.FAILED, "", self._over)
        history = [("Running", first)]
        if ended is not None:
            history.append(("Failed" if ended.state is not State.SUCCEEDED else "Succeeded", ended.time))
        self.nodes[group] = Node(group, "TaskGroup", template, inner, history, ended.time if ended else None, flag={})
        for index in range(facts.items[node]):
            tasks = self._names.iteration(node, index)
            begin = facts.opened.get(tasks)
            if begin is None:
                continue
            end = facts.closed.get(tasks)
            name = f"{group}({index}:{index})"
            iteration = self._add(name, "DAG", template, inner, begin, end, inputs=_inputs("iteration", str(index)))
            self._connect([group], name)
            driver = self._driver("iteration-item-driver", iteration, begin, begin)
            self._connect([iteration], driver)
            item = f"{iteration}.iteration-item"
            dag = self._add(item, "DAG", component.name, iteration, begin, end, inputs=_inputs("dag"))
            self._connect([self._last(driver)], item)
            self._scope(component, dag)
            self._close(dag, component)
            if self.nodes[iteration].ended is not None:
                self.nodes[iteration].outbound = self._outbound(item)

    # Stages

    def _stage(self, task: Task, component: Component, node: str, dag: str, after: list[str], begun: float) -> None:
        facts = self._facts
        stage = facts.stages[node]
        attempts = facts.attempts.get(stage, [])
        finished = facts.finished.get(stage)
        result = finished.result if finished else None
        is_cached = result is not None and result.state is State.CACHED
        failed = result.reason if result and stage not in facts.driven and result.state is State.FAILED else ""
        done = facts.driven.get(stage, finished.time if finished and (is_cached or failed) else None)
        driver, template = f"{node}-driver", _executor(task, component)
        end = None if done is None else Ended(State.FAILED if failed else State.SUCCEEDED, failed, done)
        message = f"main: Error (exit code {_FAILS})" if failed else _DEADLINE if end is None and self._over else ""
        patch = "" if is_cached or not attempts else pod_spec_patch(component, given_to(attempts[0]))
        outputs = {} if end is None or failed else _stage_outputs(patch, is_cached=is_cached)
        code = "" if end is None else str(_FAILS if failed else 0)
        self._add(
            driver, "Pod", "system-container-driver", dag, begun, end,
            message=message, inputs=_inputs("system-container-driver"), outputs=outputs, exit_code=code,
        )  # fmt: skip
        self._connect(after, driver)
        outer = template.replace("-impl", "-executor")
        if done is None:
            if self._is_settled:
                assert self._over is not None
                self._skip(node, outer, dag, self._over, "Omitted", OMITTED)
                self._connect([self._last(driver)], node)
            return
        if failed:
            self._skip(node, outer, dag, done, "Omitted", OMITTED)
            self._connect([self._last(driver)], node)
            return
        ended = Ended(result.state, result.reason, finished.time) if finished and result else None
        inputs = _labels(component, cached=is_cached)
        inner = self._add(node, "DAG", outer, dag, done, ended, inputs=inputs)
        self._connect([self._last(driver)], node)
        executor = f"{inner}.executor"
        if is_cached:
            self._skip(executor, template, inner, done, "Skipped", _CACHED)
        elif attempts:
            self._pods(task, component, stage, executor, template, inner, ended)
        else:  # the run is being retried
            return
        self._connect([inner], executor)
        if self.nodes[inner].ended is not None:
            self.nodes[inner].outbound = self._outbound(executor)

    def _pods(
        self,
        task: Task,
        component: Component,
        stage: str,
        executor: str,
        template: str,
        inner: str,
        ended: Ended | None,
    ) -> None:
        """Add a stage's pods."""
        attempts, retried = self._facts.attempts[stage], self._facts.retried.get(stage, [])
        retries = task.retry is not None
        inputs = _labels(component)
        message, code = _exit(ended)
        first = self._add(
            executor, "Pod", template, inner, attempts[0].time, ended, message=message, inputs=inputs, exit_code=code
        )
        if retries and first == executor:
            first = self._names.attempt(executor, 0, retries=True)
            self._again(executor, first, "Retry")
        for number, attempt in enumerate(attempts, 1):
            name = self._names.attempt(executor, number - 1, retries=retries)
            if number > 1:
                self._again(executor, name, "Pod", attempt.time, ended, message=message, exit_code=code)
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

    def _again(
        self,
        outer: str,
        name: str,
        kind: str,
        begin: float = 0,
        end: Ended | None = None,
        *,
        message: str = "",
        exit_code: str = "",
    ) -> None:
        """Add another attempt of a Retry node. With the kind Retry, make the node itself one, with a first attempt."""
        node = self.nodes[outer]
        if kind == "Retry":
            first = Node(**{**vars(node), "name": name, "children": [], "flag": {"retried": True}})
            self.nodes[outer] = Node(**{**vars(node), "type": "Retry", "children": [name], "flag": None})
            self.nodes[name] = first
            return
        history = [("Running", begin)] if kind != "Pod" else [("Pending", begin), ("Running", begin)]
        if end is None and self._over is not None:
            end = Ended(State.FAILED, "", self._over)
        if end is not None:
            history.append(("Failed" if end.state in (State.FAILED, State.CANCELED) else "Succeeded", end.time))
        self.nodes[name] = Node(
            name, kind, node.template, node.boundary, history, end.time if end else None, message,
            flag={"retried": True}, inputs=node.inputs, exit_code=exit_code,
        )  # fmt: skip
        node.children.append(name)

    def _end_attempt(self, name: str, when: float, message: str = "", exit_code: str = "") -> None:
        """Make an attempt one that has failed before the next one."""
        node = self.nodes[name]
        node.history = [each for each in node.history if each[0] in ("Pending", "Running")] + [("Failed", when)]
        node.ended, node.message, node.exit_code = when, message, exit_code


def _is_hook(task: Task) -> bool:
    return task.runs_always and bool(task.depends_on)


def _is_one_pod(component: Component) -> bool:
    return component.importer is not None or (component.container is not None and volume_task(component) is not None)


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


# Parameters of nodes. Long ones, which describe the component, the task and the pod, are not made.

_DRIVER = "component", "task", "task-name", "parent-dag-id", "iteration-index"


def _inputs(template: str, index: str = "-1") -> dict[str, str]:
    if template == "dag":
        return {"parent-dag-id": "100"}
    if template == "iteration":
        return {"parent-dag-id": "100", "iteration-index": index}
    values = {**dict.fromkeys(_DRIVER, ""), "parent-dag-id": "100", "iteration-index": index}
    if template == "system-dag-driver":
        return {**values, "runtime-config": "", "driver-type": "DAG"}
    return {**values, "container": "", "kubernetes-config": ""}


def _outputs(identity: str, given: Mapping[str, str]) -> dict[str, str]:
    condition, count = given.get("condition", "nil"), given.get("iteration_count", "0")
    return {"execution-id": identity, "iteration-count": count, "condition": condition}


def _stage_outputs(patch: str, *, is_cached: bool) -> dict[str, str]:
    return {"pod-spec-patch": patch, "cached-decision": str(is_cached).lower(), "condition": "nil"}


def _labels(component: Component, *, cached: bool | None = None) -> dict[str, str]:
    """Return the inputs of a stage's executor; ``cached`` is whether it was cached, for those of the DAG around it."""
    decision = {} if cached is None else {"cached-decision": str(cached).lower()}
    return {"pod-spec-patch": "", **decision, **dict(_numbered(component.platform.get("podMetadata") or {}))}


def _numbered(metadata: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for kind in ("annotation", "label"):
        values = metadata.get(f"{kind}s") or {}
        for number, key in enumerate(sorted(values), 1):
            end = f"-{number}" if len(values) > 1 else ""
            yield f"pod-metadata-{kind}-key{end}", key
            yield f"pod-metadata-{kind}-val{end}", values[key]
