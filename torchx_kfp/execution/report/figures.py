"""Draw figures: results of rows, metrics over steps, and ROC curves, all as strokes between two axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from torchx_kfp.common.text import counted, shorten
from torchx_kfp.execution.report.formats import as_number, number, text
from torchx_kfp.execution.report.model import Row
from torchx_kfp.tracking.recorder import Curve

#: The size of a figure, and its margins: left, top, right, bottom.
WIDTH, HEIGHT = 460.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 14.0, 14.0, 40.0
#: How many points have a title and a link each; more of them become one path. How many a line joins.
_MOST_TITLES, _MOST_JOINED = 200, 60
#: How many figures a table has for its results, and for the metrics of its rows, and over how many inputs each is.
_MOST_RESULTS, _MOST_METRICS, _MOST_INPUTS = 8, 12, 8
#: How many curves of a figure have a color and a name.
_MOST_COLORS = 8
#: The most points of a curve, the most points of a figure, and the least to which a curve is thinned.
_POINTS, _ALL_POINTS, _FEWEST = 200, 8000, 24
#: The ratio of the largest number to the smallest from which an axis is logarithmic.
_LOG_FROM = 100.0
_LARGEST = sys.float_info.max
#: How many values that are not numbers have a label, and how long that is at most.
_MOST_LABELS, _LABEL = 12, 14

#: The position of each tick in pixels, and its label.
Ticks = Sequence[tuple[float, str]]
#: Rows, each with a value on the horizontal axis and one on the vertical axis.
Points = Sequence[tuple[Row, Any, float]]


@dataclass(frozen=True)
class Stroke:
    """A path; a point is a path without length. ``kind`` are classes of its style, ``name`` is for the legend."""

    kind: str
    path: str
    title: str = ""
    href: str = ""
    name: str = ""
    value: str = ""


@dataclass(frozen=True)
class Figure:
    """Strokes of one quantity over another. ``others`` have the same quantity over others."""

    what: str
    over: str
    strokes: Sequence[Stroke]
    x_ticks: Ticks
    y_ticks: Ticks
    note: str
    others: Sequence[Figure] = ()


class Axis:
    """A scale from values to pixels. If not all of the values are numbers, each has a step of the same length.

    Args:
        values: the values, at least one.
        start: the pixel near which the smallest number is.
        end: the pixel near which the largest one is.
        log: whether it may be logarithmic: it is if the numbers are positive and span a wide range.
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
        # Leave some room around the outermost points. Halve first: the difference of two large numbers may overflow.
        room = 0.0 if self.names else 2 * (high / 2 - low / 2) * 0.04 or abs(high) * 0.1 or 1.0
        self.low, self.high = max(low - room, -_LARGEST), min(high + room, _LARGEST)
        self.start, self.end = start, end

    def place(self, value: Any) -> float:
        """Return the pixel of one of the values."""
        if self.names:
            return self._pixel(self.names.index(text(value)))
        found = as_number(value) or 0.0
        return self._pixel(math.log10(found) if self.log else found)

    def _pixel(self, value: float) -> float:
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> Ticks:
        """Return places at which the axis is labeled."""
        if self.names:
            every = math.ceil(len(self.names) / _MOST_LABELS)
            return [(self.place(name), shorten(name, _LABEL, keep="ends")) for name in self.names[::every]]
        if self.log:
            # Larger powers of ten, in the room above the largest number, are not floats.
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
    rows: Sequence[Row], names: Iterable[str], over: str, better: Mapping[str, Callable[[float, float], float]]
) -> list[Figure]:
    """Draw each result of the rows: over their numbers, and over each input that varies.

    Args:
        rows: the rows, in the order of their numbers.
        names: the results; those with fewer than two numbers, and those that repeat an input, are left out.
        over: what the rows are.
        better: for objectives of a search, which of two values is the better one: a line shows the best so far.
    """
    figures = []
    for name in names:
        found = [(row, value) for row in rows if (value := _measured(row, name)) is not None]
        if len(found) < 2 or _repeats_an_input(found):
            continue
        low, high = min(found, key=lambda pair: pair[1]), max(found, key=lambda pair: pair[1])
        note = f"min {number(low[1])} ({low[0].title}) · max {number(high[1])} ({high[0].title})"
        if len(found) < len(rows):
            note += f" · {counted(len(rows) - len(found), over)} without a finite number"
        points = [(row, row.number, value) for row, value in found]
        stairs = None
        if name in better:
            best = accumulate((value for _, value in found), better[name])
            stairs = [(row.number, value) for (row, _), value in zip(found, best, strict=True)]
        first = _plot(name, over, points, note, stairs, log=False)
        others = [_plot(name, it, those, note) for it, those in _swept(found)][:_MOST_INPUTS]
        # If a single input of a loop varies, its plot comes first.
        drawn = [*others, first] if len(others) == 1 and not stairs else [first, *others]
        figures.append(replace(drawn[0], others=drawn[1:]))
    return figures[:_MOST_RESULTS]


