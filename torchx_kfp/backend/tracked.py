"""The tracked stages of a pipeline, and where they record their results, as far as that is known without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.contract import protocol
from torchx_kfp.pipeline.commands import stage_name_of
from torchx_kfp.pipeline.known import known_inputs
from torchx_kfp.pipeline.placeholders import Facts, resolve_text
from torchx_kfp.pipeline.spec import Pipeline

_BASE = f"{protocol.TRACKER_BASE}="
_PLACEHOLDER = "{{$"


@dataclass(frozen=True)
class Tracked:
    """A tracked stage: the name in its run id, and the base below which it records its results; None if unknown."""

    name: str
    base: str | None


def tracked_stages(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, Tracked]:
    """Return the tracked stages by their names without indices; ``arguments`` has the values of all parameters."""
    found = {}
    for place, known in known_inputs(pipeline, arguments):
        container = place.component.container
        if container is None:
            continue
        words = [resolve_text(word, Facts(parameters=known)) for word in (*container.command, *container.args)]
        name = stage_name_of(words)
        if name and _PLACEHOLDER not in name:
            base = next((word.removeprefix(_BASE) for word in words if word.startswith(_BASE)), "")
            found[place.name] = Tracked(name, base if base and _PLACEHOLDER not in base else None)
    return found
