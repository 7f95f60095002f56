"""Run the DAGs of a pipeline: a task starts as soon as the tasks before it have ended.

One thread, the caller's, decides everything; processes and signals send it messages through a queue.
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

from torchx_kfp.common.text import listed
from torchx_kfp.execution.local.attempt import RunContext
from torchx_kfp.execution.local.cache import Memory
from torchx_kfp.execution.local.dag_run import (
    DagRun,
    LoopProgress,
    TaskRun,
    collect,
    import_artifact,
    loop_items,
    missing_in_iterations,
    task_inputs,
    with_defaults,
)
from torchx_kfp.execution.local.kubernetes import time_limit, volume_outputs
from torchx_kfp.execution.local.log_pump import LogPump
from torchx_kfp.execution.local.stage_queue import Message, StageQueue
from torchx_kfp.execution.pipeline.artifacts import Artifact, parameters_of
from torchx_kfp.execution.pipeline.conditions import is_true
from torchx_kfp.execution.pipeline.spec import Component, Importer, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask, StageNames, indices_of, walk, without_indices
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.events import Listener, LoopStarted, PipelineRetried, RunEnding
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

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
    ) -> None:
        self._pipeline = pipeline
        self._context = context
        self._options = options = context.options
        self._time_limit = options.timeout if options.timeout is not None else time_limit(pipeline.platform)
        self._listener = listener
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        #: Whether nothing more should begin; slow operations check it.
        self._is_interrupted = False
        #: Whether a condition is being evaluated, which a signal must end.
        self._is_evaluating = False
        #: The number of items in all loops so far.
        self._items = 0
        self._ready: deque[TaskRun] = deque()
        self._over: deque[DagRun] = deque()
        #: DAGs that are running, and nested pipelines that wait for another attempt.
        self._dags: dict[DagRun, None] = {}
        self._retrying: dict[TaskRun, None] = {}
        #: Why the run failed, if no stage did.
        self.reason = ""
        #: The stage whose failure ends the run, and why nothing more begins.
        self._failure: TaskRun | None = None
        self._stopping = ""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_order = itertools.count()
        self._stages = StageQueue(
            context, pump, listener, memory, self._messages, later=self._later, ended=self._finish
        )

    def run(self, arguments: Mapping[str, Any]) -> DagRun:
        """Run all tasks to their ends, and return the root.

        Raises:
            Interrupted: ``interrupt`` was called. The run has no processes left.
        """
        root = DagRun(self._pipeline, self._pipeline.root, arguments, StageNames())
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

    def interrupt(self, number: int) -> None:
        """End the run. A signal handler may call this; a second call kills the processes at once."""
        self._is_interrupted = True
        self._messages.put(number)
        if self._is_evaluating:
            raise RuntimeError("the run was ended")

    def _next(self) -> Message | None:
        """Wait for the next message; return None when it is time for a retry, or to check for signals."""
        timeout = min(_LOOK_UP, max(0.0, self._timers[0][0] - time.monotonic())) if self._timers else _LOOK_UP
        try:
            return self._messages.get(timeout=timeout)
        except queue.Empty:
            return None

    def _handle(self, message: Message | None) -> None:
        if isinstance(message, int):
            self._end(signal.Signals(message).name, reasons.ended_with_the_run())
            raise Interrupted(message)
        if message is not None:
            self._stages.take(*message)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _expire(self) -> None:
        self.reason = f"the time limit of {self._time_limit:g} s is over"
        self._end(f"T{self.reason[1:]}", reasons.ended_with_the_run(self.reason))
        raise _TimeIsOver

    def _end(self, reason: str, ended: str) -> None:
        """End all stages, and report those that have not begun; ``ended`` is the reason for those that have."""
        why = reasons.RUN_WAS_ENDED
        self._listener(RunEnding(reason, self._options.grace))
        self._stages.cancel(ended, reasons.not_run(why), why)
        for dag in self._dags:
            for run in dag.runs.values():
                if run.state is None:
                    self._drop(run, why)

    def _drop(self, run: TaskRun, why: str) -> None:
        """Report that the stages of a task will not run any more, except those in DAGs that have begun."""
        missing = [*self._stages_of(run)] if run in self._retrying or (not run.tries and run.loop is None) else []
        if run.loop is not None:
            for index in range(run.loop.started, len(run.loop.items)):
                missing += self._stages_in(run.component, run.dag.names.inside_iteration(index))
        for stage in missing:
            self._stages.drop(stage.name, stage.task.name, reasons.not_run(why), why)

    def _fail_fast(self, failed: TaskRun) -> None:
        """End all stages after a failure, except those that run even after failures, such as exit tasks."""
        self._stopping = reasons.ends_the_run(failed.name)
        self._listener(RunEnding(f"{failed.name} failed", self._options.grace))
        why = f"{failed.name} failed"
        for run, state in self._stages.cancel(f"was ended: {why}", reasons.not_run(self._stopping), why, _runs_always):
            self._finish(run, state, {})
        for run in list(self._retrying):
            self._drop(run, why)
            self._finish(run, State.FAILED, {})
        self._retrying.clear()

    def _open(self, dag: DagRun) -> None:
        self._dags[dag] = None
        self._ready.extend(run for run in dag.runs.values() if run.waiting == 0)
        if not dag.runs:
            self._over.append(dag)

    def _advance(self) -> None:
        while self._ready or self._over or (self._failure and not self._stopping):
            if self._failure and not self._stopping:
                self._fail_fast(self._failure)
            elif self._over:
                self._close(self._over.popleft())
            else:
                self._begin(self._ready.popleft())

    def _begin(self, run: TaskRun) -> None:
        """Begin a task whose upstream tasks have all ended."""
        dag = run.dag
        before = [dag.runs[name] for name in run.task.depends_on]
        upstream = [reasons.TaskOutcome(self._name_of(other), other.state) for other in before]
        stopped = reasons.not_run(self._stopping) if self._stopping and not _runs_always(run) else ""
        state, reason = reasons.after_upstream(dag.component.as_dag(), run.task, upstream, stopped)
        if state is not State.QUEUED:
            self._pass_over(run, state, reason)
            return
        try:
            run.inputs = task_inputs(run, self._context.constants)
            if run.task.condition is not None and not self._holds(run):
                self._pass_over(run, State.SKIPPED, reasons.CONDITION_IS_FALSE)
                return
            items = loop_items(run) if run.task.loop else []
            self._count(items)
        except Exception as error:
            self._stages.fail(run, error)
            return
        if run.task.loop is not None:
            run.loop = LoopProgress(items, run.task.loop.parallelism)
            # Inner loops have events of their own.
            stages = tuple(without_indices(stage.name) for stage in self._inside(run) if not stage.looped)
            self._listener(LoopStarted(run.name, len(items), stages))
            self._continue_loop(run)
        elif run.component.dag is not None:
            self._enter(run)
        elif run.component.importer is not None:
            self._import(run, run.component.importer)
        elif is_volume_task(run.component):
            self._made(run, outputs=volume_outputs(run.component, run.inputs, self._context.run_id))
        else:
            self._stages.add(run)

    def _enter(self, run: TaskRun) -> None:
        """Begin a nested pipeline or a branch."""
        run.tries += 1
        inputs = with_defaults(run.component, run.inputs)
        self._open(DagRun(self._pipeline, run.component, inputs, run.dag.names.inside(run.task), run))

    def _import(self, run: TaskRun, importer: Importer) -> None:
        """Finish an importer: its artifact exists already, so nothing runs."""
        try:
            workspace = self._context.constants["workspace_path"]
            names = run.component.artifact_outputs
            artifacts = {name: import_artifact(name, importer, run.inputs, workspace) for name in names}
        except ValueError as error:
            self._stages.fail(run, error)
            return
        self._made(run, artifacts=artifacts)

    def _made(
        self, run: TaskRun, outputs: Mapping[str, Any] | None = None, artifacts: Mapping[str, Artifact] | None = None
    ) -> None:
        """Finish a task that does not need a process."""
        result = StageResult(
            name=run.name,
            task=run.task.name,
            state=State.SUCCEEDED,
            outputs=outputs or {},
            artifacts=artifacts or {},
            inputs=parameters_of(run.inputs),
            started_at=time.time(),
        )
        self._stages.report(result)
        self._finish(run, State.SUCCEEDED, {**result.outputs, **result.artifacts})

    def _count(self, items: Sequence[Any]) -> None:
        self._items += len(items)
        if self._items > self._options.max_items:
            raise ValueError(
                f"loops over {len(items):,} items, but all loops of a run together may have "
                f"{self._options.max_items:,}. Raise the limit with --max-items (max_items), or let each stage process "
                "several items"
            )

    def _holds(self, run: TaskRun) -> bool:
        condition = run.task.condition or ""
        try:
            self._is_evaluating = True
            if self._is_interrupted:  # by a signal that came just before
                raise ValueError("is not evaluated: the run was ended")
            return is_true(condition, parameters_of(with_defaults(run.component, run.inputs)))
        except ValueError as error:
            raise ValueError(f"has the condition {condition!r}, which {error}") from None
        finally:
            self._is_evaluating = False

    def _continue_loop(self, run: TaskRun) -> None:
        progress, loop = run.loop, run.task.loop
        assert progress is not None
        assert loop is not None
        while progress.may_start and not self._is_interrupted:
            index = progress.started
            progress.started += 1
            inputs = {**with_defaults(run.component, run.inputs), loop.item_input: progress.items[index]}
            names = run.dag.names.inside_iteration(index)
            self._open(DagRun(self._pipeline, run.component, inputs, names, run, index))
        if progress.is_over:
            run.reason = "failed in an iteration" if progress.failed else ""
            run.failed.sort(key=indices_of)  # iterations end in any order
            outputs = collect(run, self._pipeline)
            stages = sorted(without_indices(stage.name) for stage in self._inside(run))
            run.missing = missing_in_iterations(run, stages)
            self._finish(run, State.FAILED if progress.failed else State.SUCCEEDED, outputs)

    def _close(self, dag: DagRun) -> None:
        """Finish a DAG whose tasks have all ended."""
        del self._dags[dag]
        run = dag.owner
        if run is None:
            return
        if run.loop is not None:
            run.loop.ended += 1
            run.loop.failed |= dag.failed
            run.failed += dag.failures()
            run.loop.outputs[dag.index] = dag.outputs()
            self._continue_loop(run)
        elif dag.failed and not self._stopping and (retry := run.retry_left) is not None:
            delay = retry.delay(run.tries)
            self._stages.expect_again(run.name)
            self._listener(PipelineRetried(run.name, run.tries, reasons.failed_in(dag.failures()), delay))
            self._retrying[run] = None
            self._later(delay, lambda: self._try_again(run))
        else:
            run.reason = reasons.failed_in(dag.failures())
            run.failed = dag.failures() if run.task.is_group else []
            run.missing = dag.missing_outputs()
            self._finish(run, State.FAILED if dag.failed else State.SUCCEEDED, dag.outputs())

    def _try_again(self, run: TaskRun) -> None:
        if run in self._retrying:
            del self._retrying[run]
            self._enter(run)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._timer_order), action))

    def _finish(self, run: TaskRun, state: State, outputs: Mapping[str, Any]) -> None:
        """Record that a task has ended; tasks that wait for it may begin."""
        run.state = state
        run.outputs = outputs
        dag = run.dag
        failed = state is State.FAILED and not reasons.is_ignored(run.task, state)
        dag.failed |= failed or state in (State.NOT_RUN, State.CANCELED)
        if self._options.fail_fast and failed and not _may_be_retried(dag):
            self._failure = self._failure or run
        dag.remaining -= 1
        for dependent in run.dependents:
            dependent.waiting -= 1
            if dependent.waiting == 0:
                self._ready.append(dependent)
        if dag.remaining == 0:
            self._over.append(dag)

    def _pass_over(self, run: TaskRun, state: State, reason: str) -> None:
        """Record that a task and all stages inside it do not run."""
        run.reason = reason
        ends = self._failure if state is State.NOT_RUN and self._stopping and not _runs_always(run) else None
        for stage in self._stages_of(run):
            if ends is not None:
                self._stages.drop(stage.name, stage.task.name, reason, f"{ends.name} failed")
            else:
                self._stages.pass_over(stage.name, stage.task.name, state, reason)
        self._finish(run, state, {})

    def _stages_of(self, run: TaskRun) -> Iterable[TaskRun | ScopedTask]:
        """Return the stages of a task: the task itself, or the stages inside it."""
        return [run] if run.component.dag is None else self._inside(run)

    def _name_of(self, run: TaskRun) -> str:
        """Name a task in a sentence; a group, which only KFP's compiler has named, by the stages in it."""
        if not run.task.is_group or run.state is State.SUCCEEDED:
            return run.name
        if run.state is State.FAILED:
            return listed(run.failed, reasons.MOST_NAMED) or run.name
        return next((stage.name for stage in self._inside(run)), run.name)

    def _inside(self, run: TaskRun) -> Iterator[ScopedTask]:
        return self._stages_in(run.component, run.dag.names.inside(run.task))

    def _stages_in(self, component: Component, names: StageNames) -> Iterator[ScopedTask]:
        return (task for task in walk(self._pipeline, component, names) if task.is_stage)


def _runs_always(run: TaskRun) -> bool:
    """Tell whether the task, or a task that contains it, runs even after failures."""
    owner = run.dag.owner
    return run.task.runs_always or (owner is not None and _runs_always(owner))


def _may_be_retried(dag: DagRun) -> bool:
    """Tell whether a nested pipeline around the DAG may be retried, so that a failure in it need not fail the run."""
    run = dag.owner
    if run is None:
        return False
    return (run.loop is None and run.retry_left is not None) or _may_be_retried(run.dag)
