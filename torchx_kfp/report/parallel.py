"""Parallel coordinates: an axis for each parameter and objective of a search, and a line across them for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchx_kfp.report.axes import Axis, Ticks
from torchx_kfp.report.plots import MOST_SINGLE, WIDTH
from torchx_kfp.report.trials import Shown, place_values
from torchx_kfp.text import shorten
from torchx_kfp.tracking.searches import is_complete, sign_of, value_of
from torchx_kfp.tracking.statements.search import Search

#: The height, the ends of the axes, the least distance between two of them, and the space beside the outermost ones.
HEIGHT, TOP, BOTTOM, _BETWEEN, _BESIDE = 270.0, 34.0, 14.0, 112.0, 60.0
#: The widths of drawings that take one, two or three columns of figures. Wider ones are scrolled.
_WIDTHS = (WIDTH, 966.0, 1500.0)
#: The most characters of the name above an axis.
_NAME = 14
#: Up to this many lines also have a wide invisible one, which is easier to point at.
MOST_WIDE = 100


@dataclass(frozen=True)
class ParallelAxis:
    """An axis; ``label`` is its ``name``, shortened."""

    x: float
    name: str
    label: str
    is_objective: bool
    ticks: Ticks


@dataclass(frozen=True)
class ParallelLine:
    """A trial's line. ``share`` is 100 for the best trial and 0 for the worst one; None for a trial without a value."""

    shown: Shown
    path: str
    share: int | None


@dataclass(frozen=True)
class Parallel:
    """The drawing. ``columns`` is how many columns of figures it takes; if ``linked``, each line has a link.

    ``opacity`` is that of the best lines: many lines cover each other.
    """

    width: float
    columns: int
    axes: list[ParallelAxis]
    lines: list[ParallelLine]
    linked: bool
    opacity: float
    note: str


def draw_parallel(search: Search, trials: Sequence[Shown]) -> Parallel | None:
    """Draw the trials, the best ones on top. Trials without a value have no point on the axis of an objective."""
    names = [*search.parameters, *search.objectives]
    least = 2 * _BESIDE + (len(names) - 1) * _BETWEEN
    width = next((width for width in _WIDTHS if width >= least), least)
    apart = (width - 2 * _BESIDE) / max(1, len(names) - 1)
    axes: list[ParallelAxis] = []
    points: dict[int, list[str]] = {}
    for place, name in enumerate(names):
        x, is_objective = round(_BESIDE + apart * place, 1), place >= len(search.parameters)
        column, ticks = _objective(trials, name) if is_objective else _parameter(search, trials, name)
        axes.append(ParallelAxis(x, name, shorten(name, _NAME, keep="ends"), is_objective, ticks))
        for number, y in column:
            points.setdefault(number, []).append(f"{x} {y}")
    shares = _shares(search, trials)
    lines = [
        ParallelLine(shown, "M" + "L".join(points[shown.number]), shares.get(shown.number))
        for shown in trials
        if len(points.get(shown.number, ())) > 1
    ]
    if not lines:
        return None
    lines.sort(key=lambda line: -1 if line.share is None else line.share)
    columns = sum(width > narrower for narrower in (0.0, *_WIDTHS[:2]))
    opacity = round(min(0.9, 6 / len(lines) ** 0.5), 2)
    strongest = "The better a trial, the stronger its line."
    if len(search.objectives) > 1:
        strongest = "The lines of the Pareto front are the strongest."
    failed = " Dashed: without a value." if len(shares) < len(trials) else ""
    return Parallel(width, columns, axes, lines, len(lines) <= MOST_SINGLE, opacity, strongest + failed)


def _parameter(search: Search, trials: Sequence[Shown], name: str) -> tuple[list[tuple[int, float]], Ticks]:
    having = [shown for shown in trials if name in shown.trial.parameters]
    values = [shown.trial.parameters[name] for shown in having]
    ys, ticks = place_values(search.parameters[name], values, HEIGHT - BOTTOM, TOP)
    return [(shown.number, y) for shown, y in zip(having, ys, strict=True)], ticks


def _objective(trials: Sequence[Shown], name: str) -> tuple[list[tuple[int, float]], Ticks]:
    found = [(shown.number, value) for shown in trials if (value := value_of(shown.trial, name)) is not None]
    if not found:
        return [], []
    axis = Axis([value for _, value in found], HEIGHT - BOTTOM, TOP)
    return [(number, axis.place(value)) for number, value in found], axis.ticks()


def _shares(search: Search, trials: Sequence[Shown]) -> dict[int, int]:
    """Return how good each trial with all values is: by its rank, so that an outlier does not make all others alike."""
    complete = [shown for shown in trials if is_complete(search, shown.trial)]
    if len(search.objectives) > 1:
        return {shown.number: 100 if shown.is_best else 25 for shown in complete}
    (name,) = search.objectives
    costs = {shown.number: sign_of(search, name) * (value_of(shown.trial, name) or 0.0) for shown in complete}
    ranks = {cost: rank for rank, cost in enumerate(sorted(set(costs.values())))}
    return {number: round(100 - 100 * ranks[cost] / max(1, len(ranks) - 1)) for number, cost in costs.items()}
