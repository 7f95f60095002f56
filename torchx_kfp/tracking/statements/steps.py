"""Metrics over the steps of a training: one curve for each name, which stays small however long the training is.

Each process of a run has one statement, which it replaces every few seconds (``step_log``). For each name, it keeps up
to ``MAX_POINTS`` points: every value at first, then every second one, every fourth one, and so on. The number of
values, the last one, the smallest and the largest are exact.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.errors import MissingMetricError, ResultRefusedError
from torchx_kfp.extras import require
from torchx_kfp.named import describe_unknown
from torchx_kfp.text import shown
from torchx_kfp.tracking.results import check_results
from torchx_kfp.tracking.statements.kinds import Kind

if TYPE_CHECKING:
    import pandas

#: The points that a process keeps for one name. With many names, it keeps fewer for each, and ``_ALL_POINTS`` in total:
#: about 2 MB.
MAX_POINTS, _ALL_POINTS = 1000, 50_000
#: The number of names that a process may use.
MAX_NAMES = 500
#: The bits of a step, as in MLflow.
_STEP_BITS = 63


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
    """The curves of a run by name. A name that does not exist raises ``MissingMetricError``."""

    def __missing__(self, name: str) -> Curve:
        raise MissingMetricError(
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


def points_for_each(names: int) -> int:
    """Return the number of points that a process may keep for each of this number of names."""
    return min(MAX_POINTS, _ALL_POINTS // max(1, names))


def check_step(run_id: str, step: int, metrics: Mapping[str, float]) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics as plain numbers.

    Raises:
        ResultRefusedError: the step is not an int, or a metric is not a number.
    """
    found = step if isinstance(step, int) else _item(step)
    if isinstance(found, bool) or not isinstance(found, int) or found.bit_length() > _STEP_BITS:
        raise ResultRefusedError(
            f"A step is an int, such as the number of a batch or an epoch. Got {type(step).__name__}: {shown(step)}. "
            "Give it first: run.log(step, loss=0.3)."
        )
    checked: dict[str, float] = {}
    for name, value in check_results(run_id, metrics).items():
        if isinstance(value, str):
            raise ResultRefusedError(
                f"The metric {shown(name)} at the step {found} of the run {run_id!r} is text: {shown(value)}. Metrics "
                "are numbers; put(...) and add_metadata(...) take text."
            )
        try:
            checked[name] = float(value)
        except OverflowError:
            raise ResultRefusedError(
                f"The metric {shown(name)} at the step {found} of the run {run_id!r} is too large for a float: "
                f"{shown(value)}."
            ) from None
    return found, checked


def encode_series(series: Mapping[str, Series]) -> dict[str, object]:
    """Return the statement of these series, in a form that JSON can represent."""
    return {
        "metrics": {
            name: {
                "count": it.count,
                **_columns(it.kept()),
                **{which: list(point) for which, point in (("last", it.last), ("min", it.min), ("max", it.max))},
            }
            for name, it in series.items()
        }
    }


def _parse_curves(content: Mapping[str, Any]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for name, stored in content["metrics"].items():
        columns = zip(stored["steps"], stored["values"], stored["times"], strict=True)
        last, low, high = (_point(*stored[which]) for which in ("last", "min", "max"))
        curves[name] = Curve(tuple(_point(*row) for row in columns), int(stored["count"]), last, low, high)
    return curves


def _join_curves(processes: list[dict[str, Curve]]) -> History:
    history = History()
    for curves in processes:
        for name, curve in curves.items():
            history[name] = _joined(history[name], curve) if name in history else curve
    return history


#: The curves of a run. Values that several processes have logged with one name become one curve.
STEPS = Kind("steps", _parse_curves, _join_curves)


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


def _columns(points: Iterable[Point]) -> dict[str, list[Any]]:
    steps, values, times = zip(*points, strict=True)
    return {"steps": list(steps), "values": list(values), "times": list(times)}


def _point(step: Any, value: Any, when: Any) -> Point:
    return Point(int(step), float(value), float(when))


def _item(step: object) -> object:
    """Return the int in a value of NumPy or a similar library."""
    if isinstance(step, numbers.Integral):
        return int(step)
    item = getattr(step, "item", None)
    try:
        return item() if callable(item) else None
    except Exception:  # an array of several
        return None
