"""A running pipeline as a tree of DAGs, and the inputs of its tasks.

The root, a nested pipeline, a branch of ``dsl.If`` and an iteration of a loop are DAGs with values for their inputs.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from graphlib import TopologicalSorter
from typing import Any

from torchx_kfp.common.text import listed
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList, artifacts_in, is_artifact
from torchx_kfp.execution.pipeline.inputs import NoOutput, importer_uri, resolve
from torchx_kfp.execution.pipeline.spec import (
    Component,
    Dag,
    FinalStatus,
    FromTask,
    Importer,
    Pipeline,
    Task,
)
from torchx_kfp.execution.pipeline.walk import StageNames
from torchx_kfp.execution.runs.reasons import MOST_NAMED
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.stage_key import StageKey
from torchx_kfp.execution.runs.vocabulary import State


class TaskRun:
    """A running task of a DAG: a stage, or a group of tasks."""

    def __init__(self, dag: DagRun, task: Task, component: Component) -> None:
        self.dag = dag
        self.task = task
        self.component = component
        self.name = dag.names.of(task.name)
        self.state: State | None = None
        #: The names of the failed tasks in it, if it is a group: users do not know the group's name.
        self.failed: list[str] = []
        #: The reason of a failure.
        self.reason = ""
        #: The number of attempts at a stage, and the result of the last one if another follows.
        self.tries = 0
        self.last: StageResult | None = None
        self.inputs: dict[str, Any] = {}
        self.outputs: Mapping[str, Any] = {}
        #: Outputs that some iterations of a loop did not produce, and the reason. KFP's driver fails on tasks that take
        #: such outputs.
        self.missing: Mapping[str, str] = {}
        self.loop: LoopProgress | None = None
        #: For a stage, when its first attempt started, on the monotonic clock and on the wall clock, and its replicas.
        self.started = 0.0
        self.started_at: float | None = None
        self.replicas: int | None = None
        #: The stage's key in the cache, if it has one.
        self.key: StageKey | None = None

    @property
    def retry_delay(self) -> float | None:
        """The seconds before another attempt; None if the task's retry policy does not allow one now."""
        retry = self.task.retry
        return None if retry is None else retry.delay(self.tries, time.monotonic() - self.started)

    def constants(self, run_id: str) -> dict[str, str]:
        """Return the placeholders that differ between tasks. KFP's uuid is the surrounding DAG's."""
        owner = self.dag.owner.name if self.dag.owner is not None else ""
        uid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id}/{owner}/{self.dag.index}"))
        return {"pipeline_task_name": self.task.name, "pipeline_task_uuid": uid}


class LoopProgress:
    """A running loop: its items, and the outputs of its finished iterations."""

    def __init__(self, items: list[Any], limit: int) -> None:
        self.items = items
        self.limit = limit or len(items)
        self.started = 0
        self.ended = 0
        self.failed = False
        self.outputs: list[Mapping[str, Any]] = [{} for _ in items]

    @property
    def may_start(self) -> bool:
        return self.started < len(self.items) and self.started - self.ended < self.limit

    @property
    def is_over(self) -> bool:
        return self.ended == len(self.items)


@dataclass(eq=False)
class DagRun:
    """A running DAG; ``index`` is the index of the iteration in a loop, ``owner`` the task around it."""

    pipeline: InitVar[Pipeline]
    component: Component
    inputs: Mapping[str, Any]
    names: StageNames
    owner: TaskRun | None = None
    index: int = 0
    #: Whether a task has failed.
    failed: bool = False

    def __post_init__(self, pipeline: Pipeline) -> None:
        tasks = self.component.as_dag().tasks
        self.runs = {name: TaskRun(self, task, pipeline.component_of(task)) for name, task in tasks.items()}
        #: The tasks that have not ended, in the order of the file.
        self.left = TopologicalSorter(dict.fromkeys(tasks, ()))
        for name, task in tasks.items():
            self.left.add(name, *task.depends_on)
        self.left.prepare()

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the DAG, including artifacts, except those of tasks that were skipped or failed."""
        values = {}
        for name, sources in self.component.as_dag().outputs.items():
            for task, output in sources:
                if output in self.runs[task].outputs:
                    values[name] = self.runs[task].outputs[output]
                    break
        return values

    def failures(self) -> list[str]:
        """Return the names of the failed tasks; for a group, those of the failed tasks in it."""
        return [name for run in self.runs.values() if run.state is State.FAILED for name in run.failed or [run.name]]

    def missing_outputs(self) -> dict[str, str]:
        """Return the outputs that an inner loop did not produce in all iterations: see ``TaskRun.missing``."""
        return {
            name: self.runs[task].missing[output]
            for name, sources in self.component.as_dag().outputs.items()
            for task, output in sources
            if output in self.runs[task].missing
        }


def task_inputs(run: TaskRun, constants: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that KFP's driver passes to the task.

    Args:
        run: a task whose upstream tasks have succeeded.
        constants: placeholders whose values are the same everywhere in the run.

    Raises:
        ValueError: an input has no value.
    """
    placeholders = {**constants, **run.constants(constants["pipeline_job_name"])}
    resolved = resolve(
        run.task, run.component, run.dag.inputs, lambda source: _output(source, run, constants), placeholders
    )
    for name, why in resolved.problems.items():
        raise ValueError(
            f"has no {'artifact' if name in run.task.artifacts else 'value'} for its input {name!r}: {why}"
        )
    return dict(resolved.values)


