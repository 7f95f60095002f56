"""What a stage was started with, in the same form for a run on this machine and for one on a KFP host.

A source of runs makes it from what it has: a folder from its events, a host from the manifest of its workflow.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import did_you_mean, listed
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask, is_execution, known_inputs, without_indices
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State


@dataclass(frozen=True)
class Invocation:
    """The last attempt at a stage, as it was started.

    Attributes:
        record: the run.
        stage: the stage's name.
        place: its task in the pipeline.
        component: the component of the task. Inputs may be filled into its command already.
        inputs: the values of all inputs, including artifacts.
        scope: the known inputs of the scope around the task: the name of a secret may be one of them.
        pod_name: the name of its pod.
        service_account: the Kubernetes service account of the pod; empty if it is not known, or there was none.
    """

    record: RunRecord = field(repr=False)
    pipeline: Pipeline = field(repr=False)
    stage: str
    place: ScopedTask = field(repr=False)
    component: Component = field(repr=False)
    inputs: Mapping[str, Any]
    scope: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pod_name: str = ""
    service_account: str = ""

    @property
    def result(self) -> StageResult | None:
        """How the stage has ended; None if it is still running."""
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
        what = f"{len(failed):,} stages of the run {record.run_id} failed" if failed else _none_failed(record)
        candidates = [f"{record.run_id}/{name}" for name in failed or there]
        raise ArgumentError(f"{what}. Name the stage: {listed(candidates, 10) or 'there are none yet'}.")
    found = [stage] if stage in there else [name for name in there if is_execution(name, stage)]
    found = found or list(filter(None, [run.stage_of_pod(stage)]))
    if len(found) == 1:
        return found[0]
    if found:
        raise ArgumentError(
            f"{stage!r} is {len(found):,} stages of the run {record.run_id}. Name one: {listed(found)}."
        )
    problems = f" {' '.join(record.corrupt)}" if record.corrupt and not there else ""
    raise ArgumentError(
        f"There is no stage {stage!r} in the run {record.run_id}, or it has not begun.{did_you_mean(stage, there)} "
        f"Stages: {listed(there) or 'none yet'}.{problems}"
    )


def not_started(record: RunRecord, stage: str) -> ArgumentError:
    """Return the error about a stage of which no attempt was started in the run."""
    end = record.run.end_of(stage)
    why = "it waits for other stages" if end is None else f"it {end.reason or end.state}"
    if end is not None and end.cached_from:
        there = shlex.quote(f"{end.cached_from}/{stage}")
        why = f"its results come from the run {end.cached_from}. To replay it there: torchx-kfp replay {there}"
    return ArgumentError(f"{stage!r} was not started in the run {record.run_id}: {why.rstrip('.')}.")


def _none_failed(record: RunRecord) -> str:
    return f"No stage of the run {record.run_id} has failed"


def place_of(pipeline: Pipeline, stage: str, arguments: Mapping[str, Any]) -> tuple[ScopedTask, Mapping[str, Any]]:
    """Return the task of a stage, and the known inputs of the scope around it.

    Args:
        pipeline: the pipeline.
        stage: the stage's name.
        arguments: the values of the pipeline's parameters.

    Raises:
        ArgumentError: KFP does the work of this task by itself.
    """
    by_path: dict[str, Mapping[str, Any]] = {}
    for place, known in known_inputs(pipeline, arguments):
        by_path[place.path] = known
        if place.is_stage and place.name == without_indices(stage):
            break
    else:
        raise ArgumentError(f"The pipeline {pipeline.name!r} has no stage {stage!r}.")
    if place.component.container is None or is_volume_task(place.component):
        raise ArgumentError(f"{stage!r} has no application: KFP imports artifacts and makes volume claims by itself.")
    return place, arguments if place.inside is None else by_path[place.inside.path]
