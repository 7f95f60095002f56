"""What a resumed run has taken over from the run before it, as a record in its compiled pipeline.

The record is in the pipeline's description, after the author's own, so it is wherever the run is: in the run's folder,
and on the host. It makes the run complete in itself: it can be shown, and resumed, when the run before it is gone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.runs.events import StageFinished, decode, decode_artifact, encode, encode_artifact
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The version of the record.
VERSION = 1
#: The states of stages that can be kept. In a branch that is kept, others are skipped.
_KEPT = (State.SUCCEEDED, State.CACHED, State.SKIPPED)
_MARK = "torchx-kfp-resumed: "


@dataclass(frozen=True)
class Continuation:
    """What a run has taken over.

    Attributes:
        resumes: the id of the run that it continues.
        ends: how the stages that were kept had ended; ``cached_from`` is the run in which each of them ran.
        values: outputs of kept units that do not follow from ``ends``, by the unit's key and the output.
        definitions: digests of what defines the units of the whole pipeline, by their keys: see ``units``.
        outputs: outputs of the pipeline itself that kept stages have made.
        after: the kept stages that stages of the whole pipeline follow, by their names, for its drawing.
    """

    resumes: str
    ends: tuple[StageResult, ...] = ()
    values: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    definitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Sequence[str]] = field(default_factory=dict)


def describe(own: str, continuation: Continuation) -> str:
    """Return a pipeline's description with the record; ``own`` is the author's."""
    content = {
        "version": VERSION,
        "resumes": continuation.resumes,
        "stages": [encode(StageFinished(end, kept=True, time=0.0)) for end in continuation.ends],
        "values": [[*key, *_encoded(value)] for key, value in continuation.values.items()],
        "definitions": {key: dict(each) for key, each in continuation.definitions.items()},
        "outputs": {name: _encoded(value) for name, value in continuation.outputs.items()},
        "after": {name: [*before] for name, before in continuation.after.items()},
    }
    return "\n".join(filter(None, [without_record(own), summary(continuation), f"{_MARK}{json.dumps(content)}"]))


def summary(continuation: Continuation) -> str:
    """Return the sentence that describes a resumed run on a host."""
    return f"Resumes {continuation.resumes}, of which {len(continuation.ends):,} stages are kept."


def without_record(description: str) -> str:
    """Return the author's own part of a description."""
    before, mark, _ = description.partition(_MARK)
    return before.rstrip("\n").rpartition("\n")[0] if mark else description


@functools.lru_cache(maxsize=4)
def continuation_of(description: str) -> Continuation | None:
    """Return the record in a pipeline's description; None without one, or if this version cannot read it."""
    _, mark, text = description.partition(_MARK)
    if not mark:
        return None
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            return None
        events = [decode(one) for one in content["stages"]]
        return Continuation(
            resumes=str(content["resumes"]),
            ends=tuple(
                event.result
                for event in events
                if isinstance(event, StageFinished) and event.result.state in _KEPT and event.result.cached_from
            ),
            values={(str(key), str(output)): _decoded(rest) for key, output, *rest in content["values"]},
            definitions={
                str(key): {str(name): str(text) for name, text in each.items()}
                for key, each in content["definitions"].items()
            },
            outputs={str(name): _decoded(value) for name, value in content["outputs"].items()},
            # The recorded runs lack it.
            after={str(name): [str(each) for each in before] for name, before in content.get("after", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _encoded(value: Any) -> list[Any]:
    return ["artifact", encode_artifact(value)] if isinstance(value, Artifact) else ["value", value]


def _decoded(content: list[Any]) -> Any:
    kind, value = content
    return decode_artifact(value) if kind == "artifact" else value
