"""Rows with inputs and results: stages, iterations of loops and trials of searches, in the tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.contract.inputs import identifier
from torchx_kfp.execution.report.figures import Figure, draw_curves, draw_results
from torchx_kfp.execution.report.formats import text
from torchx_kfp.execution.report.graph import summary
from torchx_kfp.execution.report.links import Links
from torchx_kfp.execution.report.model import Hyperlink, Row, RunView, Tracked
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State

#: How many columns of inputs and results a table has at most, and how many sources or readers of a stage are listed.
_MOST_COLUMNS, _MOST_LINKS = 24, 12

#: Columns of a table: what a row has there, such as "results", and the name.
Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """The rows of a task or a search, with the columns that are shown and the names of others.

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


def task_tables(run: RunView, links: Links, tracked: Tracked, drawn: Iterable[str]) -> list[Table]:
    """Return a table for each task, in the pipeline's order. The rows of these run ids are drawn elsewhere."""
    lineage = _lineage(run, links)
    drawn = set(drawn)
    tables = []
    for path, stages in run.tasks.items():
        rows = [_row(run, stage, number, links, lineage.get(stage.name, {})) for number, stage in enumerate(stages)]
        figured = [row for row in rows if row.stage and row.stage.result.run_id not in drawn]
        tables.append(_table(path, links.section(path), rows, figured, tracked))
    return tables


def curves_of(rows: Sequence[Row], title: str, tracked: Tracked) -> list[Figure]:
    """Draw the metrics over steps of these rows."""
    histories = ((row, tracked.record(row.stage).steps) for row in rows if row.stage is not None)
    return draw_curves(((row, name, curve) for row, steps in histories for name, curve in steps.items()), title)


def limited(columns: Columns) -> tuple[Columns, list[str]]:
    """Return the columns for which there is room, and the names of the others."""
    return columns[:_MOST_COLUMNS], [name for _, name in columns[_MOST_COLUMNS:]]


def _table(path: str, anchor: str, rows: Sequence[Row], figured: Sequence[Row], tracked: Tracked) -> Table:
    state, note = summary(row.stage for row in rows if row.stage)
    curves = curves_of(figured, path, tracked)
    if not (rows[0].stage and rows[0].stage.indices):
        return Table(path, anchor, state, note, rows, is_loop=False, figures=curves)
    ran = [row for row in rows if row.stage and (row.stage.attempts or row.state.is_success)]
    names = {kind: _names(getattr(row, kind) for row in ran) for kind in ("inputs", "results", "outputs")}
    varies = [name for name in names["inputs"] if len({text(row.inputs.get(name)) for row in ran}) > 1]
    columns, hidden = limited([(kind, name) for kind, those in {**names, "inputs": varies}.items() for name in those])
    results = draw_results(figured, names["results"], "iteration", {})
    constant = {name: ran[0].inputs.get(name) for name in names["inputs"] if name not in varies}
    return Table(path, anchor, state, note, rows, True, columns, hidden, constant, [*results, *curves])


def _names(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _row(run: RunView, stage: StageState, number: int, links: Links, lineage: Mapping[str, Sequence[Hyperlink]]) -> Row:
    result = stage.result
    results = result.measures
    # Declared results are also outputs, with KFP's names.
    repeated = {"run_id": result.run_id, **{identifier(name): value for name, value in results.items()}}
    return Row(
        title=stage.name,
        number=stage.indices[0] if len(stage.indices) == 1 else number,
        label=", ".join(map(str, stage.indices)),
        link=links.stage(stage),
        state=stage.state,
        inputs={name: value for name, value in run.inputs(stage).items() if f"reads {name}" not in lineage},
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


def _lineage(run: RunView, links: Links) -> Mapping[str, Mapping[str, list[Hyperlink]]]:
    """Return what each stage reads, by the inputs whose values are run ids of others, and what it is read by."""
    known = {stage.result.run_id: stage for stage in reversed(run.stages) if stage.result.run_id}
    found: dict[str, dict[str, list[Hyperlink]]] = {}
    for stage in run.stages:
        sources: dict[str, None] = {}
        for name, value in run.inputs(stage).items():
            values = value if isinstance(value, list) else [value]
            for run_id in dict.fromkeys(it for it in values if isinstance(it, str)):
                source = known.get(run_id, stage)
                if source is not stage:
                    found.setdefault(stage.name, {}).setdefault(f"reads {name}", []).append(links.stage(source))
                    sources[source.name] = None
        for name in sources:
            found.setdefault(name, {}).setdefault("is read by", []).append(links.stage(stage))
    return found
