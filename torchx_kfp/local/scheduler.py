"""Runs the scopes of a pipeline: a task starts as soon as the tasks before it have ended.

One thread, the caller's, decides everything; processes and signals tell it what happened through a queue.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchx_kfp.local.attempt.logs import LogPump
from torchx_kfp.local.attempt.prepare import RunContext
from torchx_kfp.local.cache.entries import Memory
from torchx_kfp.local.platform.settings import time_limit
from torchx_kfp.local.platform.volumes import volume_outputs
from torchx_kfp.local.scopes import (
    LoopProgress,
    Node,
    Scope,
    collect,
    import_artifact,
    loop_items,
    missing_outputs,
    parameters_of,
    task_inputs,
    with_defaults,
)
from torchx_kfp.local.stages import Happening, Stages
from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.pipeline.conditions import holds
from torchx_kfp.pipeline.names import indices_of, without_indices
from torchx_kfp.pipeline.spec import Component, Importer, Pipeline
from torchx_kfp.pipeline.volume_tasks import volume_task
from torchx_kfp.pipeline.walk import Place, StageNames, walk
from torchx_kfp.runs import reasons
from torchx_kfp.runs.events import Listener, LoopStarted, PipelineRetried, RunEnding, StageStarted
from torchx_kfp.runs.result import StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import listed

#: Seconds after which a wait is interrupted, since a signal that arrives just before the wait does not interrupt it.
_LOOK_UP = 1.0


class Interrupted(Exception):
    """A signal has ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _TimeIsOver(Exception):
    """The time limit of the run is over."""


