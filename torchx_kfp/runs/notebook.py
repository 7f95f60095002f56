"""A run as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from torchx_kfp.text import clean, duration, shown

if TYPE_CHECKING:
    from torchx_kfp.runs.result import RunResult, StageResult

#: Rows of the table: a notebook is no place for thousands.
_ROWS = 100


def run_as_html(result: RunResult) -> str:
    """A table of the run's stages: state, duration, results, and why a stage did not succeed."""
    caption = f"{result.run_id}: {result.state}, {duration(result.duration)}"
    rows = [_row("th", ("stage", "state", "seconds", "results"))]
    rows += [_row("td", _cells(stage)) for stage in result.stages[:_ROWS]]
    if more := result.stages[_ROWS:]:
        rows.append(_row("td", (f"and {len(more):,} more", "", "", "")))
    return f"<table><caption>{_text(caption)}</caption>{''.join(rows)}</table>"


def _cells(stage: StageResult) -> tuple[str, str, str, str]:
    told = [f"{name}={shown(value)}" for name, value in stage.measures.items()]
    seconds = f"{stage.duration:.1f}" if stage.attempts else ""
    return stage.name, str(stage.state), seconds, ", ".join(told) or stage.reason


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return escape(clean(text))
