"""Signatures of functions with many keywords, for editors and ``help()``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import ForwardRef, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


def keywords_of(kind: type) -> list[inspect.Parameter]:
    """Return a parameter for each key of a ``TypedDict`` that a function takes as ``**options: Unpack[kind]``."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint,
        )
        for name, hint in kind.__annotations__.items()
    ]


def with_keywords(keywords: Iterable[inspect.Parameter]) -> Callable[[_Function], _Function]:
    """Return a decorator that replaces the last parameter, ``**options``, with these in a function's signature."""

    def decorate(function: _Function) -> _Function:
        *own, _ = (signature := inspect.signature(function)).parameters.values()
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *keywords])
        return function

    return decorate
