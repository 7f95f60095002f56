"""The sections of the page about searches: the best trials, plots of all trials, and a table of them.

An objective is plotted over the trials and over each parameter, and two objectives with their Pareto front. In parallel
coordinates, each parameter and objective has an axis, and each trial a line across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torchx_kfp.common.text import counted, shorten
from torchx_kfp.execution.report.artifact_views import Hyperlink, Links
from torchx_kfp.execution.report.formats import as_number, number, text
from torchx_kfp.execution.report.model import RunView, StageView, Tracked
from torchx_kfp.execution.report.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_SINGLE,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Plot,
    Steps,
    Ticks,
    draw_charts,
)
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import Search, Trial

#: The most rounds whose borders are drawn, the most objectives that are plotted over trials and parameters, and the
#: most points of all plots of an objective that have a title each.
_MOST_ROUNDS, _MOST_OBJECTIVES, _MOST_TITLES = 24, 3, 1500
#: How many results besides the objectives a table has.
_MOST_RESULTS = 6
#: Of parallel coordinates: the height, the ends of the axes, the least distance between two of them, and the space
#: next to the outermost ones.
PARALLEL_HEIGHT, PARALLEL_TOP, PARALLEL_BOTTOM, _BETWEEN, _BESIDE = 270.0, 34.0, 14.0, 112.0, 60.0
#: The widths of drawings that take one, two or three columns of figures. Wider ones are scrolled.
_WIDTHS = (WIDTH, 966.0, 1500.0)
#: The most characters of the name above an axis.
_NAME = 14
#: Up to this many lines also have a wide invisible one, which is easier to point at.
MOST_WIDE = 100


@dataclass(frozen=True)
class NumberedTrial:
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
    shown: NumberedTrial


def number_trials(search: Search, hrefs: Iterable[str]) -> list[NumberedTrial]:
    """Number the trials of a search in their order. ``hrefs`` has a link for each, or an empty text."""
    best = {id(trial) for trial in search.best_trials()}
    numbered = []
    for place, (trial, href) in enumerate(zip(search.trials, hrefs, strict=True), 1):
        results = [f"{name} {text(trial.results[name])}" for name in search.objectives if name in trial.results]
        found = f"trial {place}: {', '.join(['failed', *results] if trial.failed else results) or 'no result'}"
        title = "; ".join([found, *(f"{name} {text(value)}" for name, value in trial.parameters.items())])
        numbered.append(NumberedTrial(place, trial, href, shorten(title, 400), id(trial) in best))
    return numbered


def draw_trials(search: Search, trials: Sequence[NumberedTrial]) -> list[list[Plot]]:
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


def _objective(search: Search, trials: Sequence[NumberedTrial], name: str) -> list[Plot] | None:
    found = [(shown, value) for shown in trials if (value := shown.trial.value_of(name)) is not None]
    if not found:
        return None
    failed = [shown for shown in trials if shown.trial.value_of(name) is None]
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
        plots.append(Plot(name, parameter, marks, dots, "", ticks, axis.ticks(), plots[0].note))
    return plots


def _over_trials(
    search: Search, found: Sequence[tuple[NumberedTrial, float]], failed: Sequence[NumberedTrial], name: str, axis: Axis
) -> Plot:
    numbers = sorted(shown.number for shown in (*(shown for shown, _ in found), *failed))
    across = Axis([float(number) for number in numbers], LEFT, WIDTH - RIGHT, log=False)
    points = [(across.place(shown.number), axis.place(value), shown) for shown, value in found]
    marks, dots = _marks(points, titles=True)
    marks += [Mark(across.place(shown.number), HEIGHT - BOTTOM, "failed", shown) for shown in failed]
    better = min if search.sign_of(name) > 0 else max
    so_far = [axis.place(value) for value in accumulate((value for _, value in found), better)]
    line = _stairs([(x, y) for (x, *_), y in zip(points, so_far, strict=True)]) + f"H{across.place(numbers[-1])}"
    rounds = {shown.number: shown.trial.round for shown in (*(shown for shown, _ in found), *failed)}
    borders = [across.place((one + other) / 2) for one, other in pairwise(numbers) if rounds[one] != rounds[other]]
    best = search.best_in(name)
    note = next(f"best {number(value)} in trial {shown.number}" for shown, value in found if shown.trial is best)
    if failed:
        note += f" · {counted(len(failed), 'trial')} without a value"
    borders = borders if len(borders) < _MOST_ROUNDS else []
    return Plot(name, "trial", marks, dots, line, across.ticks(), axis.ticks(), note, borders)


def _front(search: Search, trials: Sequence[NumberedTrial]) -> list[Plot] | None:
    """Draw the first two objectives, one over the other. The front of more than two is not a line."""
    over, what, *others = [*search.objectives, "", ""][: max(2, len(search.objectives))]
    found = [
        (shown, x, y)
        for shown in trials
        if what and (x := shown.trial.value_of(over)) is not None and (y := shown.trial.value_of(what)) is not None
    ]
    if not found:
        return None
    x_axis = Axis([x for _, x, _ in found], LEFT, WIDTH - RIGHT)
    y_axis = Axis([y for *_, y in found], HEIGHT - BOTTOM, TOP)
    marks, dots = _marks([(x_axis.place(x), y_axis.place(y), shown) for shown, x, y in found], titles=True)
    front = sorted((search.sign_of(over) * x, x_axis.place(x), y_axis.place(y)) for it, x, y in found if it.is_best)
    line = "" if others else _stairs([place for _, *place in front])
    note = f"{counted(len(front), 'trial')} on the Pareto front, of {len(found):,}"
    return [Plot(what, over, marks, dots, line, x_axis.ticks(), y_axis.ticks(), note)]


def _stairs(points: Sequence[Sequence[float]]) -> str:
    """Return a path that goes to each point first horizontally and then vertically."""
    return "".join(f"H{x}V{y}" if number else f"M{x} {y}" for number, (x, y) in enumerate(points))


def _marks(points: Sequence[tuple[float, float, NumberedTrial]], titles: bool) -> tuple[list[Mark], str]:
    """Return the marks of these points, the best ones last; many that are not the best become a path."""
    best = [Mark(x, y, "best", shown) for x, y, shown in points if shown.is_best]
    others = [(x, y, shown) for x, y, shown in points if not shown.is_best]
    if titles and len(others) <= MOST_SINGLE:
        return [*(Mark(x, y, "", shown) for x, y, shown in others), *best], ""
    return best, "".join(f"M{x} {y}h0" for x, y, _ in others)


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

    shown: NumberedTrial
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


def draw_parallel(search: Search, trials: Sequence[NumberedTrial]) -> Parallel | None:
    """Draw the trials, the best ones on top. Trials without a value have no point on the axis of an objective."""
    names = [*search.parameters, *search.objectives]
    least = 2 * _BESIDE + (len(names) - 1) * _BETWEEN
    width = next((width for width in _WIDTHS if width >= least), least)
    apart = (width - 2 * _BESIDE) / max(1, len(names) - 1)
    axes: list[ParallelAxis] = []
    points: dict[int, list[str]] = {}
    for place, name in enumerate(names):
        x, is_objective = round(_BESIDE + apart * place, 1), place >= len(search.parameters)
        column, ticks = _objective_column(trials, name) if is_objective else _parameter_column(search, trials, name)
        axes.append(ParallelAxis(x, name, shorten(name, _NAME, keep="ends"), is_objective, ticks))
        for trial, y in column:
            points.setdefault(trial, []).append(f"{x} {y}")
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


def _parameter_column(
    search: Search, trials: Sequence[NumberedTrial], name: str
) -> tuple[list[tuple[int, float]], Ticks]:
    having = [shown for shown in trials if name in shown.trial.parameters]
    values = [shown.trial.parameters[name] for shown in having]
    ys, ticks = place_values(search.parameters[name], values, PARALLEL_HEIGHT - PARALLEL_BOTTOM, PARALLEL_TOP)
    return [(shown.number, y) for shown, y in zip(having, ys, strict=True)], ticks


def _objective_column(trials: Sequence[NumberedTrial], name: str) -> tuple[list[tuple[int, float]], Ticks]:
    found = [(shown.number, value) for shown in trials if (value := shown.trial.value_of(name)) is not None]
    if not found:
        return [], []
    axis = Axis([value for _, value in found], PARALLEL_HEIGHT - PARALLEL_BOTTOM, PARALLEL_TOP)
    return [(number, axis.place(value)) for number, value in found], axis.ticks()


def _shares(search: Search, trials: Sequence[NumberedTrial]) -> dict[int, int]:
    """Return how good each trial with all values is: by its rank, so that an outlier does not make all others alike."""
    complete = [shown for shown in trials if search.is_complete(shown.trial)]
    if len(search.objectives) > 1:
        return {shown.number: 100 if shown.is_best else 25 for shown in complete}
    (name,) = search.objectives
    costs = {shown.number: search.sign_of(name) * (shown.trial.value_of(name) or 0.0) for shown in complete}
    ranks = {cost: rank for rank, cost in enumerate(sorted(set(costs.values())))}
    return {number: round(100 - 100 * ranks[cost] / max(1, len(ranks) - 1)) for number, cost in costs.items()}


@dataclass(frozen=True)
class TrialRow:
    """A row of the table; ``link`` leads to the trial's stage. A trial that has not ended has no number."""

    number: int | None
    link: Hyperlink
    round: int
    state: State
    note: str
    is_best: bool
    parameters: Mapping[str, Any]
    results: Mapping[str, Any]


