"""Values in JSON that may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NONE: Mapping[str, Any] = {}


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else _NONE


def text(value: Any) -> str:
    """Return text or a number as text; empty for anything else."""
    if type(value) is str:
        return value
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
