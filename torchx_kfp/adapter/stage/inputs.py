"""The inputs of a stage's component: their names, their types, and the arguments of a task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.adapter.stage import command
from torchx_kfp.adapter.stage.reads import FanIn, Source, StageName
from torchx_kfp.adapter.values import names
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.contract.command import Read
from torchx_kfp.contract.inputs import INNER, READS, RUN_ID, SUFFIXES, parameter_placeholder

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
    sources: Mapping[str, Source],
    parts: Iterable[str | Reference],
    taken: Iterable[str],
) -> dict[Reference, str]:
    """Name the input of each reference: by the alias under which a stage is read, or by the channel.

    KFP's backend merges components whose containers have the same text, even if their inputs differ
    (kubeflow/pipelines, argocompiler). So a name in the text shows the input's type, and whether there is a carrier.
    """
    inputs: dict[Reference, str] = {reference: reference.name for reference in parameters}
    taken = {RUN_ID, *taken, *inputs.values()}

    def add(reference: Reference, wanted: str) -> None:
        if reference not in inputs:
            inputs[reference] = names.input_name(wanted, taken)
            taken.add(inputs[reference])
            if reference.carrier:
                add(reference.carrier, _typed_name(reference.carrier))

    for alias, source in sources.items():
        for reference in _references(source):
            add(reference, READS if isinstance(alias, StageName) else alias)
    for part in parts:
        if isinstance(part, Reference):
            add(part, _typed_name(part))
    return inputs


def _typed_name(reference: Reference) -> str:
    if reference.argument is None:
        return reference.name
    name = f"{INNER}{reference.name}" if reference.carrier else reference.name
    return name + SUFFIXES.get(reference.type, "")


def _references(source: Source) -> Sequence[Reference]:
    run_ids = source.run_ids if isinstance(source, FanIn) else source
    candidates = run_ids if isinstance(run_ids, tuple) else (run_ids,)
    return [candidate for candidate in candidates if isinstance(candidate, Reference)]


def describe(inputs: Mapping[str, Input], outputs: Mapping[str, type]) -> str:
    """Return a text that differs for components with different inputs, defaults or outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is NO_DEFAULT else [planned.default])]
        for name, planned in inputs.items()
    }
    return json.dumps([defaults, kinds], sort_keys=True, default=repr)


def reads(sources: Mapping[str, Source], aliases: Sequence[str], inputs: Mapping[Reference, str]) -> list[Read]:
    """Return the stages that are read; the input ``stage`` has the names ``aliases``."""

    def text(run_id: Reference | str) -> str:
        return f"={run_id}" if isinstance(run_id, str) else inputs[run_id]

    def read(alias: str, source: Source) -> Read:
        run_ids = source.run_ids if isinstance(source, FanIn) else source
        is_list = isinstance(source, FanIn) and isinstance(run_ids, Reference)
        return Read(alias, list(map(text, run_ids)) if isinstance(run_ids, tuple) else text(run_ids), is_list)

    return [read("" if alias in aliases else alias, source) for alias, source in sources.items()]


def plan_inputs(
    inputs: Mapping[Reference, str], image: Parts, defaults: Mapping[Reference, object] | None = None
) -> tuple[str, dict[str, Input]]:
    """Return the image's text and all inputs of the component, including those for the image."""
    image_text, further = _image_inputs(image, inputs)
    planned = {
        name: Input(reference.type, reference.argument, (defaults or {}).get(reference, NO_DEFAULT))
        for reference, name in inputs.items()
    }
    return image_text, {**planned, **further}


def _image_inputs(image: Parts, inputs: Mapping[Reference, str]) -> tuple[str, dict[str, Input]]:
    """Return the image's text, and a further input if the image has text next to a channel.

    If an image contains a placeholder, the backend's driver replaces the whole image with the value of that input, and
    drops the text around it. So the whole text becomes the value of one input.
    """
    text = command.render(image, inputs)
    references = [part for part in image if isinstance(part, Reference)]
    if not references:
        return text, {}
    if len(image) == 1 and references[0].type == "STRING":
        return text, {}
    key = names.input_name("_".join(("image", *(inputs[reference] for reference in references))), inputs.values())
    return parameter_placeholder(key), {key: Input("STRING", text)}
