"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

#: Columns where stdout is no terminal: nothing is cut for a file or a pipe.
_WIDE = 10_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A table on stdout, in the terminal's width.

    Args:
        columns: the headings.
        rows: a text for each column.
        right: headings of the columns that are aligned to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # Text: markup such as [0] in a stage's name stays as it is.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def print_json(value: Any) -> None:
    """The value as JSON on stdout; numbers that JSON has not are text, ``"NaN"``."""
    click.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def show_results(results: Mapping[str, Any]) -> str:
    """Results in one line: ``accuracy=0.93 model_uri=...``."""
    return "  ".join(f"{name}={_show(value)}" for name, value in results.items())


def _show(value: Any) -> str:
    # Six significant digits read well; --json has all.
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