class Scheduler:
    """Runs one pipeline once."""

    def __init__(
        self,
        pipeline: Pipeline,
        context: RunContext,
        pump: LogPump,
        listener: Listener,
        memory: Memory,
        earlier: Mapping[str, Sequence[StageStarted]],
    ) -> None:
        """Prepare a run; ``earlier`` has the attempts at stages, by their names, before the run was resumed."""
        self._pipeline = pipeline
        self._context = context
        self._options = options = context.options
        self._time_limit = options.timeout if options.timeout is not None else time_limit(pipeline.platform)
        self._listener = listener
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        #: Whether nothing more should begin; slow operations check it.
        self._is_interrupted = False
        #: The number of items in all loops so far.
        self._items = 0
        self._ready: deque[Node] = deque()
        self._over: deque[Scope] = deque()
        #: Scopes that are running, and nested pipelines that wait for another attempt.
        self._scopes: dict[Scope, None] = {}
        self._retrying: dict[Node, None] = {}
        #: Why the run failed, if no stage did.
        self.reason = ""
        #: The stage whose failure ends the run, and why nothing more begins.
        self._failure: Node | None = None
        self._stopping = ""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_order = itertools.count()
        self._stages = Stages(
            context, pump, listener, memory, earlier, self._happenings, later=self._later, ended=self._finish
        )

    def run(self, arguments: Mapping[str, Any]) -> Scope:
        """Run all tasks to their ends, and return the root's scope.

        Raises:
            Interrupted: ``interrupt`` was called. The run has no processes left.
        """
        root = Scope(self._pipeline, self._pipeline.root, arguments, StageNames())
        self._open(root)
        if self._time_limit is not None:
            self._later(self._time_limit, self._expire)
        try:
            while True:
                self._advance()
                while not self._is_interrupted and self._stages.start_next():
                    self._advance()
                if root.remaining == 0:
                    return root
                self._handle(self._next())
        except Interrupted:
            raise
        except _TimeIsOver:
            root.failed = True
            return root
        except BaseException:
            # A listener raised the exception; it must not get more events.
            self._stages.kill()
            raise

    @property
    def results(self) -> list[StageResult]:
        """How each stage ended the last time that it ran."""
        return list(self._stages.results.values())

    def interrupt(self, number: int) -> None:
        """End the run. A signal handler may call this; a second call kills the processes at once."""
        self._is_interrupted = True
        self._happenings.put(number)

    def _next(self) -> Happening | None:
        """Wait for the next happening; return None when it is time for a retry, or to check for signals."""
        timeout = min(_LOOK_UP, max(0.0, self._timers[0][0] - time.monotonic())) if self._timers else _LOOK_UP
        try:
            return self._happenings.get(timeout=timeout)
        except queue.Empty:
            return None

    def _handle(self, happening: Happening | None) -> None:
        if isinstance(happening, int):
            self._end(signal.Signals(happening).name, reasons.ended_with_the_run())
            raise Interrupted(happening)
        if happening is not None:
            self._stages.take(*happening)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _expire(self) -> None:
        self.reason = f"the time limit of {self._time_limit:g} s is over"
        self._end(f"T{self.reason[1:]}", reasons.ended_with_the_run(self.reason))
        raise _TimeIsOver

    def _end(self, reason: str, told: str) -> None:
        """End all stages, and report those that have not begun; ``told`` is the reason for those that have."""
        why = reasons.RUN_WAS_ENDED
        self._listener(RunEnding(reason, self._options.grace))
        self._stages.cancel(told, reasons.not_run(why), why)
        for scope in self._scopes:
            for node in scope.nodes.values():
                if node.state is None:
                    self._drop(node, why)

    def _drop(self, node: Node, why: str) -> None:
        """Report that the node's stages will not run any more, except those in scopes that have begun."""
        missing = [*self._stages_of(node)] if node in self._retrying or (not node.attempt and node.loop is None) else []
        if node.loop is not None:
            for index in range(node.loop.started, len(node.loop.items)):
                missing += self._stages_in(node.component, node.scope.names.inside_iteration(index))
        for stage in missing:
            self._stages.drop(stage.name, stage.task.name, reasons.not_run(why), why)

    def _fail_fast(self, failed: Node) -> None:
        """End all stages after a failure, except those that run even after failures, such as exit tasks."""
        self._stopping = reasons.ends_the_run(failed.name)
        self._listener(RunEnding(f"{failed.name} failed", self._options.grace))
        why = f"{failed.name} failed"
        for node, state in self._stages.cancel(f"was ended: {why}", reasons.not_run(self._stopping), why, _runs_always):
            self._finish(node, state, {})
        for node in list(self._retrying):
            self._drop(node, why)
            self._finish(node, State.FAILED, {})
        self._retrying.clear()

    def _open(self, scope: Scope) -> None:
        self._scopes[scope] = None
        self._ready.extend(node for node in scope.nodes.values() if node.waiting == 0)
        if not scope.nodes:
            self._over.append(scope)

    def _advance(self) -> None:
        while self._ready or self._over or (self._failure and not self._stopping):
            if self._failure and not self._stopping:
                self._fail_fast(self._failure)
            elif self._over:
                self._close(self._over.popleft())
            else:
                self._begin(self._ready.popleft())

    def _begin(self, node: Node) -> None:
        """Begin a task whose upstream tasks have all ended."""
        upstream = [] if node.task.runs_always else [node.scope.nodes[name] for name in node.task.depends_on]
        for state in reasons.WITHOUT_OUTPUTS:
            for other in upstream:
                if other.state is state:
                    self._pass_over(node, *reasons.after(self._name_of(other), state))
                    return
        if self._stopping and not _runs_always(node):
            self._pass_over(node, State.NOT_RUN, reasons.not_run(self._stopping))
            return
        if rival := node.scope.component.as_dag().hook_before(node.task):
            self._pass_over(node, State.SKIPPED, reasons.replaced(rival))
            return
        try:
            node.inputs = task_inputs(node, self._context.constants)
            if node.task.condition is not None and not self._holds(node):
                self._pass_over(node, State.SKIPPED, reasons.CONDITION_IS_FALSE)
                return
            items = loop_items(node) if node.task.loop else []
            self._count(items)
        except Exception as error:
            self._stages.fail(node, error)
            return
        if node.task.loop is not None:
            node.loop = LoopProgress(items, node.task.loop.parallelism)
            # Inner loops have events of their own.
            stages = tuple(without_indices(stage.name) for stage in self._inside(node) if not stage.looped)
            self._listener(LoopStarted(node.name, len(items), stages))
            self._continue_loop(node)
        elif node.component.dag is not None:
            self._enter(node)
        elif node.component.importer is not None:
            self._import(node, node.component.importer)
        elif volume_task(node.component):
            self._made(node, outputs=volume_outputs(node.component, node.inputs, self._context.run_id))
        else:
            self._stages.add(node)

    def _enter(self, node: Node) -> None:
        """Begin a nested pipeline or a branch."""
        node.attempt += 1
        inputs = with_defaults(node.component, node.inputs)
        self._open(Scope(self._pipeline, node.component, inputs, node.scope.names.inside(node.task), node))

    def _import(self, node: Node, importer: Importer) -> None:
        """Finish an importer: its artifact exists already, so nothing runs."""
        try:
            workspace = self._context.constants["workspace_path"]
            names = node.component.artifact_outputs
            artifacts = {name: import_artifact(name, importer, node.inputs, workspace) for name in names}
        except ValueError as error:
            self._stages.fail(node, error)
            return
        self._made(node, artifacts=artifacts)

    def _made(
        self, node: Node, outputs: Mapping[str, Any] | None = None, artifacts: Mapping[str, Artifact] | None = None
    ) -> None:
        """Finish a task that does not need a process."""
        result = StageResult(
            name=node.name,
            task=node.task.name,
            state=State.SUCCEEDED,
            outputs=outputs or {},
            artifacts=artifacts or {},
            inputs=parameters_of(node.inputs),
            started_at=time.time(),
        )
        self._stages.report(result)
        self._finish(node, State.SUCCEEDED, {**result.outputs, **result.artifacts})

    def _count(self, items: Sequence[Any]) -> None:
        self._items += len(items)
        if self._items > self._options.max_items:
            raise ValueError(
                f"loops over {len(items):,} items, but all loops of a run together may have "
                f"{self._options.max_items:,}. Raise the limit with --max-items (max_items), or let each stage process "
                "several items"
            )

    def _holds(self, node: Node) -> bool:
        condition = node.task.condition or ""
        try:
            parameters = parameters_of(with_defaults(node.component, node.inputs))
            return holds(condition, parameters, self._options.condition_time, lambda: not self._is_interrupted)
        except ValueError as error:
            raise ValueError(f"has the condition {condition!r}, which {error}") from None

    def _continue_loop(self, node: Node) -> None:
        progress, loop = node.loop, node.task.loop
        assert progress is not None
        assert loop is not None
        while progress.may_start and not self._is_interrupted:
            index = progress.started
            progress.started += 1
            inputs = {**with_defaults(node.component, node.inputs), loop.item_input: progress.items[index]}
            names = node.scope.names.inside_iteration(index)
            self._open(Scope(self._pipeline, node.component, inputs, names, node, index))
        if progress.is_over:
            node.reason = "failed in an iteration" if progress.failed else ""
            node.failed.sort(key=indices_of)  # iterations end in any order
            outputs = collect(node, self._pipeline)
            stages = sorted(without_indices(stage.name) for stage in self._inside(node))
            node.hollow = missing_outputs(node, stages)
            self._finish(node, State.FAILED if progress.failed else State.SUCCEEDED, outputs)

    def _close(self, scope: Scope) -> None:
        """Finish a scope whose tasks have all ended."""
        del self._scopes[scope]
        node = scope.owner
        if node is None:
            return
        node.kept &= scope.kept
        if node.loop is not None:
            node.loop.ended += 1
            node.loop.failed |= scope.failed
            node.failed += scope.failures()
            node.loop.outputs[scope.index] = scope.outputs()
            self._continue_loop(node)
        elif scope.failed and not self._stopping and (retry := node.task.retry) and node.attempt <= retry.count:
            delay = retry.delay(node.attempt)
            self._stages.expect_again(node.name)
            self._listener(PipelineRetried(node.name, node.attempt, _failures(scope), delay))
            self._retrying[node] = None
            self._later(delay, lambda: self._try_again(node))
        else:
            node.reason = _failures(scope)
            node.failed = scope.failures() if node.task.is_group else []
            node.hollow = scope.hollow_outputs()
            self._finish(node, State.FAILED if scope.failed else State.SUCCEEDED, scope.outputs())

    def _try_again(self, node: Node) -> None:
        if node in self._retrying:
            del self._retrying[node]
            self._enter(node)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._timer_order), action))

    def _finish(self, node: Node, state: State, outputs: Mapping[str, Any]) -> None:
        """Record that a task has ended; tasks that wait for it may begin."""
        node.state = state
        node.outputs = outputs
        scope = node.scope
        # On KFP, a run succeeds if only its exit task fails: that is a hook, not part of the graph.
        failed = state is State.FAILED and not node.task.runs_always
        scope.failed |= failed or state in (State.NOT_RUN, State.CANCELED)
        if self._options.fail_fast and failed and not _may_be_retried(scope):
            self._failure = self._failure or node
        scope.kept &= node.kept
        scope.remaining -= 1
        for dependent in node.dependents:
            dependent.waiting -= 1
            if dependent.waiting == 0:
                self._ready.append(dependent)
        if scope.remaining == 0:
            self._over.append(scope)

    def _pass_over(self, node: Node, state: State, reason: str) -> None:
        """Record that a task and all stages inside it do not run."""
        node.reason = reason
        ends = self._failure if state is State.NOT_RUN and self._stopping and not _runs_always(node) else None
        for stage in self._stages_of(node):
            if ends is not None:
                self._stages.drop(stage.name, stage.task.name, reason, f"{ends.name} failed")
            else:
                self._stages.report(StageResult(stage.name, stage.task.name, state, reason=reason))
        self._finish(node, state, {})

    def _stages_of(self, node: Node) -> Iterable[Node | Place]:
        """Return the stages of a task: the task itself, or the stages inside it."""
        return [node] if node.component.dag is None else self._inside(node)

    def _name_of(self, node: Node) -> str:
        """Name a task in a sentence; a group, which only KFP's compiler has named, by the stages in it."""
        if not node.task.is_group:
            return node.name
        if node.state is State.FAILED:
            return listed(node.failed, reasons.MOST_NAMED) or node.name
        return next((stage.name for stage in self._inside(node)), node.name)

    def _inside(self, node: Node) -> Iterator[Place]:
        return self._stages_in(node.component, node.scope.names.inside(node.task))

    def _stages_in(self, scope: Component, names: StageNames) -> Iterator[Place]:
        return (place for place in walk(self._pipeline, scope, names) if place.is_stage)


def _runs_always(node: Node) -> bool:
    """Tell whether the task, or a task that contains it, runs even after failures."""
    owner = node.scope.owner
    return node.task.runs_always or (owner is not None and _runs_always(owner))


def _may_be_retried(scope: Scope) -> bool:
    """Tell whether a nested pipeline around the scope may be retried, so that a failure in it need not fail the run."""
    node = scope.owner
    if node is None:
        return False
    retry = node.task.retry if node.loop is None else None
    return (retry is not None and node.attempt <= retry.count) or _may_be_retried(node.scope)


def _failures(scope: Scope) -> str:
    """Return why a nested pipeline failed, as a part of a sentence."""
    return reasons.failed_in(scope.failures())