@dataclass(frozen=True)
class SearchView:
    """A search with everything that the page shows about it.

    ``running`` says how far a search that has not ended has come. ``charts`` have the metrics of steps of all trials,
    and ``by_stage`` the trials by the names of their stages.
    """

    title: str
    search: Search
    running: str
    facts: Mapping[str, Any]
    best: list[TrialRow]
    figures: list[list[Plot]]
    parallel: Parallel | None
    charts: list[Chart]
    by_stage: Mapping[str, NumberedTrial]
    rows: list[TrialRow]
    other_results: list[str]
    hidden_results: list[str]


def find_searches(stages: Iterable[StageView], tracked: Tracked) -> list[tuple[str, Search]]:
    """Return the searches of the run with their titles, as far as each has come, in the pipeline's order.

    A title is the search's name; if several have it, the stage that stated it last is added.
    """
    stated = {id(search): (stage, search) for stage in stages if (search := tracked.search(stage)) is not None}
    found = Search.latest(search for _, search in stated.values())
    names = [search.name for search in found]
    return [
        (search.name if names.count(search.name) == 1 else f"{search.name} ({stated[id(search)][0].name})", search)
        for search in found
    ]


def view_search(run: RunView, title: str, search: Search, links: Links, tracked: Tracked) -> SearchView:
    """Return the section of a search."""
    stages = {stage.result.run_id: stage for stage in run.stages if stage.result.run_id}
    trials = number_trials(
        search, [links.stage(stages[it.run_id]).href if it.run_id in stages else "" for it in search.trials]
    )
    rows = sorted((_row(search, shown, stages) for shown in trials), key=lambda row: _rank(search, row))
    shown_before = {*search.objectives, *search.parameters}
    others = list(dict.fromkeys(name for row in rows for name in row.results if name not in shown_before))
    asked = [
        TrialRow(None, Hyperlink("", ""), search.round, State.WAITING, "asked for", False, parameters, {})
        for parameters in search.asked
    ]
    running = ""
    if asked:
        end = "was running when this page was written" if run.state is State.RUNNING else "did not come to its end"
        running = f"Round {search.round:,} of {search.rounds:,}, with {counted(len(asked), 'trial')}, {end}."
    failed = sum(not search.is_complete(shown.trial) for shown in trials)
    # The best ones come last, on top of the others.
    ran = {shown.trial.run_id: shown for shown in sorted(trials, key=lambda shown: shown.is_best)}
    by_stage = {stages[run_id].name: shown for run_id, shown in ran.items() if run_id in stages}
    return SearchView(
        title=title,
        search=search,
        running=running,
        facts={
            "objective" if len(search.objectives) == 1 else "objectives": ", ".join(
                f"{aim} {name}" for name, aim in search.objectives.items()
            ),
            "trials": f"{len(trials):,}" + (f", of which {failed:,} failed" if failed else ""),
            "rounds": f"{min(search.round - 1, search.rounds):,} of {search.rounds:,}",
            **{name: it for name in ("optimizer", "seed") if (it := search.definition.get(name)) is not None},
        },
        best=[row for row in rows if row.is_best],
        figures=draw_trials(search, trials),
        parallel=draw_parallel(search, trials),
        charts=draw_charts([stages[run_id] for run_id in ran if run_id in stages], tracked, together=title),
        by_stage=by_stage,
        rows=[*rows, *asked],
        other_results=others[:_MOST_RESULTS],
        hidden_results=others[_MOST_RESULTS:],
    )


