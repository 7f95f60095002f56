"""The tracked stages of a pipeline, and where they record their results, as far as that is known without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.pipeline.known import known_stages
from torchx_kfp.pipeline.spec import Pipeline


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
    for stage in known_stages(pipeline, arguments):
        facts = stage.facts
        if facts.stage and "{{$" not in facts.stage:
            restarts = facts.retries > 0 or bool(facts.specification and facts.specification.retries)
            found[stage.place.name] = Tracked(facts.stage, stage.tracker_base, restarts)
    return found
