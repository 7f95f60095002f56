"""The values that a parameter of a search can have: ``float``, ``log``, ``int`` and ``choice``."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.errors import SearchError

#: KFP passes numbers as doubles, which have every whole number up to this one.
_LARGEST_INT = 2**53


@dataclass(frozen=True)
class Float:
    """A number between two bounds.

    Attributes:
        low: the lower bound, which is included.
        high: the upper bound, which is included.
        log: whether the logarithm is spread evenly over the range, instead of the number.
        points: the number of values in a grid.
    """

    low: builtins.float
    high: builtins.float
    log: bool = False
    points: builtins.int | None = None

    def __post_init__(self) -> None:
        example = "hpo.log(1e-4, 1.0)" if self.log is True else "hpo.float(0.0, 0.5)"
        _check_bounds(self, (builtins.int, builtins.float), f"two numbers such as {example}")

    def __str__(self) -> str:
        if self.log is True:
            return f"hpo.log({self.low!r}, {self.high!r}{_points_text(self.points)})"
        return _range_text("float", self)

    @property
    def definition(self) -> dict[str, Any]:
        """The space in a search's definition."""
        bounds = [builtins.float(self.low), builtins.float(self.high)]
        return {"type": "float", "bounds": bounds, "log": self.log, **_points(self.points)}


@dataclass(frozen=True)
class Int:
    """A whole number between two bounds.

    Attributes:
        low: the lower bound, which is included.
        high: the upper bound, which is included.
        log: whether the logarithm is spread evenly over the range, instead of the number.
        points: the number of values in a grid. None: all of them.
    """

    low: builtins.int
    high: builtins.int
    log: bool = False
    points: builtins.int | None = None

    def __post_init__(self) -> None:
        _check_bounds(self, (builtins.int,), "two whole numbers such as hpo.int(1, 8)")
        if max(abs(self.low), abs(self.high)) > _LARGEST_INT:
            raise SearchError(
                f"{self} goes beyond 2**53, above which KFP rounds whole numbers. Search for its logarithm instead."
            )

    def __str__(self) -> str:
        return _range_text("int", self)

    @property
    def definition(self) -> dict[str, Any]:
        """The space in a search's definition."""
        return {"type": "int", "bounds": [self.low, self.high], "log": self.log, **_points(self.points)}


@dataclass(frozen=True)
class Choice:
    """One of several values, all text, all numbers or all booleans.

    Attributes:
        values: the values, each once.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        kinds = {type(value) for value in self.values}
        example = 'Write hpo.choice("relu", "gelu").'
        if not self.values:
            raise SearchError(f"hpo.choice() has no values. {example}")
        if not kinds <= {str, builtins.int, builtins.float, bool}:
            raise SearchError(f"{self} has a value that is not text, a number or a boolean. {example}")
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


Space = Float | Int | Choice


def float(low: builtins.float, high: builtins.float, log: bool = False, *, points: builtins.int | None = None) -> Float:
    """Return the space of the numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound.
        log: whether the logarithm is spread evenly, as for a learning rate.
        points: the number of values in a grid, evenly spread over the range, with both bounds among them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Float(low, high, log, points)


def log(low: builtins.float, high: builtins.float, *, points: builtins.int | None = None) -> Float:
    """Return the space of the numbers from ``low`` to ``high`` whose logarithm is spread evenly: ``log(1e-4, 1.0)``.

    Args:
        low: the lower bound, above 0.
        high: the upper bound.
        points: the number of values in a grid.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Float(low, high, True, points)


def int(low: builtins.int, high: builtins.int, log: bool = False, *, points: builtins.int | None = None) -> Int:
    """Return the space of the whole numbers from ``low`` to ``high``.

    Args:
        low: the lower bound.
        high: the upper bound, which is one of the numbers.
        log: whether the logarithm is spread evenly.
        points: the number of values in a grid. By default, a grid has all of them.

    Raises:
        SearchError: the bounds or the points are not a range.
    """
    return Int(low, high, log, points)


def choice(*values: Any) -> Choice:
    """Return the space of these values: ``choice("relu", "gelu")``.

    Args:
        values: text, numbers or booleans, all of one type.

    Raises:
        SearchError: the values have several types, a value is there twice, or KFP would change one.
    """
    return Choice(values)


def output_type(space: Space) -> type[Any]:
    """Return the type of the output that has the best value."""
    if isinstance(space, Choice):
        kinds = {type(value) for value in space.values}
        return kinds.pop() if len(kinds) == 1 else builtins.float
    return builtins.int if isinstance(space, Int) else builtins.float


def _range_text(name: str, space: Float | Int) -> str:
    log = "" if space.log is False else f", log={space.log!r}"
    return f"hpo.{name}({space.low!r}, {space.high!r}{log}{_points_text(space.points)})"


def _points_text(points: object) -> str:
    return "" if points is None else f", points={points!r}"


def _points(points: builtins.int | None) -> Mapping[str, Any]:
    return {} if points is None else {"points": points}


def _check_bounds(space: Float | Int, types: tuple[type[Any], ...], expected: str) -> None:
    low, high, points = space.low, space.high, space.points
    if any(type(bound) not in types for bound in (low, high)) or not isinstance(space.log, bool):
        raise SearchError(f"{space} is not a range. Write {expected}.")
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low) and low < high):
        raise SearchError(f"{space} is not a range: low must be below high, and both finite. Write {expected}.")
    if space.log and low <= 0:
        without = f"hpo.{'int' if isinstance(space, Int) else 'float'}({low!r}, {high!r})"
        raise SearchError(
            f"{space} begins at {low!r}, which has no logarithm. Begin above 0, or spread the numbers "
            f"themselves evenly: {without}."
        )
    if points is not None and (type(points) is not builtins.int or points < 2):
        raise SearchError(f"{space} has {points!r} points. A grid has 2 or more in a range: points=5.")
