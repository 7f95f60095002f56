"""The tables of the page: stages, iterations of loops and trials of searches, with inputs and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchx_kfp.common.text import counted
from torchx_kfp.contract.inputs import identifier
from torchx_kfp.execution.report.figures import Figure, draw_curves, draw_front, draw_results
from torchx_kfp.execution.report.graph import summary
from torchx_kfp.execution.report.links import Links
from torchx_kfp.execution.report.model import Hyperlink, Row, Tracked, inputs_of, loop_items, text
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import Search, Trial

#: The most columns of inputs and results in a table, and the most parents or readers that a stage lists.
_MOST_COLUMNS, _MOST_LINKS = 24, 12
#: The most objectives with figures over trials and parameters.
_MOST_OBJECTIVES = 3

#: Columns of a table: the attribute of a row, such as "results", and the name in it.
Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """The rows of a task or a search, with the shown columns and the names of hidden ones.

    ``constant`` has the inputs that all iterations of a loop share.
    """

    title: str
    anchor: str
    state: State | None
    note: str
    rows: Sequence[Row]
    is_loop: bool
    columns: Columns = ()
    hidden: Sequence[str] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    figures: Sequence[Figure] = ()


def task_tables(record: RunRecord, links: Links, tracked: Tracked, drawn: Iterable[str]) -> list[Table]:
    """Return a table for each task, in the pipeline's order; figures omit executions that are ``drawn`` elsewhere."""
    lineage, items = _lineage(record, links), loop_items(record)
    drawn = set(drawn)
    tables = []
    for path, stages in record.tasks.items():
        rows = [_row(record, stage, number, links, lineage.get(stage.name, {})) for number, stage in enumerate(stages)]
        figured = [row for row in rows if row.stage and row.stage.result.execution_id not in drawn]
        tables.append(_table(path, links.section(path), rows, figured, tracked, items.get(path, {})))
    return tables


def curves_of(rows: Sequence[Row], title: str, tracked: Tracked) -> list[Figure]:
    """Draw the metrics of these rows over steps."""
    histories = ((row, tracked.record(row.stage).steps) for row in rows if row.stage is not None)
    return draw_curves(((row, name, curve) for row, steps in histories for name, curve in steps.items()), title)


def limited(columns: Columns) -> tuple[Columns, list[str]]:
    """Return the columns that fit, and the names of the others."""
    return columns[:_MOST_COLUMNS], [name for _, name in columns[_MOST_COLUMNS:]]


def _table(
    path: str,
    anchor: str,
    rows: Sequence[Row],
    figured: Sequence[Row],
    tracked: Tracked,
    items: Mapping[int, Any],
) -> Table:
    state, note = summary(row.stage for row in rows if row.stage)
    curves = curves_of(figured, path, tracked)
    if not (rows[0].stage and rows[0].stage.indices):
        return Table(path, anchor, state, note, rows, is_loop=False, figures=curves)
    ran = [row for row in rows if row.stage and (row.stage.attempts or row.state.is_success)]
    names = {kind: _names(getattr(row, kind) for row in ran) for kind in ("inputs", "results", "outputs")}
    varies = [name for name in names["inputs"] if len({text(row.inputs.get(name)) for row in ran}) > 1]
    columns, hidden = limited([(kind, name) for kind, those in {**names, "inputs": varies}.items() for name in those])
    results = draw_results(figured, names["results"], "iteration", {}, items)
    constant = {name: ran[0].inputs.get(name) for name in names["inputs"] if name not in varies}
    return Table(path, anchor, state, note, rows, True, columns, hidden, constant, [*results, *curves])


def _names(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _row(
    record: RunRecord, stage: StageState, number: int, links: Links, lineage: Mapping[str, Sequence[Hyperlink]]
) -> Row:
    result = stage.result
    results = result.measures
    # Declared results are also outputs, with KFP's names.
    repeated = {"run_id": result.execution_id, **{identifier(name): value for name, value in results.items()}}
    return Row(
        title=stage.name,
        number=stage.indices[0] if len(stage.indices) == 1 else number,
        label=", ".join(map(str, stage.indices)),
        link=links.stage(stage),
        state=stage.state,
        inputs={name: value for name, value in inputs_of(record, stage).items() if f"reads {name}" not in lineage},
        results=results,
        outputs={
            name: value for name, value in result.outputs.items() if name not in repeated or repeated[name] != value
        },
        stage=stage,
        lineage={name: _some(those) for name, those in lineage.items()},
    )


def _some(links: Sequence[Hyperlink]) -> list[Hyperlink]:
    more = len(links) - _MOST_LINKS
    return [*links[:_MOST_LINKS], *([Hyperlink(f"{more:,} more", "")] if more > 0 else [])]


def _lineage(record: RunRecord, links: Links) -> Mapping[str, Mapping[str, list[Hyperlink]]]:
    """Return the stages that each stage reads, by input, and those that read it."""
    known = {stage.result.execution_id: stage for stage in reversed(record.stages) if stage.result.execution_id}
    found: dict[str, dict[str, list[Hyperlink]]] = {}
    for stage in record.stages:
        sources: dict[str, None] = {}
        for name, value in inputs_of(record, stage).items():
            values = value if isinstance(value, list) else [value]
            for run_id in dict.fromkeys(it for it in values if isinstance(it, str)):
                source = known.get(run_id, stage)
                if source is not stage:
                    found.setdefault(stage.name, {}).setdefault(f"reads {name}", []).append(links.stage(source))
                    sources[source.name] = None
        for name in sources:
            found.setdefault(name, {}).setdefault("is read by", []).append(links.stage(stage))
    return found


@dataclass(frozen=True)
class SearchView:
    """A search on the page. ``running`` describes the progress of an unfinished one."""

    search: Search
    table: Table
    running: str
    facts: Mapping[str, Any]


def find_searches(record: RunRecord, tracked: Tracked) -> Iterable[tuple[str, Search]]:
    """Yield the searches of the run with their titles, and their progress, in the pipeline's order.

    A title is the search's name; if several share it, the last recording stage is added.
    """
    asking = {
        stage.result.execution_id or "": stage for stage in record.stages if tracked.record(stage).search is not None
    }
    searches = Search.latest({run_id: tracked.record(stage).search for run_id, stage in asking.items()})
    names = [search.name for search in searches.values()]
    for run_id, search in searches.items():
        yield (search.name if names.count(search.name) == 1 else f"{search.name} ({asking[run_id].name})", search)


def view_search(record: RunRecord, title: str, search: Search, links: Links, tracked: Tracked) -> SearchView:
    """Return the view of a search."""
    stages = {stage.result.execution_id: stage for stage in record.stages if stage.result.execution_id}
    best = {id(trial) for trial in search.best_trials()}
    rows = [
        _trial_row(search, number, trial, stages.get(trial.run_id), links, is_best=id(trial) in best)
        for number, trial in enumerate(search.trials, 1)
    ]
    # What a failed trial has recorded does not count.
    measured = [
        replace(row, results={} if trial.failed else trial.results)
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
        end = "was running when this page was written" if record.run.state is State.RUNNING else "did not finish"
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


def _trial_row(search: Search, number: int, trial: Trial, stage: StageState | None, links: Links, is_best: bool) -> Row:
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
