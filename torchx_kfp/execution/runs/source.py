"""Read runs, in progress or afterwards, from a local folder or a KFP host."""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask, is_execution, task_name, walk_tasks, without_indices
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import RunResult, StageResult, open_log
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Watch, default_watch

#: How many failed stages have their logs quoted in messages.
_QUOTED = 20
#: Seconds between two reads of a run in progress.
_INTERVAL = 0.1


class RunSource(ABC):
    """A run that can be read repeatedly while it is in progress: ``RunReader`` and ``HostRun``."""

    run_id: str

    @abstractmethod
    def read(self) -> RunRecord:
        """Return the current record of the run: the same object as before, if nothing has changed."""

    @abstractmethod
    def fetch(self, stages: Collection[str]) -> bool:
        """Update the log files of the named stages; return False if one cannot be read."""

    @abstractmethod
    def invocation(self, stage: str | None = None) -> Invocation:
        """Return the last attempt at a stage, with the inputs of its start.

        Args:
            stage: see ``choose_stage``.

        Raises:
            ArgumentError: there is no such stage, or it was not started.
            HostError: the host does not report the inputs.
        """

    def left_replicas(self) -> list[str]:
        """Return messages about replicas that may still run after a cancel."""
        return []

    def follow(self, timeout: float | None = None, *, closely: bool = False) -> Iterator[RunRecord]:
        """Yield the run now and after each change, until it ends.

        Args:
            timeout: seconds until the run must have ended.
            closely: whether to yield the run after each poll even if only its logs may have changed.

        Raises:
            TimeoutError: the run did not end in time. It keeps running.
            HostError: see ``HostRun``.
        """
        end = None if timeout is None else time.monotonic() + timeout
        seen: RunRecord | None = None
        while True:
            record = self._look()
            changed, seen = closely or record is not seen, record
            if changed:
                yield record
            if not record.is_running:
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"The run {self.run_id} has not ended within {timeout:g} s. It keeps running: .wait() waits again, "
                    f"and `torchx-kfp cancel {self.run_id}` ends it."
                )
            self._pause(changed=changed, longest=left)

    def _look(self) -> RunRecord:
        return self.read()

    def _pause(self, *, changed: bool, longest: float | None) -> None:
        """Wait until the next poll; ``changed``: whether the last one found a change."""
        time.sleep(_INTERVAL if longest is None else min(_INTERVAL, longest))

    def attend(self, watch: Watch, timeout: float | None = None) -> RunRecord:
        """Pass all past and future events to a watch; return the record at the end of the run.

        The errors are those of ``follow``.
        """
        seen = 0
        for record in self.follow(timeout):
            for event in record.events[seen:]:
                watch.on_event(event)
            seen = len(record.events)
        # A result quotes the last lines of stages that failed.
        self.fetch([end.name for end in record.run.ends if end.state is State.FAILED][:_QUOTED])
        return record

    def wait(self, watch: Watch | None = None, timeout: float | None = None) -> RunResult:
        """Wait for the end of the run, and return its result; see ``RunResult.raise_for_failure``.

        Args:
            watch: gets the events of the run. Default: a table in a notebook, elsewhere ``Lines()``, which writes to
                stderr; ``Watch()`` is silent.
            timeout: the longest wait, in seconds.

        Raises:
            TimeoutError: the run did not end in time. It keeps running.
            HostError: the host does not answer, or reports an error.
        """
        return self.attend(default_watch() if watch is None else watch, timeout).run.result()

    def logs(self, stage: str | None = None) -> str:
        """Return the log of the last attempt at a stage so far.

        Args:
            stage: its name, as tables show it (``train[1]``). Default: the only stage that has failed.

        Raises:
            ArgumentError: there is no such stage, or its log cannot be read.
        """
        record = self.read()
        name = choose_stage(record, stage)
        self.fetch([name])
        end = record.run.end_of(name)
        paths = [end.log_file if end is not None else None, *(it.log_file for it in record.run.attempts_at(name)[-1:])]
        path = next(filter(None, paths), None)
        try:
            if path is None:
                raise ArgumentError(f"{name!r} of the run {self.run_id} has no log: no process of it was started.")
            with open_log(path) as file:
                return file.read().decode("utf-8", "replace")
        except OSError as error:
            raise ArgumentError(f"The log of {shown(name)} cannot be read: {explain(error)}.") from None


