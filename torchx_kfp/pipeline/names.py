"""The names of runs, of their stages, and of the stages' executions."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Mapping, Sequence

# A name is one part of a path and of a tracker's key. A part may have 255 bytes, and numbers are added to it later.
_LONGEST = 200
_INDICES = re.compile(r"\[[\d,]+\]")
#: The name that means the newest run.
LATEST = "latest"


def make_run_name(pipeline: str) -> str:
    """Make a run id: ``<pipeline>-<date>-<time>-<6 hexadecimal digits>``."""
    return f"{safe_name(pipeline)[:_LONGEST]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def safe_name(text: str) -> str:
    """Return the text with only those characters that every tracker key and file name may have: A-Z a-z 0-9 . -"""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.") or "x"


def fitting(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that a user may mean: the name itself, else those that begin with it, else that end with it."""
    if name in known or not name:
        return [name] if name else []
    return [found for found in known if found.startswith(name)] or [found for found in known if found.endswith(name)]


def without_indices(stage: str) -> str:
    """Return the name without loop indices: ``inner/train`` for ``inner[2]/train[2,0]``."""
    return _INDICES.sub("", stage)


def indices_of(stage: str) -> tuple[int, ...]:
    """Return the loop indices in a name: 2, 0 for ``train[2,0]``."""
    return tuple(int(number) for group in _INDICES.findall(stage) for number in group[1:-1].split(","))


def is_execution(name: str, stage: str) -> bool:
    """Tell whether a name is the stage's, possibly with more indices: ``train[1,0]`` is an execution of ``train``."""
    parts, of = name.split("/"), stage.split("/")
    return len(parts) == len(of) and all(
        without_indices(part) == without_indices(other)
        and indices_of(part)[: len(indices_of(other))] == indices_of(other)
        for part, other in zip(parts, of, strict=True)
    )


class PodNames:
    """Makes names for pods (``KFP_POD_NAME``) that are readable, and unique within the run."""

    def __init__(self, taken: Mapping[str, str] | None = None) -> None:
        """Begin with the names that are already taken, and their stages."""
        self._stages = {pod_name.rpartition("-")[0]: stage for pod_name, stage in (taken or {}).items()}

    def make(self, stage: str, attempt: int) -> str:
        """Make a name: ``train-2-0`` for the first attempt (counted from 1) at ``train[2]``."""
        return f"{self._stage_part(stage)}-{attempt - 1}"

    def _stage_part(self, stage: str) -> str:
        name = safe_name(stage)
        # train[2] and train-2 would share a name: the second one gets a hash, as long names do.
        while len(name) > _LONGEST or self._stages.setdefault(name, stage) != stage:
            digest = hashlib.sha256(f"{stage} {name}".encode()).hexdigest()[:8]
            name = f"{safe_name(stage)[: _LONGEST - 9]}-{digest}"
        return name
