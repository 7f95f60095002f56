"""The running pipeline as a tree of DAGs, and the inputs of its tasks.

The root, a nested pipeline, a branch of ``dsl.If`` and an iteration of a loop are DAGs with values for their inputs.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from graphlib import TopologicalSorter
from typing import Any

from torchx_kfp.common.text import listed, shown
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList, artifacts_in, is_artifact
from torchx_kfp.execution.pipeline.conditions import select_field
from torchx_kfp.execution.pipeline.placeholders import Facts, resolve_constant, resolve_text, resolve_value
from torchx_kfp.execution.pipeline.spec import (
    Component,
    Constant,
    Dag,
    FinalStatus,
    FromInput,
    FromTask,
    Importer,
    Loop,
    Origin,
    Pipeline,
    Retry,
    Task,
)
from torchx_kfp.execution.pipeline.values import convert
from torchx_kfp.execution.pipeline.walk import StageNames
from torchx_kfp.execution.runs.reasons import MOST_NAMED
from torchx_kfp.execution.runs.vocabulary import State


class TaskRun:
    """A task of a DAG while it runs: a stage, or a group of tasks."""

    def __init__(self, dag: DagRun, task: Task, component: Component) -> None:
        self.dag = dag
        self.task = task
        self.component = component
        self.name = dag.names.of(task.name)
        self.state: State | None = None
        #: The names of the failed tasks in it, if it is a group: users do not know the group's name.
        self.failed: list[str] = []
        #: Why the task did not succeed.
        self.reason = ""
        #: How often it was started, which counts for its own retry policy. A nested pipeline may be retried as a whole.
        self.tries = 0
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
        #: The stage's key in the cache.
        self.cache_key = ""

    @property
    def retry_left(self) -> Retry | None:
        """The task's retry policy, if it allows another attempt."""
        retry = self.task.retry
        return retry if retry is not None and self.tries <= retry.count else None

    def constants(self, run_id: str) -> dict[str, str]:
        """Return the placeholders whose values differ by task."""
        uid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id}/{self.name}"))
        return {"pipeline_task_name": self.task.display_name, "pipeline_task_uuid": uid}


class LoopProgress:
    """A loop while it runs: its items, and the outputs of the iterations that have ended."""

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
    """A DAG while it runs; ``index`` is the index of the iteration in a loop, ``owner`` the task around it."""

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
        """Return the outputs that a loop inside did not produce in all iterations: see ``TaskRun.missing``."""
        return {
            name: self.runs[task].missing[output]
            for name, sources in self.component.as_dag().outputs.items()
            for task, output in sources
            if output in self.runs[task].missing
        }