def _row(search: Search, shown: NumberedTrial, stages: Mapping[str, StageView]) -> TrialRow:
    trial = shown.trial
    stage = stages.get(trial.run_id) if trial.run_id else None
    recorded = dict(stage.result.results or {}) if stage else {}
    recorded.pop("exit_code", None)
    has_all = search.is_complete(trial)
    note = ""
    if not has_all:
        missing = [name for name in search.objectives if name not in trial.results]
        why = f", no number for {' and '.join(missing)}" if missing else ""
        note = f"failed, exit code {trial.exit_code}" if trial.exit_code else f"failed{why}"
    elif shown.is_best:
        note = "best" if len(search.objectives) == 1 else "on the Pareto front"
    return TrialRow(
        shown.number,
        Hyperlink(stage.name if stage else trial.run_id, shown.href),
        trial.round,
        State.SUCCEEDED if has_all else State.FAILED,
        note,
        shown.is_best,
        trial.parameters,
        {**recorded, **trial.results},
    )


def _rank(search: Search, row: TrialRow) -> tuple[bool, bool, float, int]:
    """Order rows: the best trials, the others by the first objective, and those that failed."""
    name = next(iter(search.objectives))
    value = row.results.get(name)
    is_failed = row.state is State.FAILED
    cost = 0.0 if is_failed else search.sign_of(name) * float(value or 0)
    return is_failed, not row.is_best, cost, row.number or 0
