"""Plots of a loop's results, over the iteration and over each parameter that varies."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.report.formats import as_number, number
from torchx_kfp.report.model import StageView
from torchx_kfp.text import counted

#: The size of a plot, and its margins: left, top, right, bottom.
WIDTH, HEIGHT = 460.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 14.0, 14.0, 40.0
#: The largest number of points that are drawn one by one, with titles; more points become one path.
_SINGLE = 300
#: How many results and parameters of a task are drawn.
_MOST_RESULTS, _MOST_PARAMETERS = 8, 5
#: The ratio of the largest number to the smallest from which an axis is logarithmic.
_LOG_FROM = 100.0
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    name: str
    title: str


@dataclass(frozen=True)
class Plot:
    """One result over one quantity. Many points are in the path ``dots`` instead of ``points``; ``line`` joins them."""

    result: str
    over: str
    points: list[Point]
    dots: str
    line: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    note: str


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
            values = [(stage, _result(stage, name)) for stage in iterations]
            found = [(stage, value) for stage, value in values if value is not None]
            if len(found) < 2 or drawn == _MOST_RESULTS:
                continue
            drawn += 1
            figures.append(Figure(path, name, list(_plots(name, found, len(iterations) - len(found)))))
    return figures


def _result(stage: StageView, name: str) -> float | None:
    value = stage.result.measures.get(name)
    return None if isinstance(value, str) else as_number(value)


def _plots(name: str, found: list[tuple[StageView, float]], missing: int) -> Iterable[Plot]:
    swept = swept_parameters([stage for stage, _ in found])
    numbers = list(range(len(found)))
    if all(len(stage.indices) == 1 for stage, _ in found):
        numbers = [stage.indices[0] for stage, _ in found]
    by_index = _plot(name, "iteration", [float(number) for number in numbers], found, missing)
    parameters = [
        _plot(
            name,
            parameter,
            [float(as_number(stage.result.inputs[parameter]) or 0) for stage, _ in found],
            found,
            missing,
        )
        for parameter in swept[:_MOST_PARAMETERS]
    ]
    # If a single parameter varies, its plot comes first.
    yield from [*parameters, by_index] if len(parameters) == 1 else [by_index, *parameters]


def swept_parameters(stages: Sequence[StageView]) -> list[str]:
    """Return the inputs that are numbers in all stages and differ between them."""
    names = list(stages[0].result.inputs) if stages else []
    values = {name: [as_number(stage.result.inputs.get(name)) for stage in stages] for name in names}
    return [name for name in names if None not in values[name] and len(set(values[name])) > 1]


def _plot(result: str, over: str, xs: list[float], found: list[tuple[StageView, float]], missing: int) -> Plot:
    ys = [value for _, value in found]
    # A logarithmic axis makes no sense for iterations.
    x_axis, y_axis = Axis(xs, LEFT, WIDTH - RIGHT, over != "iteration"), Axis(ys, HEIGHT - BOTTOM, TOP)
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(xs, ys, strict=True)]
    points, dots, line = [], "", ""
    if len(found) <= _SINGLE:
        label = "" if over == "iteration" else f", {over} "
        points = [
            Point(px, py, stage.name, f"{stage.name}: {result} {number(y)}{label and label + number(x)}")
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


class Axis:
    """A scale from numbers to pixels: logarithmic if the numbers span a wide range, otherwise linear."""

    def __init__(self, values: Sequence[float], start: float, end: float, may_be_log: bool = True) -> None:
        low, high = min(values), max(values)
        # Whole numbers get no ticks between them.
        self.whole = all(float(value).is_integer() for value in values)
        self.log = may_be_log and low > 1e-300 and high / low >= _LOG_FROM
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

    def ticks(self) -> list[tuple[float, str]]:
        if self.log:
            powers = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            every = math.ceil(len(powers) / 6) or 1
            return [(self._pixel(power), f"{10.0**power:g}") for power in powers[::every]]
        rough = self.high / 5 - self.low / 5
        if not 1e-300 < rough < 1e300:
            return [(self.place(value), f"{value:.3g}") for value in (self.low, self.high)]
        step = _nice_step(max(rough, 1.0) if self.whole else rough)
        first = math.ceil(self.low / step)
        values = [(first + count) * step for count in range(12)]
        return [(self.place(value), _tick(value, step)) for value in values if value <= self.high]


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _tick(value: float, step: float) -> str:
    if value and (abs(value) >= 1e6 or abs(step) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"
