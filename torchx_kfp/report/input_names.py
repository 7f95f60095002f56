"""Show the inputs of stages under their names in the pipeline.

A stage's component names inputs after their channels: ``threshold_float`` for the parameter ``threshold``, and
``item_lr_float`` for the field ``lr`` of a loop's item. Run ids of stages that it reads without an alias are in
``reads``, and parts of its command are in ``stage``. Names that a user has given, such as those of KFP's own components
and aliases of reads, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchx_kfp.contract.inputs import ADDED, INNER, READS, STAGE
from torchx_kfp.pipeline.spec import Constant, FromInput, FromTask, Origin, Pipeline
from torchx_kfp.pipeline.walk import walk

_CHANNEL = "pipelinechannel--"
_READS, _STAGE = re.compile(rf"{READS}(_\d+)?"), re.compile(rf"{STAGE}(_\d+)?")
_ITEM = re.compile(r"(?:(?P<of>.*)-)?loop-item(?:-param-\d+)?")
_FIELD = re.compile(r"\[(?P<quote>[\"'])(?P<name>.*)(?P=quote)\]$")

#: The pipeline's name for each input of a stage; None for an input that repeats another one.
Names = Mapping[str, "str | None"]


def input_names(pipeline: Pipeline) -> dict[str, Names]:
    """Return the names for each task, by the name of its stages without indices."""
    return {
        place.name: _names(place.task.inputs, place.component.facts.tracker_base is not None)
        for place in walk(pipeline)
        if place.is_stage
    }


def named(inputs: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the inputs under these names, or unchanged if two different values would get the same name."""
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
    # To pass a field of an item into a group inside the loop, KFP passes the whole item along.
    carried = {
        source.name for name, source in inputs.items() if name.startswith(INNER) and isinstance(source, FromInput)
    }
    names: dict[str, str | None] = {}
    for name, source in inputs.items():
        derived, shown = _origin(source)
        if tracked and isinstance(source, Constant) and _STAGE.fullmatch(name):
            names[name] = None
        elif tracked and derived.endswith("_run_id") and _READS.fullmatch(name):
            names[name] = shown.removesuffix("_run_id")
        elif derived and re.fullmatch(f"({INNER})?{re.escape(derived)}{ADDED}", name):
            alone = isinstance(source, FromInput) and not source.selector and source.name in carried
            names[name] = None if alone else shown
    return names


def _origin(source: Origin) -> tuple[str, str]:
    """Return the name that the adapter derives for this source, and the name to show."""
    if isinstance(source, FromTask):
        name = f"{source.task}_{source.output}"
    elif isinstance(source, FromInput):
        name = source.name.removeprefix(_CHANNEL)
    else:
        return "", ""
    item, field = _ITEM.fullmatch(name), _FIELD.search(source.selector)
    if item is None:
        return identifier(name), identifier(name)
    if field is not None:
        return identifier(f"item_{field['name']}"), field["name"]
    return "item", f"item of {item['of']}" if item["of"] else "item"


def identifier(name: str) -> str:
    """Return KFP's name for a result or the field of an item."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
