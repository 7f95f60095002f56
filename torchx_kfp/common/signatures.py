"""Signatures that show the keywords of which a function takes many, where an editor or ``help()`` asks for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import ForwardRef, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


def keywords_of(kind: type) -> list[inspect.Parameter]:
    """Return parameters for the keys of a ``TypedDict`` that a function takes as ``**options: Unpack[kind]``."""
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
    """Decorate a function whose last parameter is ``**options``: its signature lists these in place of it."""

    def decorate(function: _Function) -> _Function:
        *own, _ = (signature := inspect.signature(function)).parameters.values()
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *keywords])
        return function

    return decorate
