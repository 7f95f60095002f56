"""Curves: the values of a metric over the steps of a training, as a limited number of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.common.extras import require
from torchx_kfp.common.text import SuggestingDict

if TYPE_CHECKING:
    import pandas

#: The columns of an entry: one list each.
_COLUMNS = ("steps", "values", "times")


class Point(NamedTuple):
    """A value logged at a step. ``time`` is in seconds since 1970."""

    step: int
    value: float
    time: float


_order, _value = attrgetter("step", "time"), attrgetter("value")


@dataclass(frozen=True)
class Curve:
    """The values that a run logged under one name, in the order of steps.

    Attributes:
        points: the points kept, about 1,000 for each process, always with the last, smallest and largest values.
        count: the number of values logged.
    """

    points: tuple[Point, ...]
    count: int

    @property
    def last(self) -> Point:
        """The value at the largest step."""
        return self.points[-1]

    @property
    def min(self) -> Point:
        """The smallest value. NaN is ignored unless all values are NaN."""
        return min(_comparable(self.points), key=_value)

    @property
    def max(self) -> Point:
        """The largest value. NaN is ignored unless all values are NaN."""
        return max(_comparable(self.points), key=_value)


class History(SuggestingDict[Curve]):
    """The curves of a run by name. An unknown name raises ``UnknownNameError``."""

    def __init__(self, curves: Mapping[str, Curve] | None = None) -> None:
        way_out = "A stage logs metrics with current_run().log(step, loss=0.3)."
        super().__init__(curves or {}, "The run", "metric", way_out)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with a row for each step and a column for each name.

        Missing points are NaN. Of several points at one step, the last one counts.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "A DataFrame")
        import pandas

        columns = {name: {point.step: point.value for point in curve.points} for name, curve in self.items()}
        steps = sorted({step for column in columns.values() for step in column})
        index = pandas.Index(steps, name="step", dtype="int64")
        return pandas.DataFrame(columns, index=index, columns=list(columns), dtype=float)


class GrowingCurve:
    """A curve during logging: evenly spread points, and the last, smallest and largest."""

    def __init__(self) -> None:
        self._spread: list[Point] = []
        self._every = 1
        self._all = Curve((), 0)

    def add(self, point: Point, limit: int) -> None:
        """Add a point, and keep at most ``limit`` evenly spread points."""
        if self._all.count % self._every == 0:
            self._spread.append(point)
        while len(self._spread) > limit:
            del self._spread[1::2]
            self._every *= 2
        known = Curve(tuple(sorted({*self._all.points, point}, key=_order)), self._all.count + 1)
        self._all = Curve((known.min, known.max, known.last), known.count)

    def curve(self) -> Curve:
        """Return the points kept, and the number of all points."""
        return Curve(tuple(sorted({*self._spread, *self._all.points}, key=_order)), self._all.count)


def encode_curves(curves: Mapping[str, Curve]) -> dict[str, object]:
    """Return the field ``steps`` of an entry."""
    return {
        name: {"count": it.count, **dict(zip(_COLUMNS, map(list, zip(*it.points, strict=True)), strict=True))}
        for name, it in curves.items()
    }


def join_curves(history: Mapping[str, Curve], content: Mapping[str, Any]) -> History:
    """Return the curves of a run together with those in the entry of another process.

    Raises:
        KeyError, TypeError, ValueError: the entry is malformed.
    """
    joined = History(history)
    for name, stored in content.items():
        rows = zip(*(stored[column] for column in _COLUMNS), strict=True)
        points = [Point(int(step), float(value), float(when)) for step, value, when in rows]
        if not points:
            raise ValueError(f"{name!r} has no points")
        known = history.get(name, Curve((), 0))
        joined[name] = Curve(tuple(sorted((*known.points, *points), key=_order)), known.count + int(stored["count"]))
    return joined


def _comparable(points: Sequence[Point]) -> Sequence[Point]:
    """Return the points that are not NaN, or all if there are only NaN."""
    return [point for point in points if point.value == point.value] or points
