"""Run the tasks of a pipeline: a task starts when its upstream tasks have ended; a stage may then wait in a queue.

One thread, the caller's, decides everything; signals, and the threads that prepare and run attempts, only report events
to it (see ``agenda``). A stage ends in ``_end_stage``: with the result of its last attempt (``_on_message``), with that
of another run (``_start_prepared``), or because it cannot be started (``_fail_task``); those that do not run end in
``_end_without_running``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torchx_kfp.common.text import clean, listed
from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.execution.local import gpus
from torchx_kfp.execution.local.agenda import Agenda
from torchx_kfp.execution.local.attempt import AttemptThread, RunContext, plan_attempt
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.local.dag_run import (
    DagRun,
    LoopProgress,
    TaskRun,
    collect,
    import_artifact,
    missing_in_iterations,
    task_inputs,
)
from torchx_kfp.execution.local.executors.executor import AttemptPlan
from torchx_kfp.execution.local.kubernetes import time_limit, volume_outputs
from torchx_kfp.execution.local.output import StageLines
from torchx_kfp.execution.pipeline.artifacts import is_artifact, parameters_of
from torchx_kfp.execution.pipeline.conditions import is_true
from torchx_kfp.execution.pipeline.inputs import inputs_of_iteration, inputs_of_root, loop_items
from torchx_kfp.execution.pipeline.spec import Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import (
    ScopedTask,
    StageNames,
    indices_of,
    walk_tasks,
    without_indices,
)
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.events import (
    Listener,
    LoopStarted,
    RunEnding,
    StageFinished,
    StagePending,
    StageReplicas,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: Seconds for which a stage that is being prepared keeps its place before those after it.
_PATIENCE = 1.0
#: Seconds for which an attempt may go on after its processes were killed.
_LEAVE = 5.0


#: The plan of an attempt, and the cached result, if any.
_Prepared: TypeAlias = tuple[AttemptPlan, StageResult | None]


@dataclass
class _Running:
    """A running attempt. If it was asked to stop, ``ending`` has the state and reason of its stage."""

    run: TaskRun
    attempt: AttemptThread
    ending: tuple[State, str] | None = None


@dataclass(frozen=True)
class _Stop:
    """Why no more tasks start: a failure, or the end of the run.

    Attributes:
        ended: the reason of running stages.
        not_run: the reason of tasks that have not started, as a clause.
        why: the reason of tasks that wait for another attempt, as a clause.
        spares_some: whether exit tasks, and tasks that ignore failures, still run.
    """

    ended: str
    not_run: str = reasons.RUN_WAS_ENDED
    why: str = reasons.RUN_WAS_ENDED
    spares_some: bool = False

    def ends(self, run: TaskRun) -> bool:
        return not (self.spares_some and _ignores_failures(run))


class Scheduler:
    """Runs one pipeline once."""

    def __init__(
        self,
        pipeline: Pipeline,
        context: RunContext,
        lines: StageLines,
        listener: Listener,
        done: Mapping[str, StageResult],
        cache: Cache | None,
        fresh: Collection[str],
    ) -> None:
        """Prepare the run.

        Args:
            pipeline: the pipeline.
            context: what its stages share.
            lines: gets the output of its stages.
            listener: gets its events.
            done: the results, by name, of stages that a retry keeps.
            cache: the cache of all runs; None if it is not used.
            fresh: the stages, by their names without indices, to run even if they are cached.
        """
        self._pipeline = pipeline
        self._context = context
        self._options = options = context.options
        self._time_limit = options.timeout if options.timeout is not None else time_limit(pipeline.platform)
        self._lines = lines
        self._listener = listener
        self._done = done
        self._cache = cache
        self._fresh = fresh
        #: Attempts post their messages. Signals and a failure that end the run come first.
        self._agenda = Agenda()
        #: The number of items in all loops so far.
        self._items = 0
        #: Stages that wait for room; stages that wait for another attempt; running attempts by pod names.
        self._waiting: deque[TaskRun] = deque()
        self._retrying: dict[TaskRun, None] = {}
        #: Stages that wait for GPUs, in order, with the plans of their attempts.
        self._for_gpus: dict[TaskRun, AttemptPlan] = {}
        #: Stages that are being prepared, in order, each with the start time and the result.
        self._preparing: dict[TaskRun, tuple[float, futures.Future[_Prepared]]] = {}
        self._running: dict[str, _Running] = {}
        #: The attempts by the paths that they have written and registered.
        self._written: dict[str, list[_Running]] = {}
        #: The stages that are done, with all or the first of their indices.
        self._done_in = {
            (without_indices(name), indices_of(name)[:count])
            for name in done
            for count in range(len(indices_of(name)) + 1)
        }
        #: Writes to the cache, in order: it reads all files of an artifact.
        self._in_order = futures.ThreadPoolExecutor(1)
        #: Why no more tasks begin, and the signal that ends the run.
        self._stopped: _Stop | None = None
        self.signal: signal.Signals | None = None
        #: Why the run failed, if no stage failed.
        self.reason = ""

    def run(self, arguments: Mapping[str, Any]) -> DagRun:
        """Run all tasks, and return the root. If ``signal`` is set afterwards, it ended the run."""
        root = DagRun(self._pipeline, self._pipeline.root, inputs_of_root(self._pipeline.root, arguments), StageNames())
        if self._time_limit is not None:
            self._agenda.add(self._expire, self._time_limit)
        try:
            self._open(root)
            while root.left.is_active():
                if not self._agenda.act() and not self._start_next():
                    self._agenda.wait(gpus.POLL if self._for_gpus else math.inf)
        except BaseException:
            # The exception is a listener's: it must not get more events.
            self._kill()
            raise
        finally:
            self._in_order.shutdown()
        root.failed |= bool(self.reason)
        return root

    def interrupt(self, number: int) -> None:
        """End the run. A signal handler may call this; a second call kills the processes at once."""
        self._agenda.put_first(lambda: self._end_run(number))

    def _end_run(self, number: int) -> None:
        for running in self._running.values():
            if running.ending:
                running.attempt.kill()
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._stop(self.signal.name, _Stop(reasons.ended_with_the_run()))

    def _expire(self) -> None:
        if self.signal is None:
            self.reason = f"the time limit of {self._time_limit:g} s was exceeded"
            self._stop(f"T{self.reason[1:]}", _Stop(reasons.ended_with_the_run(self.reason)))

    def _fail_fast(self, failed: TaskRun) -> None:
        if not self._stopped:
            why = f"{failed.name} failed"
            self._stop(why, _Stop(f"was ended: {why}", reasons.ends_the_run(failed.name), why, spares_some=True))

    def _stop(self, reason: str, stop: _Stop) -> None:
        """End all stages that are not spared. From now on, ``_begin`` starts only spared tasks."""
        self._stopped = stop
        self._listener(RunEnding(reason, self._options.grace))
        for pod_name, running in self._running.items():
            if stop.ends(running.run):
                self._end_attempt(pod_name, State.CANCELED, stop.ended)
        for run in [*self._retrying, *self._for_gpus, *self._preparing, *self._waiting]:
            if stop.ends(run):
                self._retrying.pop(run, None)
                self._end_without_running(run, State.NOT_RUN, reasons.not_run(stop.not_run))
                self._preparing.pop(run, None)
                self._for_gpus.pop(run, None)
        self._waiting = deque(run for run in self._waiting if not stop.ends(run))

    def _end_attempt(self, pod_name: str, state: State, reason: str) -> None:
        """Ask an attempt to stop, kill it after the grace period, and abandon it if it still runs.

        It may be copying from an unresponsive server, without a process.
        """
        running = self._running.get(pod_name)
        if running is None or running.ending:
            return
        running.ending = state, reason
        running.attempt.terminate(self._options.grace)
        self._agenda.add(running.attempt.kill, self._options.grace)
        self._agenda.add(lambda: self._give_up(pod_name), self._options.grace + _LEAVE)

    def _give_up(self, pod_name: str) -> None:
        """End an attempt whose thread does not stop, and release its GPUs."""
        if running := self._running.get(pod_name):
            running.attempt.release_gpus()
            self._on_message(pod_name, running.attempt.plan.result())

    def _kill(self) -> None:
        """Kill the processes of all attempts, and wait for them."""
        attempts = [running.attempt for running in self._running.values()]
        for attempt in attempts:
            attempt.kill()
        deadline = time.monotonic() + _LEAVE
        for attempt in attempts:
            attempt.join(max(0.0, deadline - time.monotonic()))

    def _open(self, dag: DagRun) -> None:
        """Start the tasks of a DAG that are ready, or finish the DAG."""
        for name in dag.left.get_ready():
            self._agenda.add(partial(self._begin, dag.runs[name]))
        if not dag.left.is_active():
            self._agenda.add(partial(self._end_dag, dag))

    def _begin(self, run: TaskRun) -> None:
        """Start a task after its upstream tasks."""
        dag = run.dag
        before = [dag.runs[name] for name in run.task.depends_on]
        stop = self._stop_of(run)
        is_over = stop is not None and not stop.spares_some
        upstream = [reasons.TaskOutcome(self._name_of(other), other.state, is_over) for other in before]
        stopped = reasons.not_run(stop.not_run) if stop else ""
        state, reason = reasons.after_upstream(dag.component.as_dag(), run.task, upstream, stopped)
        if state is not State.QUEUED:
            self._end_without_running(run, state, reason)
            return
        try:
            run.inputs = task_inputs(run, self._context.constants)
            values = parameters_of(run.inputs)
            if run.task.condition is not None and not is_true(run.task.condition, values):
                self._end_without_running(run, State.SKIPPED, reasons.CONDITION_IS_FALSE)
                return
            items = loop_items(run.task.loop, run.inputs) if run.task.loop else []
            self._count(items)
        except Exception as error:
            self._fail_task(run, error)
            return
        if run.task.loop is not None:
            run.loop = LoopProgress(items, run.task.loop.parallelism)
            # Inner loops have their own events.
            stages = tuple(without_indices(stage.name) for stage in self._inside(run) if not stage.looped)
            self._listener(LoopStarted(run.name, len(items), stages))
            self._continue_loop(run)
        elif run.component.dag is not None:
            self._open(DagRun(self._pipeline, run.component, run.inputs, run.dag.names.inside(run.task), run))
        elif run.component.importer is not None or is_volume_task(run.component):
            self._make_claim_or_artifact(run)
        elif done := self._done.get(run.name):
            self._end_task(run, done.state, {**done.outputs, **done.artifacts})
        else:
            self._listener(StageWaiting(run.name, run.task.name))
            self._waiting.append(run)

    def _make_claim_or_artifact(self, run: TaskRun) -> None:
        """Finish a task without a process: a volume claim, or an imported artifact."""
        outputs, artifacts = volume_outputs(run.component, run.inputs, self._context.run_id), {}
        if (importer := run.component.importer) is not None:
            workspace = self._context.constants["workspace_path"]
            try:
                for name in run.component.artifact_outputs:
                    artifacts[name] = import_artifact(name, importer, run, workspace)
            except ValueError as error:
                self._fail_task(run, error)
                return
        made = StageResult(run.name, run.task.name, State.SUCCEEDED, outputs=outputs, artifacts=artifacts)
        self._end_stage(run, dataclasses.replace(made, inputs=parameters_of(run.inputs), started_at=time.time()))

    def _count(self, items: Sequence[Any]) -> None:
        self._items += len(items)
        if self._items > self._options.max_items:
            raise ValueError(
                f"loops over {len(items):,} items, but all loops of a run together may have "
                f"{self._options.max_items:,}. Raise the limit, max_items of local.run, or let each stage process "
                "several items"
            )

    def _continue_loop(self, run: TaskRun) -> None:
        progress, loop = run.loop, run.task.loop
        assert progress is not None
        assert loop is not None
        while progress.may_start:
            index = progress.started
            progress.started += 1
            inputs = inputs_of_iteration(run.task, run.component, run.inputs, progress.items[index])
            names = run.dag.names.inside_iteration(index)
            self._open(DagRun(self._pipeline, run.component, inputs, names, run, index))
        if progress.is_over:
            run.reason = "failed in an iteration" if progress.failed else ""
            run.failed.sort(key=indices_of)  # iterations end in any order
            outputs = collect(run.component, progress.outputs, self._pipeline)
            stages = sorted(without_indices(stage.name) for stage in self._inside(run))
            run.missing = missing_in_iterations(run.component.as_dag(), progress.outputs, stages)
            self._end_task(run, State.FAILED if progress.failed else State.SUCCEEDED, outputs)

    def _end_dag(self, dag: DagRun) -> None:
        """Finish a DAG after its tasks."""
        run = dag.owner
        if run is None:
            return
        if run.loop is not None:
            run.loop.ended += 1
            run.loop.failed |= dag.failed
            run.failed += dag.failures()
            run.loop.outputs[dag.index] = dag.outputs()
            self._continue_loop(run)
        else:
            run.reason = reasons.failed_in(dag.failures())
            run.failed = dag.failures() if run.task.is_group else []
            run.missing = dag.missing_outputs()
            self._end_task(run, State.FAILED if dag.failed else State.SUCCEEDED, dag.outputs())

    def _try_again(self, run: TaskRun) -> None:
        if run in self._retrying:
            del self._retrying[run]
            self._waiting.append(run)

    def _start_next(self) -> bool:
        """Start the next stage that waits for GPUs, or prepare another stage. Return False if neither is possible."""
        if len(self._running) + len(self._preparing) >= self._options.parallelism:
            return False
        if self._start_with_gpus():
            return True
        if not self._waiting:
            return False
        run = self._waiting.popleft()
        pod_name = self._context.pod_names.make(run.name, run.tries + 1)
        prepared: futures.Future[_Prepared] = futures.Future()

        def prepare() -> None:
            try:
                prepared.set_result(self._prepare(run, pod_name))
            except BaseException as error:  # the scheduler's thread raises it
                prepared.set_exception(error)
            self._agenda.post(self._start_prepared)

        self._preparing[run] = time.monotonic(), prepared
        threading.Thread(target=prepare, daemon=True).start()
        self._agenda.add(self._start_prepared, _PATIENCE)
        return True

    def _prepare(self, run: TaskRun, pod_name: str) -> _Prepared:
        """Return the plan of the stage's next attempt, and the cached result, if any, before the first one.

        This runs outside the scheduler's thread, because it reads files, images and stores, which may not answer.
        """
        plan = plan_attempt(run, self._context, pod_name)
        if self._cache is None or run.tries:
            return plan, None
        self._in_order.submit(bool).result()  # earlier stages may have written its code
        run.key = self._cache.key(plan, run, self._context)
        is_fresh = without_indices(run.name) in self._fresh
        return plan, self._cache.get(run.key) if run.key is not None and not is_fresh else None

    def _start_prepared(self) -> None:
        """Start prepared stages that are not cached, in order. After a while, others overtake a slow one."""
        for run, (began, prepared) in list(self._preparing.items()):
            if not prepared.done():
                if time.monotonic() - began < _PATIENCE:
                    return
            elif self._preparing.pop(run, None) is not None:  # unless it was passed over meanwhile
                try:
                    plan, found = prepared.result()
                except Exception as error:  # other tasks go on
                    self._fail_task(run, error)
                    continue
                if found is None and plan.asks_gpus:
                    self._for_gpus[run] = plan
                    self._start_with_gpus()
                    if run in self._for_gpus:
                        reason = self._context.gpus.waits(plan.asks_gpus)
                        self._listener(StagePending(run.name, run.task.name, reason))
                elif found is None:
                    self._start(run, plan)
                else:
                    timing: dict[str, Any] = {"duration": 0.0, "attempts": 0, "started_at": time.time()}
                    named = dataclasses.replace(found, name=run.name, task=run.task.name, state=State.CACHED, **timing)
                    self._end_stage(run, named)

    def _start_with_gpus(self) -> bool:
        """Start the stage that has waited longest for GPUs, if enough are free.

        Smaller requests do not overtake it; otherwise it might wait forever.
        """
        run, plan = next(iter(self._for_gpus.items()), (None, None))
        if run is None or plan is None or (held := self._context.gpus.take(plan.asks_gpus)) is None:
            return False
        del self._for_gpus[run]
        try:
            self._start(run, plan.with_gpus(held))
        except BaseException:  # the listener's
            held.release()
            raise
        return True

    def _start(self, run: TaskRun, plan: AttemptPlan) -> None:
        run.tries, run.replicas = run.tries + 1, None
        if run.started_at is None:
            run.started, run.started_at = time.monotonic(), time.time()
        pod_name = plan.pod_name
        attempt = AttemptThread(
            plan,
            self._context.containers,
            self._lines,
            lambda message: self._agenda.post(partial(self._on_message, pod_name, message)),
        )
        # Record this before the start: if the runner is killed now, the attempt's folder is known.
        self._listener(
            StageStarted(
                name=run.name,
                pod_name=pod_name,
                attempt=run.tries,
                task=run.task.name,
                log_file=plan.log_file,
                inputs=parameters_of(plan.inputs),
                artifacts={name: value for name, value in plan.inputs.items() if is_artifact(value)},
            )
        )
        self._running[pod_name] = _Running(run, attempt)
        if seconds := time_limit(plan.component.platform):
            reason = f"was ended: its time limit of {seconds:g} s was exceeded"
            self._agenda.add(lambda: self._end_attempt(pod_name, State.FAILED, reason), seconds)
        attempt.start()

    def _on_message(self, pod_name: str, message: StageResult | ReplicaCount) -> None:
        """Process a message of an attempt: its number of running replicas, or its result, which ends or retries it."""
        running = self._running.get(pod_name)
        if running is None:  # it was given up
            return
        run = running.run
        if isinstance(message, ReplicaCount):
            run.replicas = message.total
            self._listener(StageReplicas(run.name, message.running, message.total))
            return
        del self._running[pod_name]
        if running.ending:
            state, reason = running.ending
            ended = running.attempt.plan.result() if state is State.CANCELED else message
            message = dataclasses.replace(ended, state=state, reason=reason, outputs={}, artifacts={})
        clash = "" if message.reason else self._clash(running)
        if clash:
            nothing: dict[str, Any] = {"outputs": {}, "artifacts": {}}
            message = dataclasses.replace(message, state=State.FAILED, reason=clash, **nothing)
        result = dataclasses.replace(
            message,
            duration=time.monotonic() - run.started,
            attempts=run.tries,
            started_at=run.started_at,
            replicas=run.replicas,
            code="" if run.key is None or run.key.code is None else str(run.key.code),
        )
        may_retry = result.reason and not self._stop_of(run) and not clash
        if may_retry and (delay := run.retry_delay) is not None:
            run.last = result
            self._listener(StageRetried(run.name, result.attempts, clean(result.reason), delay))
            self._retrying[run] = None
            self._agenda.add(lambda: self._try_again(run), delay)
            return
        if may_retry and (retry := run.task.retry) is not None and run.tries <= retry.count:
            late = f"; no retry begins {retry.backoff_max:g} s after the first start (backoff_max_duration)"
            result = dataclasses.replace(result, reason=f"{result.reason}{late}")
        self._end_stage(run, result)
        if self._cache is not None:
            written = [*itertools.chain(*running.attempt.written.values())]
            self._in_order.submit(self._cache.put, run.key, result, written, running.attempt.plan)

    def _clash(self, running: _Running) -> str:
        """Return why an attempt may have another attempt's artifacts, or ""."""
        for path in running.attempt.written:
            others = self._written.setdefault(path, [])
            at_once = [it for it in others if it.run is not running.run and running.attempt.overlaps(it.attempt)]
            others.append(running)
            for other in at_once:
                if self._cache is not None:
                    self._in_order.submit(self._cache.remove, other.run.key)
            if at_once:
                return (
                    f"wrote and registered {path}, and so did {at_once[0].run.name} at the same time: either may have "
                    "the other's file. Write to paths that differ (in a loop, with the item in the name), or give each "
                    "execution its own folder with --workspace"
                )
        return ""

    def _fail_task(self, run: TaskRun, error: Exception) -> None:
        """Fail a task that cannot start. Other tasks go on."""
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"could not be prepared: {type(error).__name__}: {error}"
        self._end_stage(run, StageResult(run.name, run.task.name, State.FAILED, reason=reason))

    def _end_stage(self, run: TaskRun, result: StageResult) -> None:
        """End a stage."""
        run.reason = result.reason
        self._report(result)
        self._end_task(run, result.state, {**result.outputs, **result.artifacts})

    def _report(self, result: StageResult) -> None:
        """Record the result of a stage."""
        self._listener(StageFinished(dataclasses.replace(result, reason=clean(result.reason))))

    def _end_task(self, run: TaskRun, state: State, outputs: Mapping[str, Any]) -> None:
        """Record the end of a task, so tasks that wait for it may start."""
        run.state = state
        run.outputs = outputs
        dag = run.dag
        failed = state is State.FAILED and not reasons.is_ignored(run.task, state)
        dag.failed |= failed or state in (State.NOT_RUN, State.CANCELED)
        if self._options.fail_fast and failed:
            self._agenda.put_first(partial(self._fail_fast, run))
        dag.left.done(run.task.name)
        self._open(dag)

    def _end_without_running(self, run: TaskRun, state: State, reason: str) -> None:
        """End a task that does not run, and its unfinished stages."""
        run.reason = reason
        if (last := run.last) is not None:  # it waits for another attempt
            why = reasons.canceled_while_waiting(self._stopped.why if self._stopped else "", last.reason)
            nothing: dict[str, Any] = {"exit_code": None, "outputs": {}, "artifacts": {}}
            self._report(dataclasses.replace(last, state=State.CANCELED, reason=why, **nothing))
            self._end_task(run, State.CANCELED, {})
            return
        for stage in [run] if run.component.dag is None else self._inside(run):
            if (without_indices(stage.name), indices_of(stage.name)) not in self._done_in:
                self._report(StageResult(stage.name, stage.task.name, state, reason=reason))
        self._end_task(run, state, {})

    def _stop_of(self, run: TaskRun) -> _Stop | None:
        """Return why the task will not start; None if it will."""
        return self._stopped if self._stopped and self._stopped.ends(run) else None

    def _name_of(self, run: TaskRun) -> str:
        """Return a task's name for messages; for a group, which KFP's compiler named, the names of its stages."""
        if not run.task.is_group or run.state is State.SUCCEEDED:
            return run.name
        if run.state is State.FAILED:
            return listed(run.failed, reasons.MOST_NAMED) or run.name
        return next((stage.name for stage in self._inside(run)), run.name)

    def _inside(self, run: TaskRun) -> Iterator[ScopedTask]:
        tasks = walk_tasks(self._pipeline, run.component, run.dag.names.inside(run.task))
        return (task for task in tasks if task.is_stage)


def _ignores_failures(run: TaskRun) -> bool:
    """Return whether the task, or one that contains it, runs even after failures."""
    owner = run.dag.owner
    return run.task.ignores_failures or (owner is not None and _ignores_failures(owner))
