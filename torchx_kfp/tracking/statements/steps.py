"""Metrics over the steps of a training: the curve of each name, kept small however long the training is.

Each process of a run has one entry (``entries``), which it replaces every few seconds (``step_log``). Of a name it has
up to ``MAX_POINTS`` points: every value at first, then every second one, every fourth one, and so on. The number of
values, the last one, the smallest and the largest are exact.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.errors import MissingMetricError, ResultRefusedError
from torchx_kfp.text import did_you_mean, listed, shown
from torchx_kfp.tracking.statements.entries import STEPS, Corrupt, Entry, no_entry, read_entries
from torchx_kfp.tracking.stores.store import Store
from torchx_kfp.tracking.values import check_results

if TYPE_CHECKING:
    import pandas

#: Points of one name that a process keeps; of many names fewer, so that they are ``_ALL_POINTS`` together: some 2 MB.
MAX_POINTS, _ALL_POINTS = 1000, 50_000
#: Names that a process may use.
MAX_NAMES = 500
#: Names that a message lists.
_LISTED = 20
#: Bits of a step: those of MLflow.
_STEP_BITS = 63


class Point(NamedTuple):
    """A value, the step at which it was logged, and when: in seconds since 1970."""

    step: int
    value: float
    time: float


@dataclass(frozen=True)
class Curve:
    """What a run has logged under one name, in the order of the steps.

    ``count`` values were logged, of which ``points`` are kept. ``last`` is that of the largest step. ``min`` and
    ``max`` leave out NaN, unless all values are.
    """

    points: tuple[Point, ...]
    count: int
    last: Point
    min: Point
    max: Point


class History(dict[str, Curve]):
    """The curves of a run, by name."""

    def __missing__(self, name: object) -> Curve:
        names = sorted(self)
        there = f"There are: {listed(names, _LISTED)}." if names else "It has logged none."
        raise MissingMetricError(
            f"The run has no metric of steps named {shown(name)}.{did_you_mean(name, names)} {there}"
        )

    def to_frame(self) -> pandas.DataFrame:
        """The points as a pandas DataFrame: a row for each step, and a column for each name.

        A name that has no point at a step has NaN there; of several at one step, the last one counts.

        Raises:
            TrackerError: pandas is not installed.
        """
        from torchx_kfp.tracking.frame import history_frame

        return history_frame(self)


class Series:
    """The points of one name while they come in."""

    last: Point
    min: Point
    max: Point

    def __init__(self) -> None:
        self.count = 0
        self.points: list[Point] = []
        self._every = 1

    def add(self, point: Point, most: int) -> None:
        """Take the point in, and keep so many of all."""
        if self.count:
            if _order(point) >= _order(self.last):
                self.last = point
            # NaN is neither smaller nor larger than a number, and what is not NaN replaces it.
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
        """The points in the order of their steps, with the exact ones."""
        return sorted({*self.points, self.last, self.min, self.max}, key=_order)


def points_for_each(names: int) -> int:
    """How many points each of so many names may keep."""
    return min(MAX_POINTS, _ALL_POINTS // max(1, names))


def check_step(run_id: str, step: object, metrics: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The step and the metrics as plain numbers.

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
                f"The metric {shown(name)} at the step {found} of the run {run_id!r} is beyond floats: {shown(value)}."
            ) from None
    return found, checked


def encode_series(series: Mapping[str, Series]) -> dict[str, object]:
    """The entry that holds these."""
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


def read_history(store: Store, run_id: str) -> History:
    """What the run has logged; of several processes, all that they have logged under a name as one curve.

    Raises:
        CorruptResultError: what is stored is no curve.
        TrackerError: the store failed.
    """
    return read_history_of(store, [run_id]).get(run_id, History())


def read_history_of(
    store: Store, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
) -> dict[str, History]:
    """The curves of each of these runs that has any, or of all runs.

    ``corrupt`` is called for what are no curves, in place of an error.
    """
    found = read_entries(store, STEPS, run_ids, corrupt)
    return {run_id: _decode(store, entries, corrupt) for run_id, entries in found.items()}


def _decode(store: Store, entries: Iterable[Entry], corrupt: Corrupt | None) -> History:
    history = History()
    for entry in entries:
        try:
            for name, stored in entry.content["metrics"].items():
                columns = zip(stored["steps"], stored["values"], stored["times"], strict=True)
                last, low, high = (_point(*stored[which]) for which in ("last", "min", "max"))
                curve = Curve(tuple(_point(*row) for row in columns), int(stored["count"]), last, low, high)
                history[name] = _joined(history[name], curve) if name in history else curve
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            if corrupt is None:
                raise no_entry(store, entry.key, error) from None
            corrupt(no_entry(store, entry.key, error))
    return history


def _joined(one: Curve, other: Curve) -> Curve:
    """What two processes have logged under one name."""
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
    """The int of NumPy's and others' types."""
    if isinstance(step, numbers.Integral):
        return int(step)
    item = getattr(step, "item", None)
    try:
        return item() if callable(item) else None
    except Exception:  # an array of several
        return None
