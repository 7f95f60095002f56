"""The searches of a run: their trials are rows, of which some are the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import counted
from torchx_kfp.execution.report.figures import draw_front, draw_results
from torchx_kfp.execution.report.links import Links
from torchx_kfp.execution.report.model import Hyperlink, Row, RunView, Tracked
from torchx_kfp.execution.report.rows import Table, curves_of, limited
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import Search, Trial

#: The most objectives that are drawn over trials and parameters.
_MOST_OBJECTIVES = 3


@dataclass(frozen=True)
class SearchView:
    """A search on the page. ``running`` says how far one that has not ended has come."""

    search: Search
    table: Table
    running: str
    facts: Mapping[str, Any]


def find_searches(run: RunView, tracked: Tracked) -> Iterable[tuple[str, Search]]:
    """Yield the searches of the run with their titles, as far as each has come, in the pipeline's order.

    A title is the search's name; if several have it, the stage that stated it last is added.
    """
    asking = {stage.result.run_id or "": stage for stage in run.stages if tracked.record(stage).search is not None}
    found = Search.latest({run_id: tracked.record(stage).search for run_id, stage in asking.items()})
    names = [search.name for search in found.values()]
    for run_id, search in found.items():
        yield (search.name if names.count(search.name) == 1 else f"{search.name} ({asking[run_id].name})", search)


def view_search(run: RunView, title: str, search: Search, links: Links, tracked: Tracked) -> SearchView:
    """Return the view of a search."""
    stages = {stage.result.run_id: stage for stage in run.stages if stage.result.run_id}
    best = {id(trial) for trial in search.best_trials()}
    rows = [
        _row(search, number, trial, stages.get(trial.run_id), links, is_best=id(trial) in best)
        for number, trial in enumerate(search.trials, 1)
    ]
    # What a failed trial has recorded does not count.
    measured = [
        dataclasses.replace(row, results={} if trial.failed else trial.results)
        for row, trial in zip(rows, search.trials, strict=True)
    ]
    objectives = list(search.objectives)[:_MOST_OBJECTIVES]
    signs = {name: search.sign_of(name) for name in search.objectives}
    better = {name: min if sign > 0 else max for name, sign in signs.items()}
    asked = [Row("", 0, "", Hyperlink("", ""), State.WAITING, values, {}, note="asked for") for values in search.asked]
    columns, hidden = limited(
        [
            *(("results", name) for name in search.objectives),
            *(("inputs", name) for name in search.parameters),
            *dict.fromkeys(("results", name) for row in rows for name in row.results if name not in search.objectives),
        ]
    )
    table = Table(
        title,
        "",
        None,
        "",
        [*sorted(rows, key=lambda row: _rank(signs, row)), *asked],
        is_loop=False,
        columns=columns,
        hidden=hidden,
        figures=[
            *draw_front(measured, signs),
            *draw_results(measured, objectives, "trial", better),
            *curves_of(rows, title, tracked),
        ],
    )
    running = ""
    if asked:
        end = "was running when this page was written" if run.run.state is State.RUNNING else "did not come to its end"
        running = f"Round {search.round:,} of {search.rounds:,}, with {counted(len(asked), 'trial')}, {end}."
    failed = sum(not search.is_complete(trial) for trial in search.trials)
    facts = {
        "objective" if len(search.objectives) == 1 else "objectives": ", ".join(
            f"{aim} {name}" for name, aim in search.objectives.items()
        ),
        "trials": f"{len(rows):,}" + (f", of which {failed:,} failed" if failed else ""),
        "rounds": f"{min(search.round - 1, search.rounds):,} of {search.rounds:,}",
        **{name: it for name in ("optimizer", "seed") if (it := search.definition.get(name)) is not None},
    }
    return SearchView(search, table, running, facts)


def _row(search: Search, number: int, trial: Trial, stage: StageState | None, links: Links, is_best: bool) -> Row:
    recorded = dict(stage.result.results or {}) if stage else {}
    recorded.pop("exit_code", None)
    has_all = search.is_complete(trial)
    note = ""
    if not has_all:
        missing = [name for name in search.objectives if name not in trial.results]
        why = f", no number for {' and '.join(missing)}" if missing else ""
        note = f"failed, exit code {trial.exit_code}" if trial.exit_code else f"failed{why}"
    elif is_best:
        note = "best" if len(search.objectives) == 1 else "on the Pareto front"
    return Row(
        title=f"trial {number}",
        number=number,
        label=str(number),
        link=links.stage(stage) if stage else Hyperlink(trial.run_id, ""),
        state=State.SUCCEEDED if has_all else State.FAILED,
        inputs=trial.parameters,
        results={**recorded, **trial.results},
        stage=stage,
        note=note,
        is_best=is_best,
    )


def _rank(signs: Mapping[str, int], row: Row) -> tuple[bool, bool, float, float]:
    """Order rows: the best trials, the others by the first objective, and those that failed."""
    name, sign = next(iter(signs.items()))
    is_failed = row.state is State.FAILED
    cost = 0.0 if is_failed else sign * float(row.results[name])
    return is_failed, not row.is_best, cost, row.number
