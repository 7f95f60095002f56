"""Curves: the values of a metric over the steps of a training, a limited number of points however long it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.common.extras import require
from torchx_kfp.common.text import SuggestingDict

if TYPE_CHECKING:
    import pandas

#: What an entry has of the points, one list each.
_COLUMNS = ("steps", "values", "times")


class Point(NamedTuple):
    """A value that was logged at a step. ``time`` is in seconds since 1970."""

    step: int
    value: float
    time: float


_order, _value = attrgetter("step", "time"), attrgetter("value")


@dataclass(frozen=True)
class Curve:
    """The values that a run has logged with one name, in the order of their steps.

    Attributes:
        points: the points that were kept, about 1,000 for each process. The last one, the smallest and the largest of
            all values are always among them.
        count: the number of values that were logged.
    """

    points: tuple[Point, ...]
    count: int

    @property
    def last(self) -> Point:
        """The value at the largest step."""
        return self.points[-1]

    @property
    def min(self) -> Point:
        """The smallest value. NaN does not count, unless all values are NaN."""
        return min(_comparable(self.points), key=_value)

    @property
    def max(self) -> Point:
        """The largest value, likewise."""
        return max(_comparable(self.points), key=_value)


class History(SuggestingDict[Curve]):
    """The curves of a run by name. A name that does not exist raises ``UnknownNameError``."""

    def __init__(self, curves: Mapping[str, Curve] | None = None) -> None:
        way_out = "A stage logs metrics with current_run().log(step, loss=0.3)."
        super().__init__(curves or {}, "The run", "metric", way_out)

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


class GrowingCurve:
    """The points of one name while they are logged: evenly spread ones, and the last, smallest and largest one."""

    def __init__(self) -> None:
        self._spread: list[Point] = []
        self._every = 1
        self._all = Curve((), 0)

    def add(self, point: Point, limit: int) -> None:
        """Add a point, and keep at most this number of evenly spread points."""
        if self._all.count % self._every == 0:
            self._spread.append(point)
        while len(self._spread) > limit:
            del self._spread[1::2]
            self._every *= 2
        known = Curve(tuple(sorted({*self._all.points, point}, key=_order)), self._all.count + 1)
        self._all = Curve((known.min, known.max, known.last), known.count)

    def curve(self) -> Curve:
        """Return the points that are kept, and the number of all."""
        return Curve(tuple(sorted({*self._spread, *self._all.points}, key=_order)), self._all.count)


def encode_curves(curves: Mapping[str, Curve]) -> dict[str, object]:
    """Return the field ``steps`` of an entry."""
    return {
        name: {"count": it.count, **dict(zip(_COLUMNS, map(list, zip(*it.points, strict=True)), strict=True))}
        for name, it in curves.items()
    }


def join_curves(history: Mapping[str, Curve], content: Mapping[str, Any]) -> History:
    """Return the curves of a run with those of another process, which are in an entry.

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
    """Return the points other than NaN, if there are any."""
    return [point for point in points if point.value == point.value] or points
