"""Dataclasses whose values come from JSON that somebody else may have written: verify that they have their types."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from torchx_kfp.text import shown

#: Limits of times and durations in seconds, which dates have as well, and of counts, which JSON has exactly.
_MOST_SECONDS, _MOST = 1e11, 2**53


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def verify_fields(value: Any) -> None:
    """Verify that the fields of a dataclass have the types of their annotations, and sensible numbers.

    Raises:
        ValueError: a field does not; the message continues a sentence that begins with the dataclass.
    """
    kind: Any = type(value)
    hints = _hints(kind)
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if not _fits(given, hints[field.name]):
            raise ValueError(f"its {field.name!r} is {shown(given)}")


def _fits(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in args)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, args[0]) for item in value)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, args[0]) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _fits(item, args[1]) for key, item in value.items()
        )
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST_SECONDS
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
    if not isinstance(value, hint):
        return False
    if dataclasses.is_dataclass(value):
        verify_fields(value)
    return True
