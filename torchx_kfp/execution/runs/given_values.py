"""Outputs of a run's units, as far as they follow from what its stages were given.

A host does not tell the outputs of a task, but what each stage got, which includes what it read of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.spec import ArtifactType, FromInput, Pipeline
from torchx_kfp.execution.pipeline.walk import ScopedTask, without_indices
from torchx_kfp.execution.runs.task_groups import Unit, units_of

#: What KFP adds to an artifact's metadata: the store in which it is, and a name for the UI.
_OF_KFP = ("store_session_info", "display_name")


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
