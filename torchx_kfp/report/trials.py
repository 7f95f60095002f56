"""Plots of a search's trials: an objective over the trials and over each parameter, and the Pareto front of two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torchx_kfp.report.axes import Axis, Steps, Ticks
from torchx_kfp.report.formats import as_number, number, text
from torchx_kfp.report.plots import BOTTOM, HEIGHT, LEFT, MOST_SINGLE, RIGHT, TOP, WIDTH
from torchx_kfp.text import counted, shorten
from torchx_kfp.tracking.searches import best_in, best_trials, sign_of, value_of
from torchx_kfp.tracking.statements.search import Search, Trial

#: The most rounds whose borders are drawn, the most objectives that are plotted over trials and parameters, and the
#: most points of all plots of an objective that have a title each.
_MOST_ROUNDS, _MOST_OBJECTIVES, _MOST_TITLES = 24, 3, 1500


@dataclass(frozen=True)
class Shown:
    """A trial as the page shows it: its number, from 1, what links to it, and what it says if it is pointed at."""

    number: int
    trial: Trial
    href: str
    title: str
    is_best: bool


@dataclass(frozen=True)
class Mark:
    """A point of a plot; ``kind`` is "best", "failed" or ""."""

    x: float
    y: float
    kind: str
    shown: Shown


@dataclass(frozen=True)
class TrialPlot:
    """One quantity of the trials over another. Many points are in the path ``dots``; ``line`` is the best so far, or
    the Pareto front, and ``borders`` are the places between rounds."""

    what: str
    over: str
    marks: list[Mark]
    dots: str
    line: str
    borders: list[float]
    x_ticks: Ticks
    y_ticks: Ticks
    note: str


@dataclass(frozen=True)
class TrialFigure:
    """Plots of which the page shows the first one, and offers the others."""

    plots: list[TrialPlot]


def number_trials(search: Search, hrefs: Iterable[str]) -> list[Shown]:
    """Number the trials of a search in their order. ``hrefs`` has a link for each, or an empty text."""
    best = {id(trial) for trial in best_trials(search)}
    return [
        Shown(place, trial, href, _title(place, trial, search), id(trial) in best)
        for place, (trial, href) in enumerate(zip(search.trials, hrefs, strict=True), 1)
    ]


def draw_trials(search: Search, trials: Sequence[Shown]) -> list[TrialFigure]:
    """Draw the figures of a search: of two or more objectives first the front, then each objective."""
    figures = [_front(search, trials), *(_objective(search, trials, name) for name in search.objectives)]
    return [figure for figure in figures if figure is not None][: _MOST_OBJECTIVES + 1]


def place_values(
    space: Mapping[str, Any], values: Sequence[Any], start: float, end: float
) -> tuple[list[float], Ticks]:
    """Place values of a parameter between two pixels, and return the ticks of the space in which it is searched."""
    bounds = space.get("bounds", ())
    numbers = [as_number(value) for value in (*bounds, *values)]
    known = [number for number in numbers if number is not None]
    if not bounds or len(known) < len(numbers):
        steps = Steps([*space.get("values", ()), *values], start, end)
        return [steps.place(value) for value in values], steps.ticks()
    axis = Axis(known, start, end, log=space.get("log") is True, whole=space.get("type") == "int")
    return [axis.place(number) for number in known[len(bounds) :]], axis.ticks()


def _title(place: int, trial: Trial, search: Search) -> str:
    results = [f"{name} {text(trial.results[name])}" for name in search.objectives if name in trial.results]
    found = f"trial {place}: {', '.join(['failed', *results] if trial.failed else results) or 'no result'}"
    return shorten("; ".join([found, *(f"{name} {text(value)}" for name, value in trial.parameters.items())]), 400)


def _objective(search: Search, trials: Sequence[Shown], name: str) -> TrialFigure | None:
    found = [(shown, value) for shown in trials if (value := value_of(shown.trial, name)) is not None]
    if not found:
        return None
    failed = [shown for shown in trials if value_of(shown.trial, name) is None]
    axis = Axis([value for _, value in found], HEIGHT - BOTTOM, TOP)
    plots = [_over_trials(search, found, failed, name, axis)]
    titles = len(found) * len(search.parameters) <= _MOST_TITLES
    for parameter, its in search.parameters.items():
        having = [(shown, value) for shown, value in found if parameter in shown.trial.parameters]
        if not having:
            continue
        values = [shown.trial.parameters[parameter] for shown, _ in having]
        xs, ticks = place_values(its, values, LEFT, WIDTH - RIGHT)
        points = [(x, axis.place(value), shown) for x, (shown, value) in zip(xs, having, strict=True)]
        marks, dots = _marks(points, titles)
        plots.append(TrialPlot(name, parameter, marks, dots, "", [], ticks, axis.ticks(), plots[0].note))
    return TrialFigure(plots)


def _over_trials(
    search: Search, found: Sequence[tuple[Shown, float]], failed: Sequence[Shown], name: str, axis: Axis
) -> TrialPlot:
    numbers = sorted(shown.number for shown in (*(shown for shown, _ in found), *failed))
    across = Axis([float(number) for number in numbers], LEFT, WIDTH - RIGHT, log=False)
    points = [(across.place(shown.number), axis.place(value), shown) for shown, value in found]
    marks, dots = _marks(points, titles=True)
    marks += [Mark(across.place(shown.number), HEIGHT - BOTTOM, "failed", shown) for shown in failed]
    better = min if sign_of(search, name) > 0 else max
    so_far = [axis.place(value) for value in accumulate((value for _, value in found), better)]
    line = _stairs([(x, y) for (x, *_), y in zip(points, so_far, strict=True)]) + f"H{across.place(numbers[-1])}"
    rounds = {shown.number: shown.trial.round for shown in (*(shown for shown, _ in found), *failed)}
    borders = [across.place((one + other) / 2) for one, other in pairwise(numbers) if rounds[one] != rounds[other]]
    best = best_in(search, name)
    note = next(f"best {number(value)} in trial {shown.number}" for shown, value in found if shown.trial is best)
    if failed:
        note += f" · {counted(len(failed), 'trial')} without a value"
    borders = borders if len(borders) < _MOST_ROUNDS else []
    return TrialPlot(name, "trial", marks, dots, line, borders, across.ticks(), axis.ticks(), note)


def _front(search: Search, trials: Sequence[Shown]) -> TrialFigure | None:
    """Draw the first two objectives, one over the other. The front of more than two is not a line."""
    over, what, *others = [*search.objectives, "", ""][: max(2, len(search.objectives))]
    found = [
        (shown, x, y)
        for shown in trials
        if what and (x := value_of(shown.trial, over)) is not None and (y := value_of(shown.trial, what)) is not None
    ]
    if not found:
        return None
    x_axis = Axis([x for _, x, _ in found], LEFT, WIDTH - RIGHT)
    y_axis = Axis([y for *_, y in found], HEIGHT - BOTTOM, TOP)
    marks, dots = _marks([(x_axis.place(x), y_axis.place(y), shown) for shown, x, y in found], titles=True)
    front = sorted((sign_of(search, over) * x, x_axis.place(x), y_axis.place(y)) for it, x, y in found if it.is_best)
    line = "" if others else _stairs([place for _, *place in front])
    note = f"{counted(len(front), 'trial')} on the Pareto front, of {len(found):,}"
    return TrialFigure([TrialPlot(what, over, marks, dots, line, [], x_axis.ticks(), y_axis.ticks(), note)])


def _stairs(points: Sequence[Sequence[float]]) -> str:
    """Return a path that goes to each point first horizontally and then vertically."""
    return "".join(f"H{x}V{y}" if number else f"M{x} {y}" for number, (x, y) in enumerate(points))


def _marks(points: Sequence[tuple[float, float, Shown]], titles: bool) -> tuple[list[Mark], str]:
    """Return the marks of these points, the best ones last; many that are not the best become a path."""
    best = [Mark(x, y, "best", shown) for x, y, shown in points if shown.is_best]
    others = [(x, y, shown) for x, y, shown in points if not shown.is_best]
    if titles and len(others) <= MOST_SINGLE:
        return [*(Mark(x, y, "", shown) for x, y, shown in others), *best], ""
    return best, "".join(f"M{x} {y}h0" for x, y, _ in others)
