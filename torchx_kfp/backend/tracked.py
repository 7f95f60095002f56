"""The tracked stages of a pipeline, and where they record their results, as far as that is known without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.contract import protocol
from torchx_kfp.pipeline.commands import retries_of, stage_name_of
from torchx_kfp.pipeline.distributed import specifications
from torchx_kfp.pipeline.known import known_inputs
from torchx_kfp.pipeline.placeholders import Facts, resolve_text
from torchx_kfp.pipeline.spec import Pipeline

_BASE = f"{protocol.TRACKER_BASE}="
_PLACEHOLDER = "{{$"


@dataclass(frozen=True)
class Tracked:
    """A tracked stage.

    Attributes:
        name: the name in its run id.
        base: the base below which it records its results; None if unknown.
        restarts: whether its own program starts the application again if it fails.
    """

    name: str
    base: str | None
    restarts: bool = False


def tracked_stages(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, Tracked]:
    """Return the tracked stages by their names without indices; ``arguments`` has the values of all parameters."""
    found = {}
    for place, known in known_inputs(pipeline, arguments):
        container = place.component.container
        if container is None:
            continue
        given = (*container.command, *container.args)
        words = [resolve_text(word, Facts(parameters=known)) for word in given]
        name = stage_name_of(words)
        if name and _PLACEHOLDER not in name:
            base = next((word.removeprefix(_BASE) for word in words if word.startswith(_BASE)), "")
            restarts = retries_of(given) > 0 or any(spec.get("retries") for spec, _ in specifications(given))
            found[place.name] = Tracked(name, base if base and _PLACEHOLDER not in base else None, restarts)
    return found
