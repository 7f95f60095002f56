"""Curves: the values of a metric over the steps of a training, a limited number of points however long it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.common.extras import require
from torchx_kfp.common.text import describe_unknown
from torchx_kfp.errors import UnknownNameError

if TYPE_CHECKING:
    import pandas


class Point(NamedTuple):
    """A value that was logged at a step. ``time`` is in seconds since 1970."""

    step: int
    value: float
    time: float


@dataclass(frozen=True)
class Curve:
    """The values that a run has logged with one name, in the order of their steps.

    Attributes:
        points: the points that were kept, about 1,000 for each process.
        count: the number of values that were logged.
        last: the value at the largest step.
        min: the smallest value. NaN does not count, unless all values are NaN.
        max: the largest value, likewise.
    """

    points: tuple[Point, ...]
    count: int
    last: Point
    min: Point
    max: Point


class History(dict[str, Curve]):
    """The curves of a run by name. A name that does not exist raises ``UnknownNameError``."""

    def __missing__(self, name: str) -> Curve:
        raise UnknownNameError(
            f"{describe_unknown('The run', 'metric', name, sorted(self))} A stage logs metrics with "
            "current_run().log(step, loss=0.3)."
        )

    def to_frame(self) -> pandas.DataFrame:
        """Return the points as a pandas DataFrame with a row for each step and a column for each name.

        A name without a point at a step has NaN there. Of several points at one step, the last one counts.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "A DataFrame")
        import pandas

        columns = {name: {point.step: point.value for point in curve.points} for name, curve in self.items()}
        steps = sorted({step for column in columns.values() for step in column})
        index = pandas.Index(steps, name="step", dtype="int64")
        return pandas.DataFrame(columns, index=index, columns=list(columns), dtype=float)


class Series:
    """The points of one name while they are logged."""

    last: Point
    min: Point
    max: Point

    def __init__(self) -> None:
        self.count = 0
        self.points: list[Point] = []
        self._every = 1

    def add(self, point: Point, most: int) -> None:
        """Add a point, and keep at most this number of points."""
        if self.count:
            if _order(point) >= _order(self.last):
                self.last = point
            # NaN is neither smaller nor larger than a number, and a number replaces it.
            if point.value < self.min.value or self.min.value != self.min.value:
                self.min = point
            if point.value > self.max.value or self.max.value != self.max.value:
                self.max = point
        else:
            self.last = self.min = self.max = point
        if self.count % self._every == 0:
            self.points.append(point)
            while len(self.points) > most:
                del self.points[1::2]
                self._every *= 2
        self.count += 1

    def kept(self) -> list[Point]:
        """Return the points in the order of their steps, including the exact ones."""
        return sorted({*self.points, self.last, self.min, self.max}, key=_order)


def encode_series(series: Mapping[str, Series]) -> dict[str, object]:
    """Return the field ``steps`` of an entry."""
    return {
        name: {
            "count": it.count,
            **dict(zip(("steps", "values", "times"), map(list, zip(*it.kept(), strict=True)), strict=True)),
            **{which: list(point) for which, point in (("last", it.last), ("min", it.min), ("max", it.max))},
        }
        for name, it in series.items()
    }


def parse_curves(content: Mapping[str, Any]) -> dict[str, Curve]:
    """Return the curves of one process in an entry. Raises KeyError, TypeError or ValueError if it is malformed."""
    curves: dict[str, Curve] = {}
    for name, stored in content.items():
        columns = zip(stored["steps"], stored["values"], stored["times"], strict=True)
        last, low, high = (_point(*stored[which]) for which in ("last", "min", "max"))
        curves[name] = Curve(tuple(_point(*row) for row in columns), int(stored["count"]), last, low, high)
    return curves


def join_curves(history: Mapping[str, Curve], curves: Mapping[str, Curve]) -> History:
    """Return the curves of a run with those of another process."""
    joined = {name: _joined(history[name], curve) if name in history else curve for name, curve in curves.items()}
    return History({**history, **joined})


def _joined(one: Curve, other: Curve) -> Curve:
    """Join the curves of two processes."""
    both = (one, other)
    comparable = [curve for curve in both if curve.min.value == curve.min.value] or both
    return Curve(
        tuple(sorted((*one.points, *other.points), key=_order)),
        one.count + other.count,
        max((curve.last for curve in both), key=_order),
        min((curve.min for curve in comparable), key=lambda point: point.value),
        max((curve.max for curve in comparable), key=lambda point: point.value),
    )


def _order(point: Point) -> tuple[int, float]:
    return point.step, point.time


def _point(step: Any, value: Any, when: Any) -> Point:
    return Point(int(step), float(value), float(when))
