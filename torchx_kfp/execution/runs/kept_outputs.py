"""Outputs of tasks that have succeeded in an earlier run, from how their stages ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx_kfp.contract.carried.publisher import output_text
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, Task
from torchx_kfp.execution.pipeline.surgery import can_be_constant
from torchx_kfp.execution.pipeline.values import from_output
from torchx_kfp.execution.pipeline.walk import StageNames, indices_of, walk, without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.task_groups import Unit


class OutputNotKnownError(Exception):
    """An output is not known, or cannot be handed on; the message is a relative clause: "which ..."."""


class NotProducedError(OutputNotKnownError):
    """The stage has not run, or has failed."""


class KnownOutputs:
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
