"""Running the scopes of a pipeline: every task starts as soon as what it waits for has ended.

One thread, the caller's, decides everything; processes and signals tell it what happened through a queue.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.local.artifacts import Artifact
from torchx_kfp.local.code import CodeFiles
from torchx_kfp.local.conditions import compile_condition
from torchx_kfp.local.engine import Processes
from torchx_kfp.local.events import (
    Listener,
    LoopStarted,
    RunEnding,
    StageFinished,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.local.execution import Execution, Outcome
from torchx_kfp.local.keys import input_key
from torchx_kfp.local.kubernetes import volume_outputs, volume_task
from torchx_kfp.local.memory import Memory
from torchx_kfp.local.names import PodNames, StageNames
from torchx_kfp.local.outline import without_indices
from torchx_kfp.local.output import LogPump, without_controls
from torchx_kfp.local.prepare import Settings, cache_key_of, prepare_attempt
from torchx_kfp.local.result import StageResult, State
from torchx_kfp.local.scopes import (
    LoopProgress,
    Node,
    Scope,
    collect,
    dag_of,
    import_artifact,
    inner_names,
    loop_items,
    parameters_of,
    task_inputs,
    with_defaults,
)
from torchx_kfp.local.spec import Component, Importer, Pipeline, Task

#: Seconds after which waiting is interrupted: a signal that comes just before it begins would not end it.
_LOOK_UP = 1.0


#: Seconds that stages have to be gone when their processes were killed.
_LEAVE = 5.0


@dataclass
class _Stage:
    """A task with a container, from its first attempt on."""

    node: Node
    #: Attempts under the task's own retry policy, and all of this stage in this run.
    tries: int = 0
    attempt: int = 0
    #: Of the first attempt: on the clock that goes steadily, and on the wall's.
    started: float = 0.0
    started_at: float | None = None
    pod_name: str = ""
    log_file: Path | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: Of its inputs, and in the cache: see ``keys``.
    key: str = ""
    cache_key: str = ""


class Interrupted(Exception):
    """A signal has ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Scheduler:
    """Runs one pipeline once."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        pump: LogPump,
        listener: Listener,
        memory: Memory,
        earlier: Mapping[str, Sequence[StageStarted]],
    ) -> None:
        """``earlier`` are attempts at stages, by their names, before the run was resumed."""
        self._pipeline = pipeline
        self._settings = settings
        self._pump = pump
        self._listener = listener
        self._processes = Processes()
        self._events: queue.SimpleQueue[tuple[Execution, Outcome] | int] = queue.SimpleQueue()
        self._ready: deque[Node] = deque()
        self._over: deque[Scope] = deque()
        self._startable: deque[_Stage] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_order = itertools.count()
        self._running: dict[Execution, _Stage] = {}
        self._memory = memory
        self._code = CodeFiles(settings.directory)
        self._pod_names = PodNames({event.pod_name: name for name, events in earlier.items() for event in events})
        self._attempts = Counter({name: len(events) for name, events in earlier.items()})
        self._results: dict[str, StageResult] = {}

    def run(self, arguments: Mapping[str, Any]) -> Scope:
        """Runs all tasks; the root's scope, in which they have ended.

        Raises:
            Interrupted: ``interrupt`` was called. No process of the run is left.
        """
        root = Scope(self._pipeline, self._pipeline.root, arguments, StageNames())
        self._open(root)
        try:
            while True:
                self._start_stages()
                if root.remaining == 0:
                    return root
                self._handle(self._next_event())
        finally:
            self._end_processes(graceful=False)

    @property
    def results(self) -> list[StageResult]:
        """How the stages ended, each the last time that it was run."""
        return list(self._results.values())

    def interrupt(self, number: int) -> None:
        """Ends the run. May be called from a signal handler; a second call ends the processes at once."""
        self._events.put(number)

    def _next_event(self) -> tuple[Execution, Outcome] | int | None:
        """What happened next; None when it is time for a retry, or to see whether a signal has come."""
        timeout = min(_LOOK_UP, max(0.0, self._timers[0][0] - time.monotonic())) if self._timers else _LOOK_UP
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def _handle(self, event: tuple[Execution, Outcome] | int | None) -> None:
        if isinstance(event, int):
            self._listener(RunEnding(event, self._settings.grace))
            self._end_processes(graceful=True)
            raise Interrupted(event)
        if event is not None:
            self._ended(*event)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _end_processes(self, graceful: bool) -> None:
        """Ends all processes: asked first if ``graceful``, at once after the grace or another signal."""
        if graceful:
            for execution in self._running:
                execution.terminate(self._settings.grace)
            deadline = time.monotonic() + self._settings.grace
            while self._running:
                try:
                    event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                if isinstance(event, int):
                    break
                self._canceled(event[0])
        for execution in self._running:
            execution.kill()
        deadline = time.monotonic() + _LEAVE
        while self._running:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(event, int):
                self._canceled(event[0])
        # What is no process, such as a copy from a server that does not answer.
        for execution in list(self._running):
            self._canceled(execution)

    def _canceled(self, execution: Execution) -> None:
        stage = self._running.pop(execution)
        self._report(self._result(execution, stage, State.CANCELED, Outcome(reason="was ended with the run")))

    # Tasks

    def _open(self, scope: Scope) -> None:
        self._ready.extend(node for node in scope.nodes.values() if node.waiting == 0)
        if not scope.nodes:
            self._over.append(scope)

    def _advance(self) -> None:
        while self._ready or self._over:
            if self._over:
                self._close(self._over.popleft())
            else:
                self._begin(self._ready.popleft())

    def _begin(self, node: Node) -> None:
        """A task's upstream tasks have all ended."""
        upstream = [] if node.task.runs_always else [node.scope.nodes[name] for name in node.task.depends_on]
        for state, what in ((State.FAILED, "failed"), (State.NOT_RUN, "was not run"), (State.SKIPPED, "was skipped")):
            for other in upstream:
                if other.state is state:
                    skipped = State.SKIPPED if state is State.SKIPPED else State.NOT_RUN
                    self._pass_over(node, skipped, f"was not run: {other.name} {what}")
                    return
        try:
            node.inputs = task_inputs(node, self._settings.constants)
            if node.task.condition is not None and not self._holds(node):
                self._pass_over(node, State.SKIPPED, "was skipped: its condition is false")
                return
            items = loop_items(node, self._settings.constants) if node.task.loop else []
        except Exception as error:  # what one stage makes must not end the others
            self._fail(node, str(error) if isinstance(error, ValueError) else _not_prepared(error))
            return
        if node.task.loop is not None:
            node.loop = LoopProgress(items, node.task.loop.parallelism)
            inside = self._stages_in(node.task, node.component, node.scope.names, through_loops=False)
            stages = tuple(without_indices(name) for name, _ in inside)
            self._listener(LoopStarted(node.name, len(items), stages))
            self._continue_loop(node)
        elif node.component.dag is not None:
            self._enter(node)
        elif node.component.importer is not None:
            self._import(node, node.component.importer)
        elif volume_task(node.component):
            self._made(node, outputs=volume_outputs(node.component, node.inputs, self._settings.run_id))
        else:
            self._startable.append(_Stage(node))
            self._listener(StageWaiting(node.name, node.task.name))

    def _enter(self, node: Node) -> None:
        """The nested pipeline, or the branch, begins."""
        node.attempt += 1
        inputs = with_defaults(node.component, node.inputs)
        self._open(Scope(self._pipeline, node.component, inputs, inner_names(node.task, node.scope.names), node))

    def _import(self, node: Node, importer: Importer) -> None:
        """The artifact is there already: nothing is run."""
        try:
            workspace = self._settings.constants["workspace_path"]
            names = node.component.artifact_outputs
            artifacts = {name: import_artifact(name, importer, node.inputs, workspace) for name in names}
        except ValueError as error:
            self._fail(node, str(error))
            return
        self._made(node, artifacts=artifacts)

    def _made(
        self, node: Node, outputs: Mapping[str, Any] | None = None, artifacts: Mapping[str, Artifact] | None = None
    ) -> None:
        """The task was done without a process."""
        result = StageResult(
            name=node.name,
            task=node.task.name,
            state=State.SUCCEEDED,
            outputs=outputs or {},
            artifacts=artifacts or {},
            inputs=parameters_of(node.inputs),
            started_at=time.time(),
        )
        self._report(result)
        self._finish(node, State.SUCCEEDED, {**result.outputs, **result.artifacts})

    def _holds(self, node: Node) -> bool:
        condition = node.task.condition or ""
        try:
            return compile_condition(condition)(parameters_of(with_defaults(node.component, node.inputs)))
        except ValueError as error:
            raise ValueError(f"has the condition {condition!r}, which {error}") from None

    def _continue_loop(self, node: Node) -> None:
        progress, loop = node.loop, node.task.loop
        assert progress is not None
        assert loop is not None
        while progress.may_start:
            index = progress.started
            progress.started += 1
            inputs = {**with_defaults(node.component, node.inputs), loop.item_input: progress.items[index]}
            names = node.scope.names.inside_iteration(index)
            self._open(Scope(self._pipeline, node.component, inputs, names, node, index))
        if progress.is_over:
            node.reason = "failed in an iteration" if progress.failed else ""
            self._finish(node, State.FAILED if progress.failed else State.SUCCEEDED, collect(node, self._pipeline))

    def _close(self, scope: Scope) -> None:
        """All tasks of the scope have ended."""
        node = scope.owner
        if node is None:
            return
        node.kept &= scope.kept
        if node.loop is not None:
            node.loop.ended += 1
            node.loop.failed |= scope.failed
            node.loop.outputs[scope.index] = scope.outputs()
            self._continue_loop(node)
        elif scope.failed and node.task.retry is not None and node.attempt <= node.task.retry.count:
            delay = node.task.retry.delay(node.attempt)
            self._listener(StageRetried(node.name, node.attempt, _failures(scope), delay))
            self._later(delay, lambda: self._enter(node))
        else:
            node.reason = _failures(scope)
            self._finish(node, State.FAILED if scope.failed else State.SUCCEEDED, scope.outputs())

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._timer_order), action))

    def _finish(self, node: Node, state: State, outputs: Mapping[str, Any] | None = None) -> None:
        node.state = state
        node.outputs = outputs or {}
        scope = node.scope
        scope.failed |= state in (State.FAILED, State.NOT_RUN)
        scope.kept &= node.kept
        scope.remaining -= 1
        for dependent in node.dependents:
            dependent.waiting -= 1
            if dependent.waiting == 0:
                self._ready.append(dependent)
        if scope.remaining == 0:
            self._over.append(scope)

    def _fail(self, node: Node, reason: str) -> None:
        """The task cannot be begun."""
        node.reason = reason
        node.kept = False
        self._report(StageResult(node.name, node.task.name, State.FAILED, reason=reason))
        self._finish(node, State.FAILED)

    def _pass_over(self, node: Node, state: State, reason: str) -> None:
        """The task does not run, nor does any stage inside of it."""
        node.reason = reason
        for name, task in self._stages_in(node.task, node.component, node.scope.names):
            self._report(StageResult(name, task.name, state, reason=reason))
        self._finish(node, state)

    def _stages_in(
        self, task: Task, component: Component, names: StageNames, *, through_loops: bool = True
    ) -> list[tuple[str, Task]]:
        """The names of all stages in a task, and their tasks; those of loops in it only ``through_loops``."""
        if component.dag is None:
            return [(names.of(task.name), task)]
        inside = inner_names(task, names)
        return [
            stage
            for inner in dag_of(component).tasks.values()
            if through_loops or inner.loop is None
            for stage in self._stages_in(inner, self._pipeline.component_of(inner), inside, through_loops=through_loops)
        ]

    # Stages

    def _start_stages(self) -> None:
        self._advance()
        while self._startable and len(self._running) < self._settings.parallelism:
            self._start(self._startable.popleft())
            self._advance()

    def _start(self, stage: _Stage) -> None:
        node = stage.node
        try:
            stage.key = input_key(with_defaults(node.component, node.inputs))
            stage.cache_key = cache_key_of(node, self._settings, self._code) if self._memory.has_cache else ""
        except Exception as error:  # what one stage makes must not end the others
            self._fail(node, str(error) if isinstance(error, ValueError) else _not_prepared(error))
            return
        if not stage.tries and self._recall(stage):
            return
        node.kept = False
        self._attempts[stage.node.name] += 1
        stage.tries, stage.attempt = stage.tries + 1, self._attempts[stage.node.name]
        if stage.started_at is None:
            stage.started, stage.started_at = time.monotonic(), time.time()
        try:
            attempt = prepare_attempt(stage.node, self._settings, self._pod_names.make(stage.node.name, stage.attempt))
        except Exception as error:  # what one stage makes must not end the others
            self._fail(stage.node, str(error) if isinstance(error, ValueError) else _not_prepared(error))
            return
        stage.pod_name, stage.log_file, stage.inputs = attempt.pod_name, attempt.log_file, attempt.inputs
        engine = self._settings.engine if attempt.container is not None else self._processes
        execution = Execution(attempt, engine, self._pump, lambda *event: self._events.put(event))
        self._listener(
            StageStarted(
                name=stage.node.name,
                pod_name=attempt.pod_name,
                attempt=stage.attempt,
                task=stage.node.task.name,
                log_file=attempt.log_file,
                inputs=attempt.inputs,
            )
        )
        self._running[execution] = stage
        execution.start()

    def _recall(self, stage: _Stage) -> bool:
        """Whether the stage need not run, since it has before."""
        node = stage.node
        # What cleans up does so again, unless there is nothing new to clean up.
        upstream = [node.scope.nodes[name] for name in node.task.depends_on] if node.task.runs_always else []
        known = self._memory.kept(node.name, stage.key) if all(other.kept for other in upstream) else None
        kept = known is not None
        if known is None:
            known = self._memory.cached(node.name, node.task.name, stage.key, stage.cache_key)
        if known is None:
            return False
        node.kept = kept
        self._report(known, kept=kept)
        self._finish(node, known.state, {**known.outputs, **known.artifacts})
        return True

    def _ended(self, execution: Execution, outcome: Outcome) -> None:
        stage = self._running.pop(execution)
        node, retry = stage.node, stage.node.task.retry
        node.reason = outcome.reason
        if outcome.reason and retry is not None and stage.tries <= retry.count:
            delay = retry.delay(stage.tries)
            self._listener(StageRetried(node.name, stage.attempt, without_controls(outcome.reason), delay))
            self._later(delay, lambda: self._startable.append(stage))
            return
        state = State.FAILED if outcome.reason else State.SUCCEEDED
        self._report(self._result(execution, stage, state, outcome))
        self._memory.keep(stage.cache_key, self._results[node.name])
        self._finish(node, state, {**outcome.outputs, **outcome.artifacts})

    def _result(self, execution: Execution, stage: _Stage, state: State, outcome: Outcome) -> StageResult:
        return StageResult(
            name=stage.node.name,
            task=stage.node.task.name,
            state=state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            duration=time.monotonic() - stage.started,
            attempts=stage.attempt,
            pod_name=stage.pod_name,
            log_file=stage.log_file,
            outputs=outcome.outputs,
            artifacts=outcome.artifacts,
            run_id=outcome.run_id,
            tracker_base=execution.attempt.tracker_base,
            results=outcome.results,
            inputs=stage.inputs,
            started_at=stage.started_at,
            key=stage.key,
        )

    def _report(self, result: StageResult, *, kept: bool = False) -> None:
        result = dataclasses.replace(result, reason=without_controls(result.reason))
        self._results[result.name] = result
        self._listener(StageFinished(result, kept=kept))


def _failures(scope: Scope) -> str:
    """Why a nested pipeline failed, as a part of a sentence."""
    failed = [node.name for node in scope.nodes.values() if node.state is State.FAILED]
    return f"failed in {', '.join(failed)}" if failed else ""


def _not_prepared(error: Exception) -> str:
    return f"could not be prepared: {type(error).__name__}: {error}"
