"""The values that a parameter of a search can have: ``float``, ``log``, ``int`` and ``choice``."""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass
from typing import Any

from torchx_kfp.errors import SearchError

#: KFP passes numbers as doubles, which have every whole number up to this one.
_LARGEST_INT = 2**53


@dataclass(frozen=True)
class Range:
    """A number between two bounds.

    Attributes:
        kind: ``"float"``, or ``"int"`` for whole numbers.
        low: the lower bound, which is included.
        high: the upper bound, which is included.
        log: whether the logarithm is spread evenly over the range, instead of the number.
        points: the number of values in a grid. None: all whole numbers.
    """

    kind: str
    low: builtins.float
    high: builtins.float
    log: bool = False
    points: builtins.int | None = None

    def __post_init__(self) -> None:
        low, high, points, is_int = self.low, self.high, self.points, self.kind == "int"
        if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low) and low < high):
            raise SearchError(f"{self} is not a range: low must be below high, and both finite.")
        if self.log and low <= 0:
            raise SearchError(
                f"{self} begins at {low!r}, which has no logarithm. Begin above 0, or spread the numbers "
                f"themselves evenly: hpo.{self.kind}({low!r}, {high!r})."
            )
        if points is not None and points < 2:
            raise SearchError(f"{self} has {points!r} points. A grid has 2 or more in a range: points=5.")
        if is_int and not all(isinstance(bound, builtins.int) and abs(bound) <= _LARGEST_INT for bound in (low, high)):
            raise SearchError(
                f"{self} needs whole numbers such as hpo.int(1, 8), up to 2**53: KFP rounds larger ones. Search for "
                "their logarithm instead."
            )

    def __str__(self) -> str:
        points = "" if self.points is None else f", points={self.points!r}"
        if self.log and self.kind == "float":
            return f"hpo.log({self.low!r}, {self.high!r}{points})"
        log = ", log=True" if self.log else ""
        return f"hpo.{self.kind}({self.low!r}, {self.high!r}{log}{points})"

    @property
    def definition(self) -> dict[str, Any]:
        """The space in a search's definition."""
        number = builtins.int if self.kind == "int" else builtins.float
        points = {} if self.points is None else {"points": self.points}
        return {"type": self.kind, "bounds": [number(self.low), number(self.high)], "log": self.log, **points}

    @property
    def output_type(self) -> type[Any]:
        """The type of the output that has the best value."""
        return builtins.int if self.kind == "int" else builtins.float


@dataclass(frozen=True)
class Choice:
    """One of several values, all text, all numbers or all booleans.

    Attributes:
        values: the values, each once.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        kinds = {type(value) for value in self.values}
        if not kinds or not kinds <= {str, builtins.int, builtins.float, bool}:
            raise SearchError(f'{self} is not a choice of text, numbers or booleans. Write hpo.choice("relu", "gelu").')
        if len(kinds) > 1 and kinds != {builtins.int, builtins.float}:
            raise SearchError(
                f"{self} mixes types, but the best value is an output with one type. Write all values as text."
            )
        if len(set(self.values)) < len(self.values):
            raise SearchError(f"{self} has a value twice. Name each once.")
        numbers = [value for value in self.values if not isinstance(value, str)]
        if not all(math.isfinite(value) and abs(value) <= _LARGEST_INT for value in numbers):
            raise SearchError(f"{self} has a number that KFP cannot pass on: beyond 2**53, or not finite. Write text.")

    def __str__(self) -> str:
        return f"hpo.choice({', '.join(map(repr, self.values))})"

    @property
    def definition(self) -> dict[str, Any]:
        """The space in a search's definition."""
        return {"type": "choice", "values": list(self.values)}

    @property
    def output_type(self) -> type[Any]:
        """The type of the output that has the best value."""
        kinds = {type(value) for value in self.values}
        return kinds.pop() if len(kinds) == 1 else builtins.float


Space = Range | Choice


def float(low: builtins.float, high: builtins.float, log: bool = False, *, points: builtins.int | None = None) -> Range:
    """Return the space of the numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound.
        log: whether the logarithm is spread evenly, as for a learning rate.
        points: the number of values in a grid, evenly spread over the range, with both bounds among them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Range("float", low, high, log, points)


def log(low: builtins.float, high: builtins.float, *, points: builtins.int | None = None) -> Range:
    """Return the space of the numbers from ``low`` to ``high`` whose logarithm is spread evenly: ``log(1e-4, 1.0)``.

    Args:
        low: the lower bound, above 0.
        high: the upper bound.
        points: the number of values in a grid.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Range("float", low, high, True, points)


def int(low: builtins.int, high: builtins.int, log: bool = False, *, points: builtins.int | None = None) -> Range:
    """Return the space of the whole numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound, which is one of the numbers.
        log: whether the logarithm is spread evenly.
        points: the number of values in a grid. By default, a grid has all of them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Range("int", low, high, log, points)


def choice(*values: Any) -> Choice:
    """Return the space of these values: ``choice("relu", "gelu")``.

    Args:
        values: text, numbers or booleans, all of one type.

    Raises:
        SearchError: the values have several types, a value is there twice, or KFP would change one.
    """
    return Choice(values)
