"""What a resumed run has taken over from the run before it, as a record in its compiled pipeline.

The record is in the pipeline's description, after the author's own, so it is wherever the run is: in the run's folder,
and on the host. It has the whole pipeline, and how the stages ended that the run has kept of it. So the run can be
shown, and resumed, like any other, also when the run before it is gone.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.errors import PipelineFileError
from torchx_kfp.execution.pipeline.load import pipeline_from_text
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.events import StageFinished, decode, encode
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The version of the record.
VERSION = 3
#: The states of stages that can be kept. In a branch that is kept, others are skipped.
_KEPT = (State.SUCCEEDED, State.CACHED, State.SKIPPED)
_MARK = "torchx-kfp-resumed: "
#: How many bytes of a record are unpacked: it may be anybody's. It has a pipeline, and what its stages have recorded.
_LONGEST = 64 << 20


@dataclass(frozen=True)
class ResumeRecord:
    """What a run has taken over.

    Attributes:
        resumes: the id of the run that it continues.
        ends: how the stages that were kept had ended; ``cached_from`` is the run in which each of them ran.
        outputs: outputs of the pipeline itself that kept stages have made.
        text: the whole pipeline, as JSON.
    """

    resumes: str
    ends: tuple[StageResult, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the sentence that describes a resumed run on a host."""
        return f"Resumes {self.resumes}, of which {len(self.ends):,} stages are kept."

    def describe(self, own: str) -> str:
        """Return a pipeline's description with the record; ``own`` is the author's."""
        content = {
            "version": VERSION,
            "stages": [*map(_encode, self.ends)],
            "outputs": dict(self.outputs),
            "pipeline": self.text,
        }
        packed = base64.b64encode(zlib.compress(json.dumps(content).encode(), 1)).decode()
        return "\n".join(filter(None, [own, str(self), f"{_MARK}{self.resumes} {packed}"]))


def resumed_id(description: str) -> str:
    """Return the id of the run that one with this description continues; empty if it continues none."""
    return description.partition(_MARK)[2].partition(" ")[0]


@functools.lru_cache(maxsize=4)
def read_record(description: str) -> ResumeRecord | None:
    """Return the record in a pipeline's description; None without one, or if this version cannot read it."""
    resumes, _, packed = description.partition(_MARK)[2].partition(" ")
    if not resumes:
        return None
    try:
        content = json.loads(zlib.decompressobj().decompress(base64.b64decode(packed), _LONGEST))
        if content["version"] != VERSION:
            return None
        return ResumeRecord(
            resumes=resumes,
            ends=tuple(end for end in map(_decode, content["stages"]) if end.state in _KEPT and end.cached_from),
            outputs=dict(content["outputs"]),
            text=str(content["pipeline"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
        return None


def whole_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return the whole pipeline of a resumed run, whose own one lacks what was kept; that of any other run as it is."""
    record = read_record(pipeline.description)
    try:
        return pipeline if record is None else pipeline_from_text(record.text)
    except PipelineFileError:  # the record may be anybody's
        return pipeline


def _encode(result: StageResult) -> dict[str, Any]:
    return encode(StageFinished(result, kept=True, time=0.0))


def _decode(content: Any) -> StageResult:
    event = decode(content)
    if not isinstance(event, StageFinished):
        raise ValueError("it is not the end of a stage")
    return event.result
