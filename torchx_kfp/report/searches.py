"""The sections of the page about searches: the best trials, plots of all trials, and a table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.report.artifacts import Link
from torchx_kfp.report.curves import Chart, draw_charts
from torchx_kfp.report.model import RunView, StageView
from torchx_kfp.report.parallel import Parallel, draw_parallel
from torchx_kfp.report.sections import Links
from torchx_kfp.report.tracked import Tracked
from torchx_kfp.report.trials import Shown, TrialFigure, draw_trials, number_trials
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import counted
from torchx_kfp.tracking.searches import current, is_complete, sign_of
from torchx_kfp.tracking.statements.search import Search, Trial

#: How many of the best trials are listed above the plots, and how many results besides the objectives a table has.
_MOST_BEST, _MOST_RESULTS = 3, 6


@dataclass(frozen=True)
class Row:
    """A row of the table; ``link`` leads to the trial's stage. A trial that has not ended has no number."""

    number: int | None
    link: Link
    round: int
    state: State
    note: str
    is_best: bool
    parameters: Mapping[str, Any]
    results: Mapping[str, Any]


@dataclass(frozen=True)
class SearchView:
    """A search with everything that the page shows about it.

    ``best`` are the rows of its best trials, ``more_best`` counts those that are not among them. ``running`` says how
    far a search that has not ended has come. ``charts`` have the metrics of steps of all trials, and ``by_stage`` the
    trials by the names of their stages.
    """

    anchor: str
    title: str
    search: Search
    running: str
    facts: Mapping[str, Any]
    best: list[Row]
    more_best: int
    figures: list[TrialFigure]
    parallel: Parallel | None
    charts: list[Chart]
    by_stage: Mapping[str, Shown]
    rows: list[Row]
    other_results: list[str]
    hidden_results: list[str]


@dataclass(frozen=True)
class Found:
    """A search of the run. Its ``title`` is its name; if several have that, the stage that stated it last is added."""

    title: str
    search: Search


def find_searches(stages: Iterable[StageView], tracked: Tracked) -> list[Found]:
    """Return the searches of the run, as far as each has come, in the pipeline's order."""
    stated = {id(search): (stage, search) for stage in stages if (search := tracked.search(stage)) is not None}
    found = current(search for _, search in stated.values())
    names = [search.name for search in found]
    return [
        Found(search.name if names.count(search.name) == 1 else f"{search.name} ({stated[id(search)][0].name})", search)
        for search in found
    ]


def trials_of(found: Iterable[Found]) -> set[str]:
    """Return the run ids of all trials."""
    return {trial.run_id for one in found for trial in one.search.trials if trial.run_id}


def view_searches(run: RunView, found: Iterable[Found], links: Links, tracked: Tracked) -> list[SearchView]:
    """Return the sections of these searches."""
    stages = {stage.result.run_id: stage for stage in run.stages if stage.result.run_id}
    return [_view(run, one, number, stages, links, tracked) for number, one in enumerate(found)]


def _view(
    run: RunView, found: Found, number: int, stages: Mapping[str, StageView], links: Links, tracked: Tracked
) -> SearchView:
    search = found.search
    trials = number_trials(search, [_href(trial.run_id, stages, links) for trial in search.trials])
    objectives = list(search.objectives)
    rows = sorted((_row(search, shown, stages) for shown in trials), key=lambda row: _rank(search, row))
    best = [row for row in rows if row.is_best]
    shown_before = {*search.objectives, *search.parameters}
    others = list(dict.fromkeys(name for row in rows for name in row.results if name not in shown_before))
    asked = [
        Row(None, Link("", ""), search.round, State.WAITING, "asked for", False, parameters, {})
        for parameters in search.asked
    ]
    failed = sum(not is_complete(search, shown.trial) for shown in trials)
    # The best ones come last, on top of the others.
    ran = {shown.trial.run_id: shown for shown in sorted(trials, key=lambda shown: shown.is_best)}
    its_stages = [stages[run_id] for run_id in ran if run_id in stages]
    return SearchView(
        anchor=f"search{number}",
        title=found.title,
        search=search,
        running=_progress(search, run.state),
        facts={
            "objective" if len(objectives) == 1 else "objectives": ", ".join(
                f"{aim} {name}" for name, aim in search.objectives.items()
            ),
            "trials": f"{len(trials):,}" + (f", of which {failed:,} failed" if failed else ""),
            "rounds": f"{min(search.round - 1, search.rounds):,} of {search.rounds:,}",
            **{name: it for name in ("optimizer", "seed") if (it := search.definition.get(name)) is not None},
        },
        best=best[:_MOST_BEST],
        more_best=len(best[_MOST_BEST:]),
        figures=draw_trials(search, trials),
        parallel=draw_parallel(search, trials),
        charts=draw_charts(its_stages, tracked, together=found.title),
        by_stage={stages[run_id].name: shown for run_id, shown in ran.items() if run_id in stages},
        rows=[*rows, *asked],
        other_results=others[:_MOST_RESULTS],
        hidden_results=others[_MOST_RESULTS:],
    )


def _href(run_id: str, stages: Mapping[str, StageView], links: Links) -> str:
    return f"#{links.anchors[stages[run_id].name]}" if run_id in stages else ""


def _row(search: Search, shown: Shown, stages: Mapping[str, StageView]) -> Row:
    trial = shown.trial
    stage = stages.get(trial.run_id) if trial.run_id else None
    recorded = dict(stage.result.results or {}) if stage else {}
    recorded.pop("exit_code", None)
    has_all = is_complete(search, trial)
    if not has_all:
        note = _failure(search, trial)
    elif shown.is_best:
        note = "best" if len(search.objectives) == 1 else "on the Pareto front"
    else:
        note = ""
    return Row(
        shown.number,
        Link(stage.name if stage else trial.run_id, shown.href),
        trial.round,
        State.SUCCEEDED if has_all else State.FAILED,
        note,
        shown.is_best,
        trial.parameters,
        {**recorded, **trial.results},
    )


def _failure(search: Search, trial: Trial) -> str:
    if trial.exit_code:
        return f"failed, exit code {trial.exit_code}"
    missing = [name for name in search.objectives if name not in trial.results]
    return f"failed, no number for {' and '.join(missing)}" if missing else "failed"


def _rank(search: Search, row: Row) -> tuple[bool, bool, float, int]:
    """Order rows: the best trials, the others by the first objective, and those that failed."""
    name = next(iter(search.objectives))
    value = row.results.get(name)
    is_failed = row.state is State.FAILED
    cost = 0.0 if is_failed else sign_of(search, name) * float(value or 0)
    return is_failed, not row.is_best, cost, row.number or 0


def _progress(search: Search, state: State) -> str:
    if not search.asked:
        return ""
    asked = f"Round {search.round:,} of {search.rounds:,}, with {counted(len(search.asked), 'trial')}"
    if state is State.RUNNING:
        return f"{asked}, was running when this page was written."
    return f"{asked}, did not come to its end."
