"""The inputs of a stage's component: their names, their types, and the arguments of a task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.authoring.naming import input_name
from torchx_kfp.authoring.reads import CollectedRuns, ReadSource, StageName
from torchx_kfp.authoring.references import Reference, Text
from torchx_kfp.authoring.words import render
from torchx_kfp.contract.inputs import (
    INNER,
    READS,
    RUN_ID,
    SUFFIXES,
    parameter_placeholder,
)

#: The types of parameters in Python, by their names in the IR.
PYTHON_TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}
#: The default of an input that the caller must pass.
NO_DEFAULT = object()


@dataclass(frozen=True)
class Input:
    """An input of the component: its type in the IR, the task's argument (None: the caller passes it), its default."""

    type: str
    argument: Any = None
    default: Any = NO_DEFAULT


def name_inputs(
    parameters: Iterable[Reference],
    sources: Mapping[str, ReadSource],
    parts: Iterable[str | Reference],
    taken: Iterable[str],
) -> dict[Reference, str]:
    """Name the input of each reference: by the alias under which a stage is read, or by the channel.

    KFP's backend merges components whose containers have the same text, even if their inputs differ
    (kubeflow/pipelines, argocompiler). So a name in the text shows the input's type, and whether there is a loop item.
    """
    inputs: dict[Reference, str] = {reference: reference.name for reference in parameters}
    taken = {RUN_ID, *taken, *inputs.values()}

    def add(reference: Reference, wanted: str) -> None:
        if reference not in inputs:
            inputs[reference] = input_name(wanted, taken)
            taken.add(inputs[reference])
            if reference.loop_item:
                add(reference.loop_item, _typed_name(reference.loop_item))

    for alias, source in sources.items():
        run_ids = source.run_ids if isinstance(source, CollectedRuns) else source
        for run_id in run_ids if isinstance(run_ids, tuple) else (run_ids,):
            if isinstance(run_id, Reference):
                add(run_id, READS if isinstance(alias, StageName) else alias)
    for part in parts:
        if isinstance(part, Reference):
            add(part, _typed_name(part))
    return inputs


def _typed_name(reference: Reference) -> str:
    if reference.argument is None:
        return reference.name
    name = f"{INNER}{reference.name}" if reference.loop_item else reference.name
    return name + SUFFIXES.get(reference.type, "")


def describe(inputs: Mapping[str, Input], outputs: Mapping[str, type]) -> str:
    """Return a text that differs for components with different inputs, defaults or outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is NO_DEFAULT else [planned.default])]
        for name, planned in inputs.items()
    }
    return json.dumps([defaults, kinds], sort_keys=True, default=repr)


def parent_words(sources: Mapping[str, ReadSource], inputs: Mapping[Reference, str]) -> list[str]:
    """Return the run ids that are read, as JSON with placeholders."""

    def word(source: ReadSource) -> str:
        if isinstance(source, CollectedRuns):
            its = source.run_ids
            return f"[{', '.join(map(word, its))}]" if isinstance(its, tuple) else parameter_placeholder(inputs[its])
        return f'"{source if isinstance(source, str) else parameter_placeholder(inputs[source])}"'

    return [*map(word, sources.values())]


def plan_inputs(
    inputs: Mapping[Reference, str], image: Text, defaults: Mapping[Reference, object] | None = None
) -> tuple[str, dict[str, Input]]:
    """Return the image's text and all inputs of the component, including one for an image with text next to a channel.

    If an image contains a placeholder, the backend's driver replaces the whole image with the value of that input, and
    drops the text around it. So the whole text becomes the value of one input.
    """
    planned = {
        name: Input(reference.type, reference.argument, (defaults or {}).get(reference, NO_DEFAULT))
        for reference, name in inputs.items()
    }
    text = render(image, inputs)
    names = [inputs[part] for part in image if isinstance(part, Reference)]
    if names and (len(image) > 1 or planned[names[0]].type != "STRING"):
        key = input_name("_".join(("image", *names)), inputs.values())
        planned[key] = Input("STRING", text)
        text = parameter_placeholder(key)
    return text, planned