def import_artifact(name: str, importer: Importer, run: TaskRun, workspace: str) -> Artifact:
    """Return the artifact of an importer. As on KFP, placeholders in its metadata stay text.

    An artifact that goes to the workspace has a path there; the first stage that takes it copies it.

    Raises:
        ValueError: there is no URI.
    """
    uri = importer_uri(importer, run.task, run.dag.inputs)
    place = os.path.join(workspace, ".artifacts", uri.partition("://")[2].strip("/") or uri.strip("/"))
    return Artifact(
        name,
        importer.type,
        uri,
        dict(importer.metadata),
        custom_path=place if importer.to_workspace else "",
    )


#: The names of final states in KFP's metadata, where a task that was not triggered is canceled.
_FINAL_STATES = {
    State.SUCCEEDED: "COMPLETE",
    State.ALLOWED: "COMPLETE",
    State.CACHED: "CACHED",
    State.FAILED: "FAILED",
}
_ENDS = {State.NOT_RUN: "it was not run", State.SKIPPED: "it was skipped"}


def final_status(run: TaskRun, run_id: str) -> dict[str, Any]:
    """Return KFP's PipelineTaskFinalStatus of a finished task. As on the backend, its error is empty."""
    return {
        "state": _FINAL_STATES.get(run.state or State.NOT_RUN, "CANCELED"),
        "pipelineJobResourceName": run_id,
        "pipelineTaskName": run.task.name,
        "error": {},
    }


def collect(component: Component, iterations: Sequence[Mapping[str, Any]], pipeline: Pipeline) -> dict[str, list[Any]]:
    """Return the outputs of a loop, each as a list of the iterations' values; nested loops give a flat list."""
    collected: dict[str, list[Any]] = {}
    for name in component.as_dag().outputs:
        values = [outputs[name] for outputs in iterations if name in outputs]
        if name in component.artifact_outputs or any(map(is_artifact, values)):
            collected[name] = ArtifactList(artifact for value in values for artifact in artifacts_in(value))
        elif _is_collected(component, name, pipeline):
            collected[name] = [item for value in values for item in value]
        else:
            collected[name] = values
    return collected


def missing_in_iterations(dag: Dag, iterations: Sequence[Mapping[str, Any]], stages: Sequence[str]) -> dict[str, str]:
    """Return the outputs that an iteration of a loop over ``stages`` did not produce, and the reason."""
    loop = f"the loop with {listed(map(repr, stages), MOST_NAMED)}"
    why = f"an iteration of {loop} has skipped it" if iterations else f"{loop} had no iterations"
    return {name: why for name in dag.outputs if not iterations or any(name not in outputs for outputs in iterations)}


def _is_collected(component: Component, output: str, pipeline: Pipeline) -> bool:
    """Return whether the DAG's output is itself a list of a loop's outputs, rather than one task's output.

    KFP's driver goes through all DAGs in it down to their stages, also through nested pipelines.
    """
    dag = component.as_dag()
    task_name, inner = dag.outputs[output][0]
    task, inside = dag.tasks[task_name], pipeline.component_of(dag.tasks[task_name])
    return task.loop is not None or (inside.dag is not None and _is_collected(inside, inner, pipeline))


def _output(source: FromTask | FinalStatus, run: TaskRun, constants: Mapping[str, str]) -> Any:
    """Return an output or the final status of another task: see ``inputs.resolve``."""
    producer = run.dag.runs[source.task]
    if isinstance(source, FinalStatus):
        return final_status(producer, constants["pipeline_job_resource_name"])
    if source.output in producer.missing:
        raise ValueError(
            f"{producer.missing[source.output]}, and KFP's driver fails on tasks that collect from such a loop. "
            "Have at least one iteration, and a stage that produces the output in each"
        )
    if source.output in producer.outputs:
        return producer.outputs[source.output]
    why = _ENDS.get(producer.state or State.SKIPPED, "the task that produces it was skipped")
    if producer.state is State.FAILED:
        return NoOutput(f"{source.task!r} did not produce its output {source.output!r}, since it failed")
    raise ValueError(f"{source.task!r} did not produce its output {source.output!r}, since {why}")
