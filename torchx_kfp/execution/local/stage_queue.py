"""The stages of a running pipeline, which wait for their turn, run, are retried, or need not run at all."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torchx_kfp.common.text import clean
from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.execution.local.attempt import AttemptThread, RunContext, key_in_cache, placed, plan_attempt
from torchx_kfp.execution.local.cache import Memory, input_key
from torchx_kfp.execution.local.dag_run import TaskRun
from torchx_kfp.execution.local.executors.executor import AttemptPlan
from torchx_kfp.execution.local.log_pump import LogPump
from torchx_kfp.execution.pipeline.artifacts import is_artifact, parameters_of
from torchx_kfp.execution.pipeline.code_files import CodeFiles
from torchx_kfp.execution.pipeline.walk import PodNames, is_execution
from torchx_kfp.execution.runs.events import (
    Listener,
    StageFinished,
    StageReplicas,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.reasons import canceled_while_waiting
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The result of an attempt, or its number of running replicas; or the number of a signal.
Message: TypeAlias = tuple[AttemptThread, StageResult | ReplicaCount] | int
#: Seconds that stages have to end after their processes were killed.
_LEAVE = 5.0


class StageQueue:
    """Runs stages as soon as there is room for them, and reports how they end.

    Args:
        context: the facts about the run.
        pump: reads the output of stages.
        listener: gets their events.
        memory: knows which stages need not run.
        messages: a queue for the end of each attempt, which the caller passes to ``take``.
        later: calls a function after a number of seconds, for retries.
        ended: is called with a task whose stage has ended, its state, and its outputs.
    """

    def __init__(
        self,
        context: RunContext,
        pump: LogPump,
        listener: Listener,
        memory: Memory,
        messages: queue.SimpleQueue[Message],
        later: Callable[[float, Callable[[], None]], None],
        ended: Callable[[TaskRun, State, Mapping[str, Any]], None],
    ) -> None:
        self._context = context
        self._pump = pump
        self._listener = listener
        self._memory = memory
        self._messages = messages
        self._later = later
        self._ended = ended
        self._code = CodeFiles(Path(context.options.directory))
        self._pod_names = PodNames()
        self._attempts = Counter[str]()
        #: Stages that may have succeeded in the run that is resumed: looking that up needs no room.
        self._recallable: deque[TaskRun] = deque()
        self._startable: deque[TaskRun] = deque()
        self._running: dict[AttemptThread, TaskRun] = {}
        self._retrying: dict[TaskRun, None] = {}
        #: How each stage ended the last time that it ran.
        self._results: dict[str, StageResult] = {}
        #: Stages that failed in a nested pipeline that is being retried, until they end again.
        self._failed_before: dict[str, StageResult] = {}

    def report(self, result: StageResult, *, kept: bool = False) -> None:
        """Record how a stage has ended, or that it does not run."""
        result = dataclasses.replace(result, reason=clean(result.reason))
        self._results[result.name] = result
        self._failed_before.pop(result.name, None)
        self._listener(StageFinished(result, kept=kept))

    def expect_again(self, pipeline: str) -> None:
        """Remember which stages of a nested pipeline have failed, because it is going to be retried."""
        for name, result in self._results.items():
            if name.startswith(f"{pipeline}/") and result.state is State.FAILED:
                self._failed_before[name] = result

    def drop(self, name: str, task: str, reason: str, why: str) -> None:
        """Report that a stage will not run any more, unless it has ended; if it waits for a retry, it is canceled.

        Args:
            name: the stage's name; in a loop that has not begun, without the loop's index.
            task: its task's name.
            reason: why it does not run, as a part of a sentence.
            why: why the run ends, as a clause.
        """
        waiting = [result for key, result in self._failed_before.items() if is_execution(key, name)]
        for result in waiting:
            self._cancel_waiting(result, why)
        if not waiting and name not in self._results:
            self.pass_over(name, task, State.NOT_RUN, reason)

    def pass_over(self, name: str, task: str, state: State, reason: str) -> None:
        """Report that a stage does not run now. What has succeeded in the run that is resumed stays.

        Args:
            name: the stage's name; in a loop that has not begun, without the loop's index.
            task: its task's name.
            state: whether it is skipped, or not run.
            reason: why, as a part of a sentence.
        """
        before = self._memory.executions(name) if state is State.NOT_RUN else []
        before = [end for end in before if end.name not in self._results]
        for end in before:
            self.report(end, kept=True)
        if name not in self._results:
            self.report(StageResult(name, task, state, reason=reason))

    def _cancel_waiting(self, last: StageResult, why: str) -> None:
        """Report that a stage was canceled while it waited for another attempt; ``last`` is how the last one ended."""
        reason = canceled_while_waiting(why, last.reason)
        self.report(
            dataclasses.replace(last, state=State.CANCELED, exit_code=None, reason=reason, outputs={}, artifacts={})
        )

    def add(self, run: TaskRun) -> None:
        """Queue a stage whose inputs are known."""
        (self._recallable if self._memory.executions(run.name) else self._startable).append(run)
        self._listener(StageWaiting(run.name, run.task.name))

    def fail(self, run: TaskRun, error: Exception) -> None:
        """Record that a task cannot begin. The error must not end other tasks."""
        expected = isinstance(error, ValueError)
        reason = str(error) if expected else f"could not be prepared: {type(error).__name__}: {error}"
        run.reason = reason
        self.report(StageResult(run.name, run.task.name, State.FAILED, reason=reason))
        self._ended(run, State.FAILED, {})

    def start_next(self) -> bool:
        """Start the next stage, or find that it need not run. Return False if there is none, or no room for it."""
        has_room = len(self._running) < self._context.options.parallelism
        if not (self._recallable or (self._startable and has_room)):
            return False
        run = (self._recallable or self._startable).popleft()
        try:
            pod_name = self._pod_names.make(run.name, self._attempts[run.name] + 1)
            plan = plan_attempt(run, self._context, pod_name)
            run.key = input_key(plan.inputs)
            run.cache_key = key_in_cache(plan, run, self._context, self._code) if self._memory.has_cache else ""
        except Exception as error:
            self.fail(run, error)
            return True
        if run.tries or not self._recall(run):
            if has_room:
                self._start(run, plan)
            else:
                self._startable.append(run)
        return True

    def take(self, attempt: AttemptThread, message: StageResult | ReplicaCount) -> None:
        """Process the result of an attempt (the stage has ended, or is retried), or its number of replicas."""
        if isinstance(message, ReplicaCount):
            if attempt in self._running:
                run = self._running[attempt]
                run.replicas = message.total
                self._listener(StageReplicas(run.name, message.running, message.total))
            return
        run = self._running.pop(attempt)
        run.reason = message.reason
        if message.reason and (retry := run.retry_left) is not None:
            delay = retry.delay(run.tries)
            self._listener(StageRetried(run.name, run.attempts, clean(message.reason), delay))
            self._retrying[run] = None
            self._later(delay, lambda: self._try_again(run))
            return
        self.report(run.completed(message))
        self._memory.keep(run.cache_key, self._results[run.name])
        self._ended(run, message.state, {**message.outputs, **message.artifacts})

    def cancel(
        self, reason: str, not_run: str, why: str, spared: Callable[[TaskRun], bool] = lambda run: False
    ) -> list[tuple[TaskRun, State]]:
        """End the stages that run or wait for another attempt, and do not start those that were added.

        Running stages are asked to end, and killed after the grace period or another signal.

        Args:
            reason: why they are ended, as a part of a sentence.
            not_run: why others do not start, as a part of a sentence.
            why: why the run ends, as a clause.
            spared: tells whether a stage is left alone.

        Returns:
            These stages, and their states.
        """
        waiting = [*self._recallable, *self._startable]
        stopped = [run for run in waiting if not spared(run)]
        self._recallable, self._startable = deque(), deque(run for run in waiting if spared(run))
        ending = {attempt for attempt, run in self._running.items() if not spared(run)}
        for attempt in ending:
            attempt.terminate(self._context.options.grace)
        canceled = []
        for seconds, until_signal in ((self._context.options.grace, True), (_LEAVE, False)):
            for attempt in self._ends(ending, seconds, until_signal=until_signal):
                canceled.append(self._canceled(attempt, reason))
            for attempt in ending:
                attempt.kill()
        # These are busy without a process, such as with a copy from a server that does not answer.
        canceled += [self._canceled(attempt, reason) for attempt in ending]
        retrying = [run for run in self._retrying if not spared(run)]
        for run in (*retrying, *stopped):
            self._retrying.pop(run, None)
            if run.plan is not None:
                self._cancel_waiting(run.completed(run.plan.result(reason=run.reason)), why)
            elif run.name in self._results:
                self._cancel_waiting(self._results[run.name], why)
            else:
                self.pass_over(run.name, run.task.name, State.NOT_RUN, not_run)
            canceled.append((run, self._results[run.name].state))
        return canceled

    def kill(self) -> None:
        """Kill the processes of all stages at once, without events."""
        for attempt in self._running:
            attempt.kill()
        for _ in self._ends(set(self._running), _LEAVE):
            pass

    def _ends(
        self, ending: set[AttemptThread], seconds: float, *, until_signal: bool = False
    ) -> Iterator[AttemptThread]:
        """Yield these attempts as they end, for some seconds. Other messages stay in the queue."""
        deadline = time.monotonic() + seconds
        kept: list[Message] = []
        while ending:
            try:
                message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(message, int) and message[0] in ending:
                if isinstance(message[1], ReplicaCount):
                    continue
                ending.remove(message[0])
                yield message[0]
            else:
                kept.append(message)
                if until_signal and isinstance(message, int):
                    break
        for message in kept:
            self._messages.put(message)

    def _canceled(self, attempt: AttemptThread, reason: str) -> tuple[TaskRun, State]:
        run = self._running.pop(attempt)
        self.report(dataclasses.replace(run.completed(attempt.plan.result(reason=reason)), state=State.CANCELED))
        return run, State.CANCELED

    def _recall(self, run: TaskRun) -> bool:
        """Tell whether the stage need not run, and if so, record its earlier result."""
        kept = self._memory.kept(run.name, run.key)
        with self._memory.taking():
            known = kept or self._memory.cached(run.name, run.task.name, run.key, run.cache_key)
            if known is None:
                return False
            self.report(known, kept=kept is not None)
        self._ended(run, known.state, {**known.outputs, **known.artifacts})
        return True

    def _start(self, run: TaskRun, plan: AttemptPlan) -> None:
        self._attempts[run.name] += 1
        run.tries, run.attempts = run.tries + 1, self._attempts[run.name]
        if run.started_at is None:
            run.started, run.started_at = time.monotonic(), time.time()
        try:
            plan = placed(plan, run, self._context)
        except Exception as error:
            self.fail(run, error)
            return
        run.plan, run.replicas = plan, None
        attempt = AttemptThread(
            plan,
            self._context.executor(plan),
            self._pump,
            lambda *message: self._messages.put(message),
            self._context.options.grace,
        )
        # Record this before the start: if the runner is killed now, the attempt's folder is known.
        self._listener(
            StageStarted(
                name=run.name,
                pod_name=plan.pod_name,
                attempt=run.attempts,
                task=run.task.name,
                log_file=plan.log_file,
                inputs=parameters_of(plan.inputs),
                artifacts={name: value for name, value in plan.inputs.items() if is_artifact(value)},
            )
        )
        self._running[attempt] = run
        attempt.start()

    def _try_again(self, run: TaskRun) -> None:
        if run in self._retrying:
            del self._retrying[run]
            self._startable.append(run)
