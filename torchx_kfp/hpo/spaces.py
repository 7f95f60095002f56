"""The spaces of a search's parameters: ``float``, ``log``, ``int`` and ``choice``.

A space is plain data, as in a search's definition (``torchx_kfp.tracking.searches``): ``{"type": "float", "bounds":
[0.0001, 1.0], "log": true}``, optionally with ``points``, or ``{"type": "choice", "values": ["relu", "gelu"]}``.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from torchx_kfp.contract.carried.publisher import EXACT, LARGEST
from torchx_kfp.errors import AppDefError


class Space(dict[str, Any]):
    """The values of a parameter, made by ``float``, ``log``, ``int`` and ``choice``."""

    def __repr__(self) -> str:
        """Return the call that makes the space."""
        if "values" in self:
            return f"hpo.choice({', '.join(map(repr, self['values']))})"
        is_log = self["log"] and self["type"] == "float"
        words = [*map(repr, self["bounds"]), *(["log=True"] if self["log"] and not is_log else ())]
        words += [f"points={self['points']!r}"] if "points" in self else ()
        return f"hpo.{'log' if is_log else self['type']}({', '.join(words)})"


def float(low: builtins.float, high: builtins.float, log: bool = False, *, points: builtins.int | None = None) -> Space:
    """Return the space of the numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound, inclusive.
        log: whether values are evenly distributed on a logarithmic scale, as for a learning rate.
        points: the number of values in a grid, evenly spread over the range including both bounds.

    Raises:
        AppDefError: the bounds or the points are not valid.
    """
    return _range("float", builtins.float, low, high, log, points)


def log(low: builtins.float, high: builtins.float, *, points: builtins.int | None = None) -> Space:
    """Return the space of the numbers from ``low``, above 0, to ``high`` on a logarithmic scale: ``log(1e-4, 1.0)``.

    Args and errors are those of ``float``.
    """
    return float(low, high, True, points=points)


def int(low: builtins.int, high: builtins.int, log: bool = False, *, points: builtins.int | None = None) -> Space:
    """Return the space of the integers from ``low`` to ``high``, inclusive.

    Args and errors are those of ``float``. By default, a grid has all values.
    """
    if not all(type(bound) is builtins.int and abs(bound) <= EXACT for bound in (low, high)):
        raise AppDefError(
            f"hpo.int({low!r}, {high!r}) needs integers such as hpo.int(1, 8), up to 2**53: KFP rounds larger "
            "ones. Search for their logarithm instead."
        )
    return _range("int", builtins.int, low, high, log, points)


def choice(*values: Any) -> Space:
    """Return the space of these values: ``choice("relu", "gelu")``.

    Args:
        values: text, numbers or booleans, all of one type.

    Raises:
        AppDefError: the values have different types or duplicates, or KFP would change one.
    """
    kinds = {type(value) for value in values}
    wrong = ""
    if not kinds or not kinds <= {str, builtins.int, builtins.float, bool}:
        wrong = 'is not a choice of text, numbers or booleans. Write hpo.choice("relu", "gelu").'
    elif len(kinds) > 1 and kinds != {builtins.int, builtins.float}:
        wrong = "mixes types, but the best value is an output with one type. Write all values as text."
    elif len(set(values)) < len(values):
        wrong = "has a value twice. Name each once."
    elif str not in kinds and not all(abs(value) <= EXACT for value in values):
        wrong = "has a number that KFP cannot pass on: beyond 2**53, or not finite. Write text."
    space = Space(type="choice", values=list(values))
    if wrong:
        raise AppDefError(f"{space} {wrong}")
    return space


def type_of(space: Mapping[str, Any]) -> type[Any]:
    """Return the type of a parameter's values. Ints and floats together are floats."""
    kinds = {type(value) for value in space.get("values", space.get("bounds"))}
    return kinds.pop() if len(kinds) == 1 else builtins.float


def _range(kind: str, number: type[Any], low: Any, high: Any, log: bool, points: builtins.int | None) -> Space:
    space = Space(type=kind, bounds=[low, high], log=log, **({} if points is None else {"points": points}))
    if not all(type(bound) in (builtins.int, builtins.float) for bound in (low, high)):
        raise AppDefError(f"{space} has bounds that are not numbers. Write, for example, hpo.{kind}(1, 8).")
    # Integers may be larger than floats, and infinity and NaN are not below the limit.
    if not (abs(low) <= LARGEST and abs(high) <= LARGEST and 0 < high - low <= LARGEST):
        raise AppDefError(f"{space} is not a range: low must be below high, and both finite.")
    if log and low <= 0:
        raise AppDefError(
            f"{space} begins at {low!r}, which has no logarithm. Begin above 0, or spread the numbers themselves "
            f"evenly: {Space(space, log=False)}."
        )
    if points is not None and (type(points) is not builtins.int or points < 2):
        raise AppDefError(f"{space} has {points!r} points. A grid has 2 or more in a range: points=5.")
    return Space(space, bounds=[number(low), number(high)])
