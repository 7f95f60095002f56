"""Charts of metrics over steps; the curves of a task's iterations share a chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.report.axes import Axis, Ticks
from torchx_kfp.report.formats import number
from torchx_kfp.report.model import StageView
from torchx_kfp.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from torchx_kfp.report.tracked import Tracked
from torchx_kfp.tracking import Curve, Point

#: How many metrics of a task are drawn, and how many curves of a chart have a color and a name.
MOST_METRICS, MOST_COLOURS = 12, 8
#: The most points of a curve, the most points of a chart, and the least to which a curve is thinned.
_POINTS, _ALL_POINTS, _FEWEST = 460, 8000, 24


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
            last = charts[-1]
            charts[-1] = Chart(**{**vars(last), "hidden": len(drawn) - MOST_METRICS})
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
