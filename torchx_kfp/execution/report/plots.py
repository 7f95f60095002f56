"""Axes, plots of a loop's results over the iteration and over each parameter, and charts of metrics over steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchx_kfp.common.text import counted, shorten
from torchx_kfp.execution.report.formats import as_number, number, text
from torchx_kfp.execution.report.model import StageView, Tracked
from torchx_kfp.tracking.recorder import Curve, Point

#: The position of each tick in pixels, and its label.
Ticks = list[tuple[float, str]]

#: The ratio of the largest number to the smallest from which an axis is logarithmic.
_LOG_FROM = 100.0
_LARGEST = sys.float_info.max
#: How many values of a choice have a label, and how long that is at most.
_MOST_LABELS, _LABEL = 12, 14


class Axis:
    """A scale from numbers to pixels.

    Args:
        values: the numbers.
        start: the pixel near which the smallest number is.
        end: the pixel near which the largest one is.
        log: whether it is logarithmic, if there are only positive numbers. Default: if they span a wide range.
        whole: whether there are no ticks between whole numbers. Default: if all numbers are whole.
    """

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool | None = None, whole: bool | None = None
    ) -> None:
        low, high = min(values), max(values)
        self.whole = all(float(value).is_integer() for value in values) if whole is None else whole
        self.log = low > 1e-300 and (high / low >= _LOG_FROM if log is None else log)
        if self.log:
            low, high = math.log10(low), math.log10(high)
        # Leave some room around the outermost points. Halve first: the difference of two large numbers may overflow.
        room = 2 * (high / 2 - low / 2) * 0.04 or abs(high) * 0.1 or 1.0
        self.low, self.high = max(low - room, -_LARGEST), min(high + room, _LARGEST)
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        return self._pixel(math.log10(value) if self.log else value)

    def _pixel(self, value: float) -> float:
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> Ticks:
        if self.log:
            # Larger powers of ten, in the room above the largest number, are not floats.
            powers = range(math.ceil(self.low - 1e-9), math.floor(min(self.high, 308.0) + 1e-9) + 1)
            if len(powers) < 2:
                return [(self.place(value), f"{value:.3g}") for value in self._within_a_decade()]
            every = math.ceil(len(powers) / 6) or 1
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

    def _within_a_decade(self) -> list[float]:
        first = math.floor(self.low)
        values = [float(f"{factor}e{power}") for power in (first, first + 1) for factor in (1, 2, 5)]
        found = [value for value in values if self.low <= math.log10(value) <= self.high]
        return found if len(found) > 1 else [10**self.low, 10**self.high]


class Steps:
    """A scale from the values of a choice to pixels: one step for each value."""

    def __init__(self, values: Iterable[Any], start: float, end: float) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(map(text, values)))}
        self._start, self._step = start, (end - start) / max(1, len(self._numbers))

    def place(self, value: Any) -> float:
        return round(self._start + self._step * (self._numbers[text(value)] + 0.5), 1)

    def ticks(self) -> Ticks:
        every = math.ceil(len(self._numbers) / _MOST_LABELS) or 1
        return [(self.place(name), shorten(name, _LABEL, keep="ends")) for name in list(self._numbers)[::every]]


def _tick(value: float, step: float) -> str:
    if value and (abs(value) >= 1e6 or abs(step) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"


#: The size of a plot, and its margins: left, top, right, bottom.
WIDTH, HEIGHT = 460.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 14.0, 14.0, 40.0
#: The largest number of points that are drawn one by one, with titles; more points become one path.
MOST_SINGLE = 300
#: How many results and parameters of a task are drawn.
_MOST_RESULTS, _MOST_PARAMETERS = 8, 5


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    name: str
    title: str


@dataclass(frozen=True)
class Plot:
    """One quantity over another. Many points are in the path ``dots`` instead of ``points``.

    ``line`` joins the points. For trials of a search, it is the best so far, or the Pareto front, and ``borders`` are
    the places between rounds.
    """

    what: str
    over: str
    points: Sequence[Any]
    dots: str
    line: str
    x_ticks: Ticks
    y_ticks: Ticks
    note: str
    borders: Sequence[float] = ()


@dataclass(frozen=True)
class Figure:
    """The plots of one result of a task, one for each quantity; the page shows the first one."""

    path: str
    result: str
    plots: list[Plot]


def draw_plots(stages: Iterable[StageView]) -> list[Figure]:
    """Draw the figures of all loops whose iterations have recorded numbers."""
    loops: dict[str, list[StageView]] = {}
    for stage in stages:
        if stage.indices and stage.result.measures:
            loops.setdefault(stage.path, []).append(stage)
    figures = []
    for path, iterations in loops.items():
        names = dict.fromkeys(name for stage in iterations for name in stage.result.measures)
        drawn = 0
        for name in names:
            values = [(stage, stage.result.measures.get(name)) for stage in iterations]
            numbers = [(stage, None if isinstance(value, str) else as_number(value)) for stage, value in values]
            found = [(stage, value) for stage, value in numbers if value is not None]
            if len(found) < 2 or drawn == _MOST_RESULTS or _is_parameter(found):
                continue
            drawn += 1
            figures.append(Figure(path, name, _plots(name, found, len(iterations) - len(found))))
    return figures


def _is_parameter(found: list[tuple[StageView, float]]) -> bool:
    """Return whether the stages recorded the values of one of their parameters, which is the axis of other plots."""
    inputs = [stage.result.inputs for stage, _ in found]
    values = [value for _, value in found]
    return any([as_number(its.get(name)) for its in inputs] == values for name in inputs[0])


def _plots(name: str, found: list[tuple[StageView, float]], missing: int) -> list[Plot]:
    numbers = [float(number) for number in range(len(found))]
    if all(len(stage.indices) == 1 for stage, _ in found):
        numbers = [float(stage.indices[0]) for stage, _ in found]
    by_index = _plot(name, "iteration", numbers, found, missing)
    parameters: list[Plot] = []
    for parameter in found[0][0].result.inputs:
        values = [as_number(stage.result.inputs.get(parameter)) for stage, _ in found]
        xs = [value for value in values if value is not None]
        if len(xs) == len(values) and len(set(xs)) > 1 and len(parameters) < _MOST_PARAMETERS:
            parameters.append(_plot(name, parameter, xs, found, missing))
    # If a single parameter varies, its plot comes first.
    return [*parameters, by_index] if len(parameters) == 1 else [by_index, *parameters]


def _plot(result: str, over: str, xs: list[float], found: Sequence[tuple[StageView, float]], missing: int) -> Plot:
    ys = [value for _, value in found]
    # A logarithmic axis makes no sense for iterations.
    is_count = over == "iteration"
    x_axis = Axis(xs, LEFT, WIDTH - RIGHT, log=False if is_count else None)
    y_axis = Axis(ys, HEIGHT - BOTTOM, TOP)
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(xs, ys, strict=True)]
    points, dots, line = [], "", ""
    if len(found) <= MOST_SINGLE:
        label = "" if is_count else f", {over} "
        points = [
            Dot(px, py, stage.name, f"{stage.name}: {result} {number(y)}{label and label + number(x)}")
            for (px, py), (stage, y), x in zip(places, found, xs, strict=True)
        ]
    else:
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    if len(set(xs)) == len(xs) and len(xs) <= 60:
        line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in sorted(places))
    low, high = min(found, key=lambda item: item[1]), max(found, key=lambda item: item[1])
    note = f"min {low[1]:.4g} ({low[0].name}) · max {high[1]:.4g} ({high[0].name})"
    if missing:
        note += f" · {counted(missing, 'iteration')} without a finite number"
    return Plot(result, over, points, dots, line, x_axis.ticks(), y_axis.ticks(), note)


#: How many metrics of a task are drawn, and how many curves of a chart have a color and a name.
MOST_METRICS, MOST_COLOURS = 12, 8
#: The most points of a curve, the most points of a chart, and the least to which a curve is thinned.
_POINTS, _ALL_POINTS, _FEWEST = 200, 8000, 24


@dataclass(frozen=True)
class Line:
    """A curve as a path; ``colour`` is a number, or None if there are too many curves for colors."""

    stage: str
    label: str
    path: str
    title: str
    colour: int | None


@dataclass(frozen=True)
class Chart:
    """A metric of a task, with a line for each iteration. ``hidden`` counts the task's metrics that are not drawn."""

    path: str
    metric: str
    lines: list[Line]
    x_ticks: Ticks
    y_ticks: Ticks
    note: str
    hidden: int = 0