def task_inputs(run: TaskRun, constants: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the task's inputs.

    Args:
        run: a task whose upstream tasks have succeeded.
        constants: placeholders whose values are the same everywhere in the run.

    Raises:
        ValueError: an input has no value.
    """
    values: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for name, source in {**run.task.inputs, **run.task.artifacts}.items():
        parameter, is_parameter = run.component.inputs.get(name), name in run.task.inputs
        type_ = parameter.type if parameter is not None else ""
        if isinstance(source, Constant):
            fixed[name] = convert(source.value, type_)
            continue
        try:
            value = _lookup(source, run, constants)
        except (_Unset, _Failed, ValueError) as error:
            has_default = parameter is not None and (parameter.optional or parameter.has_default)
            if isinstance(error, _Unset) and (has_default or name in run.component.optional_artifacts):
                continue
            # A STRING is then empty, whatever its default is; KFP's driver rejects other types.
            if not isinstance(error, _Failed) or type_ != "STRING":
                kind = "value" if is_parameter else "artifact"
                raise ValueError(f"has no {kind} for its input {name!r}: {error}") from None
            value = ""
        values[name] = convert(value, type_) if is_parameter else value
    # Placeholders in a constant stand for the task's other inputs, whose values are known now.
    known = {**constants, **run.constants(constants["pipeline_job_name"])}
    facts = Facts(parameters=values, workspace=constants["workspace_path"])
    for name, value in fixed.items():
        values[name] = resolve_constant(value, facts, known)
    return values


def with_defaults(component: Component, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, with the component's defaults for missing ones."""
    defaults = {
        name: convert(parameter.default, parameter.type)
        for name, parameter in component.inputs.items()
        if parameter.has_default and name not in inputs
    }
    return {**defaults, **inputs}


def import_artifact(name: str, importer: Importer, inputs: Mapping[str, Any], workspace: str) -> Artifact:
    """Return the artifact of an importer.

    An artifact that goes to the workspace has a path there; the first stage that takes it copies it.

    Raises:
        ValueError: there is no URI.
    """
    facts = Facts(parameters=inputs)
    uri = importer.uri.value if isinstance(importer.uri, Constant) else inputs.get(importer.uri.name)
    if not isinstance(uri, str) or not uri:
        raise ValueError(f"has no URI to import: it is {shown(uri)}")
    metadata = resolve_value(dict(importer.metadata), facts)
    uri = resolve_text(uri, facts)
    place = os.path.join(workspace, ".artifacts", uri.partition("://")[2].strip("/") or uri.strip("/"))
    return Artifact(
        name, importer.type, uri, metadata, custom_path=place if importer.to_workspace else "", imported=True
    )


def loop_items(loop: Loop, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the items of a loop, given the inputs of its task.

    Raises:
        ValueError: they are not a list.
    """
    if loop.raw is not None:
        return list(json.loads(loop.raw))
    value = items = inputs.get(loop.from_input or "")
    if is_artifact(items):
        return artifacts_in(items)
    if isinstance(items, str):
        # A field of a loop item may be a list in a string.
        try:
            items = json.loads(items)
        except ValueError:
            items = None
    if not isinstance(items, list):
        raise ValueError(f"loops over something that is not a list: {shown(value)}")
    return items


#: The names of final states in KFP's metadata, where a task that was not triggered is canceled.
_FINAL_STATES = {State.SUCCEEDED: "COMPLETE", State.CACHED: "CACHED", State.FAILED: "FAILED"}
_ENDS = {State.NOT_RUN: "it was not run", State.SKIPPED: "it was skipped"}


class _Unset(Exception):
    """An input of the DAG has no value."""


class _Failed(Exception):
    """A stage has failed and made no output."""


def final_status(run: TaskRun, run_id: str) -> dict[str, Any]:
    """Return KFP's PipelineTaskFinalStatus of a task that has ended, with an empty error, as on the backend."""
    return {
        "state": _FINAL_STATES.get(run.state or State.NOT_RUN, "CANCELED"),
        "pipelineJobResourceName": run_id,
        "pipelineTaskName": run.task.name,
        "error": {},
    }


def collect(component: Component, iterations: Sequence[Mapping[str, Any]], pipeline: Pipeline) -> dict[str, list[Any]]:
    """Return the outputs of a loop, each as a list of the iterations' values; for nested loops, the list is flat."""
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
    """Return the outputs that some or all iterations of a loop over ``stages`` did not produce, and the reason."""
    loop = f"the loop with {listed(map(repr, stages), MOST_NAMED)}"
    why = f"an iteration of {loop} has skipped it" if iterations else f"{loop} had no iterations"
    return {name: why for name in dag.outputs if not iterations or any(name not in outputs for outputs in iterations)}


def _is_collected(component: Component, output: str, pipeline: Pipeline) -> bool:
    """Tell whether the DAG's output is itself a list of a loop's outputs, rather than one task's output."""
    dag = component.as_dag()
    task_name, inner = dag.outputs[output][0]
    task = dag.tasks[task_name]
    if task.loop is not None:
        return True
    return task.is_group and _is_collected(pipeline.component_of(task), inner, pipeline)


def _lookup(source: Origin, run: TaskRun, constants: Mapping[str, str]) -> Any:
    if isinstance(source, FromInput):
        if source.name not in run.dag.inputs:
            raise _Unset(f"{source.name!r} was not set")
        value, selector = run.dag.inputs[source.name], source.selector
    elif isinstance(source, FromTask):
        producer = run.dag.runs[source.task]
        if source.output in producer.missing:
            raise ValueError(
                f"{producer.missing[source.output]}, and KFP's driver fails on tasks that collect from such a loop. "
                "Have at least one iteration, and a stage that produces the output in each"
            )
        if source.output not in producer.outputs:
            if producer.state is State.FAILED:
                raise _Failed(f"{source.task!r} did not produce its output {source.output!r}, since it failed")
            why = _ENDS.get(producer.state or State.SKIPPED, "the task that produces it was skipped")
            raise ValueError(f"{source.task!r} did not produce its output {source.output!r}, since {why}")
        value, selector = producer.outputs[source.output], source.selector
    elif isinstance(source, FinalStatus):
        return final_status(run.dag.runs[source.task], constants["pipeline_job_resource_name"])
    else:
        raise TypeError(f"the task {run.task.name} has an input that check_supported rejects: {source}")
    return select_field(value, selector) if selector else value
