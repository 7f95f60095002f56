"""Draw figures: results of rows, metrics over steps, and ROC curves, all as strokes between two axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from torchx_kfp.common.text import counted, shorten
from torchx_kfp.execution.report.model import Row, as_number, text
from torchx_kfp.tracking.record_tracker import Curve

#: The size of a figure, and its margins: left, top, right, bottom.
WIDTH, HEIGHT = 460.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 14.0, 14.0, 40.0
#: The most points with titles and links; more points become one path.
_MOST_TITLES = 200
#: The most figures of a table for results and for metrics, and the most inputs over which each is drawn.
_MOST_RESULTS, _MOST_METRICS, _MOST_INPUTS = 8, 12, 8
#: The most curves of a figure with colors and names.
_MOST_COLORS = 8
#: The most points of a curve and of a figure, and the fewest to which a curve is thinned.
_POINTS, _ALL_POINTS, _FEWEST = 200, 8000, 24
#: The least ratio of the largest number to the smallest for a logarithmic axis.
_LOG_FROM = 100.0
_LARGEST = sys.float_info.max
#: The most labels of values that are not numbers, and their most characters.
_MOST_LABELS, _LABEL = 12, 14
_NO_ITEMS: Mapping[int, Any] = {}

#: The position of each tick in pixels, and its label.
Ticks = Sequence[tuple[float, str]]
Points = Sequence[tuple[Any, float]]
#: Rows with their values on both axes.
Placed = Sequence[tuple[Row, Any, float]]


@dataclass(frozen=True)
class Stroke:
    """A line through points, or a single point. ``kind`` are CSS classes, ``name`` is for the legend.

    A point has a value on each axis; ``path`` has the pixels.
    """

    kind: str
    points: Points
    title: str = ""
    href: str = ""
    name: str = ""
    value: str = ""
    path: str = ""


@dataclass(frozen=True)
class Figure:
    """Strokes of one quantity over another. ``others`` plot it over other quantities."""

    what: str
    over: str
    strokes: Sequence[Stroke]
    x_ticks: Ticks
    y_ticks: Ticks
    note: str
    others: Sequence[Figure] = ()


class Axis:
    """A scale from values to pixels. Values that are not all numbers are evenly spaced.

    Args:
        values: the values, at least one.
        start: the pixel near the smallest number.
        end: the pixel near the largest number.
        log: allow a logarithmic scale, for positive numbers over a wide range.
    """

    def __init__(self, values: Iterable[Any], start: float, end: float, log: bool = True) -> None:
        values = list(values)
        numbers = [found for value in values if (found := as_number(value)) is not None]
        self.names = list(dict.fromkeys(map(text, values))) if len(numbers) < len(values) else []
        numbers = [-0.5, len(self.names) - 0.5] if self.names else numbers
        low, high = min(numbers), max(numbers)
        self.whole = all(value.is_integer() for value in numbers)
        self.log = log and low > 1e-300 and high / low >= _LOG_FROM
        if self.log:
            low, high = math.log10(low), math.log10(high)
        # Leave room around the outermost points. Halve first: the difference of two large numbers may overflow.
        room = 0.0 if self.names else 2 * (high / 2 - low / 2) * 0.04 or abs(high) * 0.1 or 1.0
        self.low, self.high = max(low - room, -_LARGEST), min(high + room, _LARGEST)
        self.start, self.end = start, end

    def place(self, value: Any) -> float:
        """Return the pixel of one of the values."""
        if self.names:
            return self._pixel(self.names.index(text(value)))
        number = as_number(value) or 0.0
        return self._pixel(math.log10(number) if self.log else number)

    def _pixel(self, value: float) -> float:
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> Ticks:
        """Return the labels of the axis and their pixels."""
        if self.names:
            every = math.ceil(len(self.names) / _MOST_LABELS)
            return [(self.place(name), shorten(name, _LABEL, keep="ends")) for name in self.names[::every]]
        if self.log:
            # Larger powers of ten, in the room above the largest number, overflow.
            powers = range(math.ceil(self.low - 1e-9), math.floor(min(self.high, 308.0) + 1e-9) + 1)
            every = math.ceil(len(powers) / 6)
            return [(self._pixel(power), f"{10.0**power:g}") for power in powers[::every]]
        rough = self.high / 5 - self.low / 5
        if not 1e-300 < rough < 1e300:
            return [(self.place(value), f"{value:.3g}") for value in (self.low, self.high)]
        rough = max(rough, 1.0) if self.whole else rough
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step)
        values = [(first + count) * step for count in range(12)]
        return [(self.place(value), _tick(value, step)) for value in values if value <= self.high]


def _tick(value: float, step: float) -> str:
    if value and (abs(value) >= 1e6 or abs(step) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"


def draw_results(
    rows: Sequence[Row],
    names: Iterable[str],
    over: str,
    better: Mapping[str, Callable[[float, float], float]],
    items: Mapping[int, Any] = _NO_ITEMS,
) -> list[Figure]:
    """Draw each result of the rows over their items or numbers, and over each varying input.

    Args:
        names: the results; those with fewer than two numbers, and those that repeat an input, are omitted.
        over: the name of a row: "iteration" or "trial".
        better: a function for each objective of a search that returns the better value; a line shows the best so far.
        items: the known items of a loop, by row number.
    """
    has_items = all(row.number in items for row in rows)
    figures = []
    for name in names:
        measured = [(row, value) for row in rows if (value := _measured(row, name)) is not None]
        if len(measured) < 2 or _repeats_an_input(measured):
            continue
        low, high = min(measured, key=lambda pair: pair[1]), max(measured, key=lambda pair: pair[1])
        note = f"min {text(low[1])} ({low[0].title}) · max {text(high[1])} ({high[0].title})"
        if len(measured) < len(rows):
            note += f" · {counted(len(rows) - len(measured), over)} without a finite number"
        numbered = [(row, row.number, value) for row, value in measured]
        line: Points = ()
        if name in better:
            best = accumulate((value for _, value in measured), better[name])
            line = _stairs([(row.number, value) for (row, _), value in zip(measured, best, strict=True)])
        swept = list(_swept(measured))
        if has_items:
            numbered = [(row, items[int(row.number)], value) for row, value in measured]
            swept = [(it, those) for it, those in swept if [x for _, x, _ in those] != [x for _, x, _ in numbered]]
            first = _over(name, "item", numbered, note)
        else:
            first = _over(name, over, numbered, note, line, is_count=True)
        others = [_over(name, it, those, note) for it, those in swept]
        # If a single input varies, its plot comes first.
        drawn = [*others, first] if len(others) == 1 and not (line or has_items) else [first, *others]
        figures.append(replace(drawn[0], others=drawn[1 : 1 + _MOST_INPUTS]))
    return figures[:_MOST_RESULTS]


def draw_front(rows: Sequence[Row], signs: Mapping[str, int]) -> list[Figure]:
    """Draw one of two objectives over the other, with the Pareto front. ``signs`` turn objectives into costs."""
    if len(signs) != 2:
        return []
    over, what = signs
    points = [
        (row, x, y)
        for row in rows
        if (x := _measured(row, over)) is not None and (y := _measured(row, what)) is not None
    ]
    if not points:
        return []
    front = sorted(((x, y) for row, x, y in points if row.is_best), key=lambda place: signs[over] * place[0])
    note = f"{counted(len(front), 'trial')} on the Pareto front, of {len(points):,}"
    return [_over(what, over, points, note, _stairs(front))]


def _stairs(points: Points) -> Points:
    """Return a line that reaches each point first horizontally, then vertically."""
    return [*(corner for at, to in pairwise(points) for corner in (at, (to[0], at[1]))), *points[-1:]]


def _measured(row: Row, name: str) -> float | None:
    value = row.results.get(name)
    return None if isinstance(value, str) else as_number(value)


def _repeats_an_input(found: Sequence[tuple[Row, float]]) -> bool:
    """Return whether the results equal an input, which is the axis of other plots."""
    return any(all(as_number(row.inputs.get(name)) == value for row, value in found) for name in found[0][0].inputs)


def _swept(found: Sequence[tuple[Row, float]]) -> Iterator[tuple[str, Placed]]:
    """Yield the inputs over which results are drawn, with the points: numbers, or texts that repeat."""
    for name in dict.fromkeys(name for row, _ in found for name in row.inputs):
        points = [(row, row.inputs[name], value) for row, value in found if name in row.inputs]
        values = {text(x) for _, x, _ in points}
        are_numbers = all(as_number(x) is not None for _, x, _ in points)
        if len(values) > 1 and (are_numbers or len(values) < len(points)):
            yield name, points


def _over(what: str, over: str, found: Placed, note: str, line: Points = (), *, is_count: bool = False) -> Figure:
    """Draw a line, and a point for each row, the best ones on top; with ``is_count``, over row numbers."""
    strokes = [Stroke("line", line)] if line else []
    for row, x, y in sorted(found, key=lambda it: it[0].is_best):
        where = "" if is_count else f", {over} {shorten(text(x), 40)}"
        title = f"{row.title}: {what} {text(y)}{where}"
        strokes.append(Stroke("dot best" if row.is_best else "dot", [(x, y)], title, row.link.href))
    return _drawn(what, over, strokes, note, log=not is_count)


def _drawn(what: str, over: str, strokes: Sequence[Stroke], note: str, *, log: bool = False) -> Figure:
    """Return the figure of these strokes; ``log`` allows a logarithmic horizontal axis."""
    points = [(x, y) for stroke in strokes for x, y in stroke.points if math.isfinite(y)]
    x_axis = Axis((x for x, _ in points), LEFT, WIDTH - RIGHT, log=log)
    y_axis = Axis((y for _, y in points), HEIGHT - BOTTOM, TOP)
    lines = sum(len(stroke.points) > 1 for stroke in strokes)
    most = max(_FEWEST, min(_POINTS, _ALL_POINTS // max(1, lines)))
    drawn = [replace(it, path=_path(thinned(it.points, most), x_axis, y_axis)) for it in strokes]
    many = [stroke for stroke in drawn if stroke.kind == "dot"]
    if len(many) > _MOST_TITLES:
        dots = Stroke("dots", (), path="".join(stroke.path for stroke in many))
        drawn = [dots, *(stroke for stroke in drawn if stroke.kind != "dot")]
    return Figure(what, over, drawn, x_axis.ticks(), y_axis.ticks(), note)


def draw_curves(curves: Iterable[tuple[Row, str, Curve]], path: str) -> list[Figure]:
    """Draw a figure for each metric of these rows, in the order of their first values."""
    metrics: dict[str, list[tuple[Row, Curve]]] = {}
    for row, name, curve in curves:
        if any(math.isfinite(point.value) for point in curve.points):
            metrics.setdefault(name, []).append((row, curve))
    figures = [_metric(name, those) for name, those in list(metrics.items())[:_MOST_METRICS]]
    if hidden := len(metrics) - len(figures):
        note = f"{figures[-1].note} · {counted(hidden, 'more metric')} of {path} not drawn"
        figures[-1] = replace(figures[-1], note=note)
    return figures


def _metric(name: str, curves: Sequence[tuple[Row, Curve]]) -> Figure:
    strokes = []
    for color, (row, curve) in enumerate(sorted(curves, key=lambda pair: pair[0].is_best)):
        few = len(curves) <= _MOST_COLORS
        kind = f"curve c{color}" if few else f"curve one{' best' if row.is_best else ''}"
        legend = (row.title, text(curve.last.value)) if few and len(curves) > 1 else ("", "")
        points = [(point.step, point.value) for point in curve.points]
        strokes.append(Stroke(kind, points, f"{row.title}: {_ends(curve)}", row.link.href, *legend))
    if len(curves) == 1:
        return _drawn(name, "step", strokes, _ends(curves[0][1]))
    finite = [(row, point) for row, curve in curves for point in curve.points if math.isfinite(point.value)]
    ends = {which: end(finite, key=lambda pair: pair[1].value) for which, end in (("min", min), ("max", max))}
    note = " · ".join(
        f"{which} {text(point.value)} ({row.title}, step {point.step:,})" for which, (row, point) in ends.items()
    )
    more = f" · {counted(len(curves), 'curve')}" if len(curves) > _MOST_COLORS else ""
    return _drawn(name, "step", strokes, note + more)


def _ends(curve: Curve) -> str:
    return (
        f"last {text(curve.last.value)} at step {curve.last.step:,} · min {text(curve.min.value)} at "
        f"{curve.min.step:,} · max {text(curve.max.value)} at {curve.max.step:,}"
    )


def draw_roc(metrics: Any) -> Figure | None:
    """Draw KFP's ``confidenceMetrics`` as a curve; return None if the value is malformed."""
    try:
        points = sorted((float(it["falsePositiveRate"]), float(it["recall"])) for it in metrics)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if len(points) < 2 or not all(0 <= x <= 1 and 0 <= y <= 1 for x, y in points):
        return None
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))
    note = f"area under the curve {area:.4f}" if points[0][0] == 0 and points[-1][0] == 1 else ""
    return _drawn("recall", "false positive rate", [Stroke("line", [(0, 0), (1, 1)]), Stroke("curve", points)], note)


def thinned(points: Points, most: int) -> Points:
    """Return about ``most`` points or fewer: the smallest and the largest of each part, so that peaks are kept."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[Any, float]] = []
    for start in range(0, len(points), size):
        part = [point for point in points[start : start + size] if math.isfinite(point[1])] or [points[start]]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept


def _path(points: Points, x_axis: Axis, y_axis: Axis) -> str:
    """Draw a line through the points, with gaps at infinite values and NaN. A single point becomes a dot."""
    runs: list[list[str]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append(f"{x_axis.place(x)} {y_axis.place(y)}")
        elif runs[-1]:
            runs.append([])
    return "".join(f"M{'L'.join(run)}{'h0' if len(run) == 1 else ''}" for run in runs if run)
