"""Inputs of stages under the names that their pipeline has for them.

The component of a stage names inputs by their channels: ``threshold_float`` for the parameter ``threshold``, and
``item_lr_float`` for the field ``lr`` of a loop's item. Stages that it reads under their own names are ``reads``, and
``stage`` has parts of its command. Inputs that a user has named, such as those of KFP's own components and aliases of
what is read, keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchx_kfp.pipeline.spec import Component, Constant, FromInput, FromTask, Origin, Pipeline
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.protocol import TRACKER_BASE

#: What ``adapter.inputs`` adds to the name of a channel.
_ADDED = r"(_int|_float|_bool|_list|_dict)?(_\d+)?"
_CHANNEL = "pipelinechannel--"
#: As ``adapter.inputs`` has them, which would load kfp.
_READS, _STAGE = re.compile(r"reads(_\d+)?"), re.compile(r"stage(_\d+)?")
_ITEM = re.compile(r"(?:(?P<of>.*)-)?loop-item(?:-param-\d+)?")
_FIELD = re.compile(r"\[(?P<quote>[\"'])(?P<name>.*)(?P=quote)\]$")

#: A stage's input -> the pipeline's name for it; None for one that repeats what another one has.
Names = Mapping[str, "str | None"]


def input_names(pipeline: Pipeline) -> dict[str, Names]:
    """For each task, by the name of its stages without indices."""
    return {
        place.name: _names(place.task.inputs, _is_tracked(place.component))
        for place in walk(pipeline)
        if place.is_stage
    }


def _is_tracked(component: Component) -> bool:
    """Whether it is a tracked stage's, whose command ``adapter.command`` has made."""
    container = component.container
    return container is not None and any(word.startswith(f"{TRACKER_BASE}=") for word in container.command)


def named(inputs: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The inputs under these names; where two would have the same one and differ, as they are."""
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        wanted = names.get(name, name)
        if wanted is None:
            continue
        if wanted in found and found[wanted] != value:
            return dict(inputs)
        found[wanted] = value
    return found


def _names(inputs: Mapping[str, Origin], tracked: bool) -> Names:
    # KFP hands a field of an item into a group inside of the loop only where the item goes along.
    carried = {
        source.name for name, source in inputs.items() if name.startswith("inner_") and isinstance(source, FromInput)
    }
    names: dict[str, str | None] = {}
    for name, source in inputs.items():
        derived, shown = _origin(source)
        if tracked and isinstance(source, Constant) and _STAGE.fullmatch(name):
            names[name] = None
        elif tracked and derived.endswith("_run_id") and _READS.fullmatch(name):
            names[name] = shown.removesuffix("_run_id")
        elif derived and re.fullmatch(f"(inner_)?{re.escape(derived)}{_ADDED}", name):
            alone = isinstance(source, FromInput) and not source.selector and source.name in carried
            names[name] = None if alone else shown
    return names


def _origin(source: Origin) -> tuple[str, str]:
    """The name that the adapter derives for this source, and the one to be shown."""
    if isinstance(source, FromTask):
        name = f"{source.task}_{source.output}"
    elif isinstance(source, FromInput):
        name = source.name.removeprefix(_CHANNEL)
    else:
        return "", ""
    item, field = _ITEM.fullmatch(name), _FIELD.search(source.selector)
    if item is None:
        return _identifier(name), _identifier(name)
    if field is not None:
        return _identifier(f"item_{field['name']}"), field["name"]
    return "item", f"item of {item['of']}" if item["of"] else "item"


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
