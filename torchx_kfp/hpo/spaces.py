"""The values that a parameter of a search can have: ``float``, ``log``, ``int`` and ``choice``.

A space is plain data, as in a search's definition (``torchx_kfp.tracking.searches``): ``{"type": "float", "bounds":
[0.0001, 1.0], "log": true}``, perhaps with ``points``, or ``{"type": "choice", "values": ["relu", "gelu"]}``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from typing import Any

from torchx_kfp.errors import SearchError

#: KFP passes numbers as doubles, which have every whole number up to this one.
_LARGEST_INT = 2**53

Space = Mapping[str, Any]


def float(low: builtins.float, high: builtins.float, log: bool = False, *, points: builtins.int | None = None) -> Space:
    """Return the space of the numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound.
        log: whether the logarithm is spread evenly, as for a learning rate.
        points: the number of values in a grid, evenly spread over the range, with both bounds among them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return _range("float", builtins.float, low, high, log, points)


def log(low: builtins.float, high: builtins.float, *, points: builtins.int | None = None) -> Space:
    """Return the space of the numbers from ``low`` to ``high`` whose logarithm is spread evenly: ``log(1e-4, 1.0)``.

    Args:
        low: the lower bound, above 0.
        high: the upper bound.
        points: the number of values in a grid.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return float(low, high, True, points=points)


def int(low: builtins.int, high: builtins.int, log: bool = False, *, points: builtins.int | None = None) -> Space:
    """Return the space of the whole numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound, which is one of the numbers.
        log: whether the logarithm is spread evenly.
        points: the number of values in a grid. By default, a grid has all of them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    if not all(isinstance(bound, builtins.int) and abs(bound) <= _LARGEST_INT for bound in (low, high)):
        raise SearchError(
            f"hpo.int({low!r}, {high!r}) needs whole numbers such as hpo.int(1, 8), up to 2**53: KFP rounds larger "
            "ones. Search for their logarithm instead."
        )
    return _range("int", builtins.int, low, high, log, points)


def choice(*values: Any) -> Space:
    """Return the space of these values: ``choice("relu", "gelu")``.

    Args:
        values: text, numbers or booleans, all of one type.

    Raises:
        SearchError: the values have several types, a value is there twice, or KFP would change one.
    """
    kinds = {type(value) for value in values}
    wrong = ""
    if not kinds or not kinds <= {str, builtins.int, builtins.float, bool}:
        wrong = 'is not a choice of text, numbers or booleans. Write hpo.choice("relu", "gelu").'
    elif len(kinds) > 1 and kinds != {builtins.int, builtins.float}:
        wrong = "mixes types, but the best value is an output with one type. Write all values as text."
    elif len(set(values)) < len(values):
        wrong = "has a value twice. Name each once."
    elif str not in kinds and not all(math.isfinite(value) and abs(value) <= _LARGEST_INT for value in values):
        wrong = "has a number that KFP cannot pass on: beyond 2**53, or not finite. Write text."
    if wrong:
        raise SearchError(f"hpo.choice({', '.join(map(repr, values))}) {wrong}")
    return {"type": "choice", "values": list(values)}


def type_of(space: Space) -> type[Any]:
    """Return the type of a parameter's values. Whole numbers among others are floats."""
    kinds = {type(value) for value in space.get("values", space.get("bounds"))}
    return kinds.pop() if len(kinds) == 1 else builtins.float


def _range(kind: str, number: type[Any], low: Any, high: Any, log: bool, points: builtins.int | None) -> Space:
    said = f"hpo.{kind}({low!r}, {high!r})"
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low) and low < high):
        raise SearchError(f"{said} is not a range: low must be below high, and both finite.")
    if log and low <= 0:
        raise SearchError(
            f"The range begins at {low!r}, which has no logarithm. Begin above 0, or spread the numbers themselves "
            f"evenly: {said}."
        )
    if points is not None and points < 2:
        raise SearchError(f"{said} has {points!r} points. A grid has 2 or more in a range: points=5.")
    counted = {} if points is None else {"points": points}
    return {"type": kind, "bounds": [number(low), number(high)], "log": log, **counted}
