"""Plots of a loop's results, over the iteration and over each parameter that varies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.report.axes import Axis, Ticks
from torchx_kfp.report.formats import as_number, number
from torchx_kfp.report.model import StageView
from torchx_kfp.text import counted

#: The size of a plot, and its margins: left, top, right, bottom.
WIDTH, HEIGHT = 460.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 58.0, 14.0, 14.0, 40.0
#: The largest number of points that are drawn one by one, with titles; more points become one path.
MOST_SINGLE = 300
#: How many results and parameters of a task are drawn.
_MOST_RESULTS, _MOST_PARAMETERS = 8, 5


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
    x_ticks: Ticks
    y_ticks: Ticks
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
            if len(found) < 2 or drawn == _MOST_RESULTS or _is_parameter(found):
                continue
            drawn += 1
            figures.append(Figure(path, name, list(_plots(name, found, len(iterations) - len(found)))))
    return figures


def _result(stage: StageView, name: str) -> float | None:
    value = stage.result.measures.get(name)
    return None if isinstance(value, str) else as_number(value)


def _is_parameter(found: list[tuple[StageView, float]]) -> bool:
    """Return whether the stages recorded the values of one of their parameters, which is the axis of other plots."""
    inputs = [stage.result.inputs for stage, _ in found]
    values = [value for _, value in found]
    return any([as_number(its.get(name)) for its in inputs] == values for name in inputs[0])


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
    x_axis = Axis(xs, LEFT, WIDTH - RIGHT, log=False if over == "iteration" else None)
    y_axis = Axis(ys, HEIGHT - BOTTOM, TOP)
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(xs, ys, strict=True)]
    points, dots, line = [], "", ""
    if len(found) <= MOST_SINGLE:
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
