"""The stages of a running pipeline, which wait for their turn, run, are retried, or need not run at all."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torchx_kfp.local.attempt.execution import Execution, Outcome, Replicas
from torchx_kfp.local.attempt.logs import LogPump
from torchx_kfp.local.attempt.prepare import Preparation, RunContext
from torchx_kfp.local.cache.code import CodeFiles
from torchx_kfp.local.cache.entries import Memory
from torchx_kfp.local.cache.keys import input_key
from torchx_kfp.local.engines.process import Processes
from torchx_kfp.local.scopes import Node
from torchx_kfp.pipeline.names import PodNames, is_execution
from torchx_kfp.runs.events import Listener, StageFinished, StageReplicas, StageRetried, StageStarted, StageWaiting
from torchx_kfp.runs.reasons import canceled_while_waiting
from torchx_kfp.runs.result import StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import clean

#: An attempt that has ended or has another number of running replicas, or the number of a signal.
Happening: TypeAlias = tuple[Execution, Outcome | Replicas] | int
#: A function that is called with a node whose stage has ended, its state, and its outputs.
Ended: TypeAlias = Callable[[Node, State, Mapping[str, Any]], None]
#: A function that calls another one after a number of seconds.
Later: TypeAlias = Callable[[float, Callable[[], None]], None]

#: Seconds that stages have to end after their processes were killed.
_LEAVE = 5.0


@dataclass(eq=False)
class _Stage:
    """A task with a container, from its first attempt on."""

    node: Node
    #: The number of attempts that count for the task's own retry policy, and of all attempts at the stage in this run.
    tries: int = 0
    attempt: int = 0
    #: The start of the first attempt, on the monotonic clock and on the wall clock.
    started: float = 0.0
    started_at: float | None = None
    pod_name: str = ""
    log_file: Path | None = None
    tracker_base: str | None = None
    replicas: int | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: The key of its inputs, and its key in the cache: see ``keys``.
    key: str = ""
    cache_key: str = ""

    def result(self, state: State, outcome: Outcome) -> StageResult:
        """Return the stage's result, given the outcome of its last attempt."""
        return StageResult(
            name=self.node.name,
            task=self.node.task.name,
            state=state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            duration=time.monotonic() - self.started,
            attempts=self.attempt,
            pod_name=self.pod_name,
            log_file=self.log_file,
            outputs=outcome.outputs,
            artifacts=outcome.artifacts,
            run_id=outcome.run_id,
            tracker_base=self.tracker_base,
            results=outcome.results,
            files=outcome.files,
            undelivered=outcome.undelivered,
            inputs=self.inputs,
            started_at=self.started_at,
            key=self.key,
            replicas=self.replicas,
        )