def draw_front(rows: Sequence[Row], signs: Mapping[str, int]) -> list[Figure]:
    """Draw the first two of several objectives, one over the other, with the Pareto front if there are two.

    ``signs`` has the factor that turns values of an objective into costs.
    """
    over, what, *others = [*signs, "", ""]
    points = [
        (row, x, y)
        for row in rows
        if (x := _measured(row, over)) is not None and (y := _measured(row, what)) is not None
    ]
    if not points:
        return []
    front = sorted(((x, y) for row, x, y in points if row.is_best), key=lambda place: signs[over] * place[0])
    note = f"{counted(len(front), 'trial')} on the Pareto front, of {len(points):,}"
    return [_plot(what, over, points, note, [] if any(others) else front)]


def _measured(row: Row, name: str) -> float | None:
    value = row.results.get(name)
    return None if isinstance(value, str) else as_number(value)


def _repeats_an_input(found: Sequence[tuple[Row, float]]) -> bool:
    """Return whether the stages recorded the values of one of their inputs, which is the axis of other plots."""
    return any(all(as_number(row.inputs.get(name)) == value for row, value in found) for name in found[0][0].inputs)


def _swept(found: Sequence[tuple[Row, float]]) -> Iterator[tuple[str, Points]]:
    """Yield the inputs over which results are drawn, and the points: inputs are numbers, or texts that repeat."""
    for name in dict.fromkeys(name for row, _ in found for name in row.inputs):
        points = [(row, row.inputs[name], value) for row, value in found if name in row.inputs]
        values = {text(x) for _, x, _ in points}
        are_numbers = all(as_number(x) is not None for _, x, _ in points)
        if len(values) > 1 and (are_numbers or len(values) < len(points)):
            yield name, points


def _plot(
    what: str,
    over: str,
    points: Points,
    note: str,
    stairs: Sequence[tuple[float, float]] | None = None,
    *,
    log: bool = True,
) -> Figure:
    """Draw the points, the best ones on top, and a line: the stairs, or by default one that joins them if they are few.

    ``log`` is whether the horizontal axis may be logarithmic; it is not for the numbers of rows.
    """
    x_axis = Axis((x for _, x, _ in points), LEFT, WIDTH - RIGHT, log=log)
    y_axis = Axis((y for *_, y in points), HEIGHT - BOTTOM, TOP)
    places = [(x_axis.place(x), y_axis.place(y)) for _, x, y in points]
    strokes = []
    if stairs:
        line = _steps([(x_axis.place(x), y_axis.place(y)) for x, y in stairs])
        strokes.append(Stroke("line", line))
    elif stairs is None and not x_axis.names and len({x for x, _ in places}) == len(places) <= _MOST_JOINED:
        strokes.append(Stroke("line", "M" + "L".join(f"{x} {y}" for x, y in sorted(places))))
    dots = ""
    for (row, value, y), place in sorted(zip(points, places, strict=True), key=lambda pair: pair[0][0].is_best):
        path = f"M{place[0]} {place[1]}h0"
        if len(points) > _MOST_TITLES and not row.is_best:
            dots += path
            continue
        title = f"{row.title}: {what} {number(y)}" + (f", {over} {shorten(text(value), 40)}" if log else "")
        strokes.append(Stroke("dot best" if row.is_best else "dot", path, title, row.link.href))
    if dots:
        strokes.insert(0, Stroke("dots", dots))
    return Figure(what, over, strokes, x_axis.ticks(), y_axis.ticks(), note)


