"""Outputs of units in an earlier run: from how their stages ended, and from what other stages were given.

A host does not tell the outputs of a task, but what each stage got, which includes what it read of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchx_kfp.contract.carried.publisher import output_text
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.spec import ArtifactType, Component, FromInput, Pipeline, Task
from torchx_kfp.execution.pipeline.surgery import can_be_constant
from torchx_kfp.execution.pipeline.values import from_output
from torchx_kfp.execution.pipeline.walk import ScopedTask, StageNames, indices_of, walk, without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.units import Unit, units_of

#: What KFP adds to an artifact's metadata: the store in which it is, and a name for the UI.
_OF_KFP = ("store_session_info", "display_name")


class OutputNotKnownError(Exception):
    """An output is not known, or cannot be handed on; the message is a relative clause: "which ..."."""


class NotProducedError(OutputNotKnownError):
    """The stage has not run, or has failed."""


class OutputLookup:
    """The outputs of units, as far as they are known.

    Args:
        pipeline: the pipeline of the new run.
        ends: how the stages of the earlier run ended, by their names.
        values: what stages of it were given: outputs by the unit's key and the output.
        leaves: whether the earlier run was on this machine, and the new one is not.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ends: Mapping[str, StageResult],
        values: Mapping[tuple[str, str], Any],
        *,
        leaves: bool,
    ) -> None:
        self._pipeline, self._ends, self._values, self._leaves = pipeline, ends, values, leaves
        self._found: dict[tuple[str, str], Any] = {}
        #: The indices of all executions, by the stage's name without them.
        self._indices: dict[str, list[tuple[int, ...]]] = {}
        for name in ends:
            self._indices.setdefault(without_indices(name), []).append(indices_of(name))

    def get(self, unit: Unit, output: str) -> Any:
        """Return the value of an output of a unit.

        Raises:
            OutputNotKnownError: it is not known, or a pipeline cannot contain it.
        """
        key = (unit.path, output)
        if key not in self._found:
            try:
                if (unit.key, output) in self._values:
                    value = self._values[(unit.key, output)]
                else:
                    value = self._of_task(unit.task, unit.component, StageNames(), output)[0]
                self._found[key] = self._usable(value)
            except OutputNotKnownError as error:
                self._found[key] = error
        if isinstance(self._found[key], OutputNotKnownError):
            raise self._found[key]
        return self._found[key]

    def _usable(self, value: Any) -> Any:
        if isinstance(value, ArtifactList):
            raise OutputNotKnownError("which is a list of artifacts, and KFP imports only single ones")
        if isinstance(value, Artifact):
            if value.is_here and self._leaves:
                raise OutputNotKnownError(f"which is the file {value.path!r} of this machine, out of the host's reach")
            if not value.type.title:
                raise OutputNotKnownError("whose type is not known, and KFP imports no artifact without one")
            if can_be_constant([value.uri, dict(value.metadata)]):
                return value
        elif can_be_constant(value):
            return value
        raise OutputNotKnownError("which contains '{{', and KFP would take that for a placeholder")

    def _of_task(self, task: Task, component: Component, names: StageNames, output: str) -> tuple[Any, bool]:
        """Return the value, and whether it is a list that a loop has collected."""
        if component.dag is None:
            return self._of_stage(names.of(task.name), component, output), False
        if task.loop is None:
            return self._of_dag(component, names.inside(task), output)
        values: list[Any] = []
        for index in range(self._iterations(component, names)):
            value, is_list = self._of_dag(component, names.inside_iteration(index), output)
            values += value if is_list else [value]
        if values and isinstance(values[0], Artifact):
            return ArtifactList(values), True
        return values, True

    def _of_dag(self, component: Component, names: StageNames, output: str) -> tuple[Any, bool]:
        dag = component.as_dag()
        selector = dag.outputs.get(output) or dag.artifacts.get(output)
        errors: list[OutputNotKnownError] = []
        for producer, name in selector.sources if selector else ():
            task = dag.tasks[producer]
            try:
                return self._of_task(task, self._pipeline.component_of(task), names, name)
            except OutputNotKnownError as error:
                errors.append(error)
        # A branch that was not taken says nothing about the one that was.
        nothing = OutputNotKnownError("which it did not have")
        raise min(errors, key=lambda error: isinstance(error, NotProducedError), default=nothing)

    def _iterations(self, component: Component, names: StageNames) -> int:
        around = indices_of(names.of(""))
        inside = {without_indices(place.name) for place in walk(self._pipeline, component, names) if place.is_stage}
        return max(
            (
                found[len(around)] + 1
                for name in inside
                for found in self._indices.get(name, ())
                if found[: len(around)] == around and len(found) > len(around)
            ),
            default=0,
        )

    def _of_stage(self, name: str, component: Component, output: str) -> Any:
        end = self._ends.get(name)
        if end is None or not end.state.is_success:
            raise NotProducedError(f"which {name} did not produce")
        for made in (end.outputs, end.artifacts):
            if output in made:
                return made[output]
        # On a host, outputs of tracked stages follow from their records.
        facts = component.facts
        if facts.stage and output == RUN_ID and end.run_id is not None and end.results is not None:
            return end.run_id
        if facts.outputs is not None and output in facts.outputs.results and end.results is not None:
            kind, result = facts.outputs.results[output]
            try:
                return from_output(output_text(kind, result, end.results), component.outputs[output])
            except (ValueError, KeyError):
                raise OutputNotKnownError("which its results do not have") from None
        if output in component.artifact_outputs:
            raise OutputNotKnownError("whose place is not known: no other stage was given it")
        raise OutputNotKnownError("whose value is not known: no other stage was given it")


def values_given(pipeline: Pipeline, given: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """Return outputs of units, by the unit's key and the output; ``given`` has the inputs of stages, by their names."""
    units = units_of(pipeline)
    by_stage: dict[str, list[Mapping[str, Any]]] = {}
    for stage, inputs in given.items():
        by_stage.setdefault(without_indices(stage), []).append(inputs)
    values: dict[tuple[str, str], Any] = {}
    for unit in units.values():
        for place in unit.stages:
            for inputs in by_stage.get(place.name, ()):
                for name, value in inputs.items():
                    reads = [read for read in unit.reads if read.input == _outer_input(unit, place, name)]
                    if len(reads) == 1:
                        producer, output = units[reads[0].producer], reads[0].output
                        values[(producer.key, output)] = _as_made(
                            value, producer.component.artifact_outputs.get(output)
                        )
    return values


def _as_made(value: Any, declared: ArtifactType | None) -> Any:
    """Return an artifact with the type that its producer declares, and without what KFP adds to its metadata."""
    if not isinstance(value, Artifact):
        return value
    metadata = {name: each for name, each in value.metadata.items() if name not in _OF_KFP}
    return dataclasses.replace(value, type=declared if declared and declared.title else value.type, metadata=metadata)


def _outer_input(unit: Unit, place: ScopedTask, name: str) -> str | None:
    """Return the input of the unit that a stage inside gets as its own input, unchanged; None if it gets another."""
    while True:
        source = place.task.inputs.get(name) or place.task.artifacts.get(name)
        if getattr(source, "selector", ""):
            return None
        if place.path == unit.path:
            return name
        around = place.inside
        if not isinstance(source, FromInput) or around is None:
            return None
        if around.task.loop is not None and around.task.loop.item_input == source.name:
            return None
        place, name = around, source.name