def draw_charts(stages: Iterable[StageView], tracked: Tracked, together: str | None = None) -> list[Chart]:
    """Draw a chart for each metric of each task, in the order in which the metrics were first logged.

    ``together`` is the path under which all stages share their charts, if they do.
    """
    tasks: dict[str, dict[str, list[tuple[StageView, Curve]]]] = {}
    for stage in stages:
        for metric, curve in tracked.history(stage).items():
            tasks.setdefault(stage.path if together is None else together, {}).setdefault(metric, []).append(
                (stage, curve)
            )
    charts = []
    for path, metrics in tasks.items():
        drawn = [chart for metric, curves in metrics.items() if (chart := _chart(path, metric, curves)) is not None]
        charts += drawn[:MOST_METRICS]
        if drawn[MOST_METRICS:]:
            charts[-1] = replace(charts[-1], hidden=len(drawn) - MOST_METRICS)
    return charts


def _chart(path: str, metric: str, curves: list[tuple[StageView, Curve]]) -> Chart | None:
    finite = [point for _, curve in curves for point in curve.points if math.isfinite(point.value)]
    if not finite:
        return None
    x_axis = Axis([float(point.step) for point in finite], LEFT, WIDTH - RIGHT, log=False)
    y_axis = Axis([point.value for point in finite], HEIGHT - BOTTOM, TOP)
    most = max(_FEWEST, min(_POINTS, _ALL_POINTS // len(curves)))
    lines = [
        Line(
            stage.name,
            number(curve.last.value),
            _path(_thinned(curve.points, most), x_axis, y_axis),
            f"{stage.name}: {_ends(curve)}",
            colour if len(curves) <= MOST_COLOURS else None,
        )
        for colour, (stage, curve) in enumerate(curves)
    ]
    return Chart(path, metric, lines, x_axis.ticks(), y_axis.ticks(), _note(curves))


def _note(curves: list[tuple[StageView, Curve]]) -> str:
    if len(curves) == 1:
        return _ends(curves[0][1])
    lowest = min(curves, key=lambda item: _number(item[1].min.value, math.inf))
    highest = max(curves, key=lambda item: _number(item[1].max.value, -math.inf))
    return (
        f"min {number(lowest[1].min.value)} ({lowest[0].name}, step {lowest[1].min.step:,}) · "
        f"max {number(highest[1].max.value)} ({highest[0].name}, step {highest[1].max.step:,})"
    )


def _ends(curve: Curve) -> str:
    return (
        f"last {number(curve.last.value)} at step {curve.last.step:,} · min {number(curve.min.value)} at "
        f"{curve.min.step:,} · max {number(curve.max.value)} at {curve.max.step:,}"
    )


def _number(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most about ``most`` points: the smallest and the largest of each part, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = [point for point in points[start : start + size] if math.isfinite(point.value)] or [points[start]]
        ends = {min(part, key=lambda point: point.value), max(part, key=lambda point: point.value)}
        kept += sorted(ends, key=lambda point: (point.step, point.time))
    return kept


def _path(points: Iterable[Point], x_axis: Axis, y_axis: Axis) -> str:
    """Draw a line through the points, with gaps at values that are not finite. A single point becomes a dot."""
    parts: list[str] = []
    runs: list[list[str]] = [[]]
    for point in points:
        if math.isfinite(point.value):
            runs[-1].append(f"{x_axis.place(float(point.step))} {y_axis.place(point.value)}")
        elif runs[-1]:
            runs.append([])
    for run in runs:
        if run:
            parts.append("M" + ("L".join(run) if len(run) > 1 else f"{run[0]}h0"))
    return "".join(parts)