class Stages:
    """Runs stages as soon as there is room for them, and reports how they end.

    Args:
        context: the facts about the run.
        pump: reads the output of stages.
        listener: gets their events.
        memory: knows which stages need not run.
        earlier: attempts at stages, by their names, before the run was resumed.
        happenings: a queue for the end of each attempt, which the caller passes to ``take``.
        later: calls a function later, for retries.
        ended: is called when a stage that was added has ended.
    """

    def __init__(
        self,
        context: RunContext,
        pump: LogPump,
        listener: Listener,
        memory: Memory,
        earlier: Mapping[str, Sequence[StageStarted]],
        happenings: queue.SimpleQueue[Happening],
        later: Later,
        ended: Ended,
    ) -> None:
        self._context = context
        self._pump = pump
        self._listener = listener
        self._memory = memory
        self._happenings = happenings
        self._later = later
        self._ended = ended
        self._processes = Processes()
        self._code = CodeFiles(Path(context.options.directory))
        self._pod_names = PodNames({event.pod_name: name for name, events in earlier.items() for event in events})
        self._attempts = Counter({name: len(events) for name, events in earlier.items()})
        self._startable: deque[_Stage] = deque()
        self._running: dict[Execution, _Stage] = {}
        self._retrying: dict[_Stage, None] = {}
        self._results: dict[str, StageResult] = {}
        #: Stages that failed in a nested pipeline that is being retried, until they end again.
        self._failed_before: dict[str, StageResult] = {}

    @property
    def results(self) -> Mapping[str, StageResult]:
        """How each stage ended the last time that it ran, by their names."""
        return self._results

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
            self.report(StageResult(name, task, State.NOT_RUN, reason=reason))

    def _cancel_waiting(self, last: StageResult, why: str) -> None:
        """Report that a stage was canceled while it waited for another attempt; ``last`` is how the last one ended."""
        reason = canceled_while_waiting(why, last.reason)
        self.report(
            dataclasses.replace(last, state=State.CANCELED, exit_code=None, reason=reason, outputs={}, artifacts={})
        )

    def add(self, node: Node) -> None:
        """Queue a stage whose inputs are known."""
        self._startable.append(_Stage(node))
        self._listener(StageWaiting(node.name, node.task.name))

    def fail(self, node: Node, error: Exception) -> None:
        """Record that a task cannot begin. The error must not end other tasks."""
        expected = isinstance(error, ValueError)
        reason = str(error) if expected else f"could not be prepared: {type(error).__name__}: {error}"
        node.reason = reason
        node.kept = False
        self.report(StageResult(node.name, node.task.name, State.FAILED, reason=reason))
        self._ended(node, State.FAILED, {})

    def start_next(self) -> bool:
        """Start the next stage, or find that it need not run. Return False if there is none, or no room for it."""
        if not self._startable or len(self._running) >= self._context.options.parallelism:
            return False
        stage = self._startable.popleft()
        node = stage.node
        try:
            pod_name = self._pod_names.make(node.name, self._attempts[node.name] + 1)
            prepared = Preparation(node, self._context, pod_name)
            stage.key = input_key(prepared.inputs)
            stage.cache_key = prepared.cache_key(self._code) if self._memory.has_cache else ""
        except Exception as error:
            self.fail(node, error)
            return True
        if stage.tries or not self._recall(stage):
            self._start(stage, prepared)
        return True

    def take(self, execution: Execution, outcome: Outcome | Replicas) -> None:
        """Process the outcome of an attempt (the stage has ended, or is retried), or its number of replicas."""
        if isinstance(outcome, Replicas):
            if execution in self._running:
                stage = self._running[execution]
                stage.replicas = outcome.total
                self._listener(StageReplicas(stage.node.name, outcome.running, outcome.total))
            return
        stage = self._running.pop(execution)
        node, retry = stage.node, stage.node.task.retry
        node.reason = outcome.reason
        if outcome.reason and retry is not None and stage.tries <= retry.count:
            delay = retry.delay(stage.tries)
            self._listener(StageRetried(node.name, stage.attempt, clean(outcome.reason), delay))
            self._retrying[stage] = None
            self._later(delay, lambda: self._try_again(stage))
            return
        state = State.FAILED if outcome.reason else State.SUCCEEDED
        self.report(stage.result(state, outcome))
        self._memory.keep(stage.cache_key, self._results[node.name])
        self._ended(node, state, {**outcome.outputs, **outcome.artifacts})

    def cancel(
        self, reason: str, not_run: str, why: str, spared: Callable[[Node], bool] = lambda node: False
    ) -> list[tuple[Node, State]]:
        """End the stages that run or wait for another attempt, and do not start those that were added.

        Running stages are asked to end, and killed after the grace period or another signal.

        Args:
            reason: why they are ended, as a part of a sentence.
            not_run: why others do not start, as a part of a sentence.
            why: why the run ends, as a clause.
            spared: tells whether a stage is left alone.

        Returns:
            The nodes of these stages, and their states.
        """
        stopped = [stage for stage in self._startable if not spared(stage.node)]
        self._startable = deque(stage for stage in self._startable if spared(stage.node))
        ending = {execution for execution, stage in self._running.items() if not spared(stage.node)}
        for execution in ending:
            execution.terminate(self._context.options.grace)
        canceled = []
        for seconds, until_signal in ((self._context.options.grace, True), (_LEAVE, False)):
            for stage in self._ends(ending, seconds, until_signal=until_signal):
                canceled.append(self._canceled(stage, reason))
            for execution in ending:
                execution.kill()
        # These are busy without a process, such as with a copy from a server that does not answer.
        canceled += [self._canceled(self._running.pop(execution), reason) for execution in ending]
        retrying = [stage for stage in self._retrying if not spared(stage.node)]
        for stage in (*retrying, *stopped):
            self._retrying.pop(stage, None)
            name, task = stage.node.name, stage.node.task.name
            if stage.attempt:
                self._cancel_waiting(stage.result(State.FAILED, Outcome(reason=stage.node.reason)), why)
            elif name in self._results:
                self._cancel_waiting(self._results[name], why)
            else:
                self.report(StageResult(name, task, State.NOT_RUN, reason=not_run))
            canceled.append((stage.node, self._results[name].state))
        return canceled

    def kill(self) -> None:
        """Kill the processes of all stages at once, without events."""
        for execution in self._running:
            execution.kill()
        for _ in self._ends(set(self._running), _LEAVE):
            pass

    def _ends(self, ending: set[Execution], seconds: float, *, until_signal: bool = False) -> Iterator[_Stage]:
        """Yield the stages of these executions as they end, for some seconds. Other happenings stay in the queue."""
        deadline = time.monotonic() + seconds
        others: list[Happening] = []
        while ending:
            try:
                happening = self._happenings.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(happening, int) and happening[0] in ending:
                if isinstance(happening[1], Replicas):
                    continue
                ending.remove(happening[0])
                yield self._running.pop(happening[0])
            else:
                others.append(happening)
                if until_signal and isinstance(happening, int):
                    break
        for happening in others:
            self._happenings.put(happening)

    def _canceled(self, stage: _Stage, reason: str) -> tuple[Node, State]:
        self.report(stage.result(State.CANCELED, Outcome(reason=reason)))
        return stage.node, State.CANCELED

    def _recall(self, stage: _Stage) -> bool:
        """Tell whether the stage need not run, and if so, record its earlier result."""
        node = stage.node
        # An exit task runs again, unless nothing before it has run.
        upstream = [node.scope.nodes[name] for name in node.task.depends_on] if node.task.runs_always else []
        known = self._memory.kept(node.name, stage.key) if all(other.kept for other in upstream) else None
        kept = known is not None
        if known is None:
            known = self._memory.cached(node.name, node.task.name, stage.key, stage.cache_key)
        if known is None:
            return False
        node.kept = kept
        self.report(known, kept=kept)
        self._ended(node, known.state, {**known.outputs, **known.artifacts})
        return True

    def _start(self, stage: _Stage, prepared: Preparation) -> None:
        node = stage.node
        node.kept = False
        self._attempts[node.name] += 1
        stage.tries, stage.attempt = stage.tries + 1, self._attempts[node.name]
        if stage.started_at is None:
            stage.started, stage.started_at = time.monotonic(), time.time()
        try:
            attempt = prepared.attempt()
        except Exception as error:
            self.fail(node, error)
            return
        stage.pod_name, stage.log_file, stage.replicas = attempt.pod_name, attempt.log_file, None
        stage.tracker_base, stage.inputs = attempt.tracker_base, attempt.inputs
        engine = self._context.engine if attempt.container is not None else self._processes
        execution = Execution(
            attempt, engine, self._pump, lambda *end: self._happenings.put(end), self._context.options.grace
        )
        # Record this before the start: if the runner is killed now, the attempt's folder is known.
        self._listener(
            StageStarted(
                name=node.name,
                pod_name=attempt.pod_name,
                attempt=stage.attempt,
                task=node.task.name,
                log_file=attempt.log_file,
                inputs=attempt.inputs,
            )
        )
        self._running[execution] = stage
        execution.start()

    def _try_again(self, stage: _Stage) -> None:
        if stage in self._retrying:
            del self._retrying[stage]
            self._startable.append(stage)
