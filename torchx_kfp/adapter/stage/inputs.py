"""The inputs of a stage's component: their names, their types, and what a task passes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.adapter.stage import command
from torchx_kfp.adapter.stage.reads import RUN_ID, FanIn, Source, StageName
from torchx_kfp.adapter.values import names
from torchx_kfp.adapter.values.references import Parts, Reference

#: Type of a parameter in the IR -> in Python.
PYTHON_TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}
#: Type of an input -> what its name ends in.
_SUFFIXES = {
    "NUMBER_INTEGER": "_int",
    "NUMBER_DOUBLE": "_float",
    "BOOLEAN": "_bool",
    "LIST": "_list",
    "STRUCT": "_dict",
}
#: The input that carries the run id of a stage that is read under its own name.
READS = "reads"
#: The input that carries the stage's name and values; see ``values``.
STAGE = "stage"
#: Of an input that its caller has to give.
NO_DEFAULT = object()


@dataclass(frozen=True)
class Input:
    """An input of the component: its type in the IR, what the task passes (None: the caller does), its default."""

    type: str
    argument: Any = None
    default: Any = NO_DEFAULT


def name_inputs(
    parameters: Iterable[Reference],
    sources: Mapping[str, Source],
    parts: Iterable[str | Reference],
    taken: Iterable[str],
) -> dict[Reference, str]:
    """A name for the input of each reference: the alias of what is read, if it was given one, or the channel's name.

    KFP's backend merges components whose containers have the same text, whatever their inputs are (kubeflow/pipelines,
    argocompiler). So a name that stands in the text tells the input's type, and whether a carrier goes with it.
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
    name = f"inner_{reference.name}" if reference.carrier else reference.name
    return name + _SUFFIXES.get(reference.type, "")


def _references(source: Source) -> Sequence[Reference]:
    run_ids = source.run_ids if isinstance(source, FanIn) else source
    candidates = run_ids if isinstance(run_ids, tuple) else (run_ids,)
    return [candidate for candidate in candidates if isinstance(candidate, Reference)]


def signature(inputs: Mapping[str, Input], outputs: Mapping[str, type]) -> str:
    """What tells a component's container from others that have other inputs, defaults or outputs.

    It is the name of the script, which shells say before what they have to say.
    """
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is NO_DEFAULT else [planned.default])]
        for name, planned in inputs.items()
    }
    text = json.dumps([defaults, kinds], sort_keys=True, default=repr)
    return f"torchx-kfp-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def parent(source: Source, inputs: Mapping[Reference, str]) -> str | protocol.RawJson | list[str]:
    """The run ids of what is read, as the protocol encodes them, with placeholders for what is not known yet."""

    def text(run_id: Reference | str) -> str:
        return run_id if isinstance(run_id, str) else command.parameter_placeholder(inputs[run_id])

    if not isinstance(source, FanIn):
        return text(source)
    if isinstance(source.run_ids, Reference):
        return protocol.RawJson(text(source.run_ids))
    return [text(run_id) for run_id in source.run_ids]


def parents(sources: Mapping[str, Source], aliases: Sequence[str], inputs: Mapping[Reference, str]) -> Sequence[str]:
    """Return the words from which the stage's script makes the run ids of what is read: ``protocol.parent_words``."""
    if not sources:
        return ()
    return protocol.parent_words({alias: parent(source, inputs) for alias, source in sources.items()}, aliases)


def plan_inputs(
    inputs: Mapping[Reference, str], image: Parts, defaults: Mapping[Reference, object] | None = None
) -> tuple[str, dict[str, Input]]:
    """Return the image's text and all inputs of the component, those that the image needs included."""
    image_text, further = _image_inputs(image, inputs)
    planned = {
        name: Input(reference.type, reference.argument, (defaults or {}).get(reference, NO_DEFAULT))
        for reference, name in inputs.items()
    }
    return image_text, {**planned, **further}


def _image_inputs(image: Parts, inputs: Mapping[Reference, str]) -> tuple[str, dict[str, Input]]:
    """Return the image's text and the inputs that it needs beyond those of its channels.

    The backend's driver takes an image that holds a placeholder for that one input's value, and drops text around it:
    such text becomes an input of its own.
    """
    text = command.render(image, inputs)
    references = [part for part in image if isinstance(part, Reference)]
    if not references:
        return text, {}
    if len(image) == 1 and references[0].type == "STRING":
        return text, {}
    key = names.input_name("_".join(("image", *(inputs[reference] for reference in references))), inputs.values())
    return command.parameter_placeholder(key), {key: Input("STRING", text)}
