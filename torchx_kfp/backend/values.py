"""Values in JSON that may be anything, and Argo's hash of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OFFSET, _PRIME = 2166136261, 16777619
_NONE: Mapping[str, Any] = {}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else _NONE


def text(value: Any) -> str:
    """Return text or a number as text; empty for anything else."""
    if type(value) is str:
        return value
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def hash_of(text: str, base: int = _OFFSET) -> int:
    """Return the hash of a name (FNV-1a, 32 bits) of which Argo makes ids; ``base`` is that of the text before it."""
    for byte in text.encode(errors="replace"):
        base = ((base ^ byte) * _PRIME) & 0xFFFFFFFF
    return base