def _steps(places: Sequence[tuple[float, float]]) -> str:
    """Return a path that goes to each point first horizontally and then vertically."""
    return "".join(f"H{x}V{y}" if index else f"M{x} {y}" for index, (x, y) in enumerate(places))


def draw_curves(curves: Iterable[tuple[Row, str, Curve]], path: str) -> list[Figure]:
    """Draw a figure for each metric of these rows, in the order in which the metrics were first logged."""
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
    finite = [(row, point) for row, curve in curves for point in curve.points if math.isfinite(point.value)]
    x_axis = Axis((point.step for _, point in finite), LEFT, WIDTH - RIGHT, log=False)
    y_axis = Axis((point.value for _, point in finite), HEIGHT - BOTTOM, TOP)
    most = max(_FEWEST, min(_POINTS, _ALL_POINTS // len(curves)))
    strokes = []
    for color, (row, curve) in enumerate(sorted(curves, key=lambda pair: pair[0].is_best)):
        few = len(curves) <= _MOST_COLORS
        kind = f"curve c{color}" if few else f"curve one{' best' if row.is_best else ''}"
        path = _line(thinned([(point.step, point.value) for point in curve.points], most), x_axis, y_axis)
        legend = (row.title, number(curve.last.value)) if few and len(curves) > 1 else ("", "")
        strokes.append(Stroke(kind, path, f"{row.title}: {_ends(curve)}", row.link.href, *legend))
    if len(curves) == 1:
        note = _ends(curves[0][1])
    else:
        ends = {name: end(finite, key=lambda pair: pair[1].value) for name, end in (("min", min), ("max", max))}
        note = " · ".join(
            f"{name} {number(point.value)} ({row.title}, step {point.step:,})" for name, (row, point) in ends.items()
        )
        note += f" · {counted(len(curves), 'curve')}" if len(curves) > _MOST_COLORS else ""
    return Figure(name, "step", strokes, x_axis.ticks(), y_axis.ticks(), note)


def _ends(curve: Curve) -> str:
    return (
        f"last {number(curve.last.value)} at step {curve.last.step:,} · min {number(curve.min.value)} at "
        f"{curve.min.step:,} · max {number(curve.max.value)} at {curve.max.step:,}"
    )


def draw_roc(metrics: Any) -> Figure | None:
    """Draw KFP's ``confidenceMetrics`` as a curve; return None if the value is not one."""
    try:
        points = sorted((float(it["falsePositiveRate"]), float(it["recall"])) for it in metrics)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if len(points) < 2 or not all(0 <= x <= 1 and 0 <= y <= 1 for x, y in points):
        return None
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))
    note = f"area under the curve {area:.4f}" if points[0][0] == 0 and points[-1][0] == 1 else ""
    x_axis, y_axis = Axis((0, 1), LEFT, WIDTH - RIGHT), Axis((0, 1), HEIGHT - BOTTOM, TOP)
    strokes = [
        Stroke("line", _line([(0, 0), (1, 1)], x_axis, y_axis)),
        Stroke("curve", _line(thinned(points, _POINTS), x_axis, y_axis), note),
    ]
    return Figure("recall", "false positive rate", strokes, x_axis.ticks(), y_axis.ticks(), note)


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most about ``most`` points: the smallest and the largest of each part, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = [point for point in points[start : start + size] if math.isfinite(point[1])] or [points[start]]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return kept


def _line(points: Iterable[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> str:
    """Draw a line through the points, with gaps at values that are not finite. A single point becomes a dot."""
    runs: list[list[str]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append(f"{x_axis.place(x)} {y_axis.place(y)}")
        elif runs[-1]:
            runs.append([])
    return "".join(f"M{'L'.join(run)}{'h0' if len(run) == 1 else ''}" for run in runs if run)
