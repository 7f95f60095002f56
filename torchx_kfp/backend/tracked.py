"""The tracked stages of a pipeline, and where they record their results, as far as that is known without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.pipeline.known import known_inputs
from torchx_kfp.pipeline.placeholders import Facts, resolve_text
from torchx_kfp.pipeline.spec import Pipeline

#: What the script of a tracked stage contains that makes its own run id.
_MAKES_RUN_ID = f'export {protocol.JOB_ID}="${{{protocol.PIPELINE_RUN}:-'
#: The stage's name in that script: the first word of the second argument, or, before that, the script's own name.
_FIRST_WORD, _OWN_NAME = "/${2%% *}/", "/$0/"
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
        if name := _name(words):
            base = next((word.removeprefix(_BASE) for word in words if word.startswith(_BASE)), "")
            found[place.name] = Tracked(name, base if base and _PLACEHOLDER not in base else None)
    return found


def _name(words: Sequence[str]) -> str:
    """Return the stage's name in its run id; empty if it is not a tracked stage or the name is not known."""
    at = words.index("-ec") + 1 if "-ec" in words else len(words)
    script, own, _, second = (*words[at : at + 4], *[""] * 4)[:4]
    if _MAKES_RUN_ID not in script:
        return ""
    name = second.partition(" ")[0] if _FIRST_WORD in script else own if _OWN_NAME in script else ""
    return "" if _PLACEHOLDER in name else name
