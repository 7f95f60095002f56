"""The sections of the page about searches: the best trials, plots of all trials, and a table of them.

An objective is plotted over the trials and over each parameter, and two objectives with their Pareto front.
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


def _place_values(space: Mapping[str, Any], values: Sequence[Any]) -> tuple[list[float], Ticks]:
    """Place values of a parameter across a plot, and return the ticks of the space in which it is searched."""
    start, end = LEFT, WIDTH - RIGHT
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
        xs, ticks = _place_values(its, values)
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
    charts: list[Chart]
    by_stage: Mapping[str, NumberedTrial]
    rows: list[TrialRow]
    other_results: list[str]
    hidden_results: list[str]


def find_searches(stages: Iterable[StageView], tracked: Tracked) -> list[tuple[str, Search]]:
    """Return the searches of the run with their titles, as far as each has come, in the pipeline's order.

    A title is the search's name; if several have it, the stage that stated it last is added.
    """
    asking = {stage.result.run_id or "": stage for stage in stages if tracked.search(stage) is not None}
    found = Search.latest({run_id: tracked.search(stage) for run_id, stage in asking.items()})
    names = [search.name for search in found.values()]
    return [
        (search.name if names.count(search.name) == 1 else f"{search.name} ({asking[run_id].name})", search)
        for run_id, search in found.items()
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