@dataclass(frozen=True)
class Invocation:
    """The last attempt at a stage, with the inputs of its start.

    Attributes:
        record: the run.
        stage: the stage's name.
        place: its task in the pipeline.
        component: the component of the task. Inputs may be filled into its command already.
        inputs: the values of all inputs, including artifacts.
        pod_name: the name of its pod.
        service_account: the Kubernetes service account of the pod; empty if unknown, or without one.
    """

    record: RunRecord = field(repr=False)
    pipeline: Pipeline = field(repr=False)
    stage: str
    place: ScopedTask = field(repr=False)
    component: Component = field(repr=False)
    inputs: Mapping[str, Any]
    pod_name: str = ""
    service_account: str = ""

    @property
    def result(self) -> StageResult | None:
        """The result of the stage; None if it is still running."""
        return self.record.run.end_of(self.stage)

    @property
    def name(self) -> str:
        """The run and the stage: ``two-20260101-120000-abcdef/train[2]``."""
        return f"{self.record.run_id}/{self.stage}"


def choose_stage(record: RunRecord, stage: str | None) -> str:
    """Return the name of a stage that was started.

    Args:
        record: the run.
        stage: the stage's name, without indices if there is only one such stage, or the name of its pod. None means
            the only one that has failed.

    Raises:
        ArgumentError: there is no such stage, or there are several.
    """
    run, there = record.run, list(record.run.by_name)
    if stage is None:
        failed = [end.name for end in run.ends if end.state is State.FAILED]
        if len(failed) == 1:
            return failed[0]
        what = f"{len(failed):,} stages of the run {record.run_id} failed"
        what = what if failed else f"No stage of the run {record.run_id} has failed"
        candidates = [f"{record.run_id}/{name}" for name in failed or there]
        raise ArgumentError(f"{what}. Name the stage: {listed(candidates, 10) or 'there are none yet'}.")
    matches = stages_named(record, stage)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ArgumentError(
            f"{stage!r} is {len(matches):,} stages of the run {record.run_id}. Name one: {listed(matches)}."
        )
    raise no_stage(record, stage)


def stages_named(record: RunRecord, stage: str) -> list[str]:
    """Return the names of the started stages that a name, indices, a task or a pod selects."""
    run, there = record.run, record.run.by_name
    if stage in there:
        return [stage]
    executions = [name for name in there if is_execution(name, stage)]
    of_task = [name for name, it in there.items() if task_name(it.task) == task_name(stage)]
    return executions or of_task or list(filter(None, [run.stage_of_pod(stage)]))


def no_stage(record: RunRecord, stage: str) -> ArgumentError:
    """Return the error about an unknown stage, or one that has not started."""
    there = list(record.run.by_name)
    problems = f" {' '.join(record.corrupt)}" if record.corrupt and not there else ""
    return ArgumentError(
        f"There is no stage {stage!r} in the run {record.run_id}, or it has not started.{did_you_mean(stage, there)} "
        f"Stages: {listed(there) or 'none yet'}.{problems}"
    )


def not_started(record: RunRecord, stage: str) -> ArgumentError:
    """Return the error about a stage without an attempt in the run."""
    end = record.run.end_of(stage)
    why = "it waits for other stages" if end is None else f"it {end.reason or end.state}"
    if end is not None and end.cached_from:
        there = shlex.quote(f"{end.cached_from}/{stage}")
        why = f"its results come from the run {end.cached_from}. To replay it there: torchx-kfp replay {there}"
    return ArgumentError(f"{stage!r} was not started in the run {record.run_id}: {why.rstrip('.')}.")


def place_of(pipeline: Pipeline, stage: str, arguments: Mapping[str, Any]) -> ScopedTask:
    """Return the task of a stage.

    Args:
        pipeline: the pipeline.
        stage: the stage's name.
        arguments: the values of the pipeline's parameters.

    Raises:
        ArgumentError: KFP performs this task itself.
    """
    places = walk_tasks(pipeline, arguments=arguments)
    place = next((place for place in places if place.is_stage and place.name == without_indices(stage)), None)
    if place is None:
        raise ArgumentError(f"The pipeline {pipeline.name!r} has no stage {stage!r}.")
    if place.component.container is None or is_volume_task(place.component):
        raise ArgumentError(f"{stage!r} has no application: KFP itself imports artifacts and makes volume claims.")
    return place
