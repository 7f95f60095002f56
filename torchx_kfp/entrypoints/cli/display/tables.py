"""Print tables and trees. rich fits them into the terminal; in a file or a pipe, only long cells are folded.

rich is loaded when there is something to print.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.display.printing import has_styles, print_json, print_text, terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

#: The gap between two columns, and the width to which any column but the first may be folded.
_GAP, _LEAST = 3, 12
#: The width if stdout is not a terminal, the widest cell there, and the least width, which a terminal may fold.
_WIDE, _WIDEST_CELL, _NARROW = 10_000, 100, 20
#: The indent of lines below a row's first cell.
_INDENT = 4


class Column(NamedTuple):
    """A column of a table whose rows are the objects that ``--json`` prints.

    Attributes:
        heading: its heading.
        cell: returns what it shows of a row; by default, the value with the name of the heading.
        right: whether it is aligned to the right.
    """

    heading: str
    cell: Callable[[Mapping[str, Any]], object] | None = None
    right: bool = False

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the text of a row."""
        value = row[self.heading] if self.cell is None else self.cell(row)
        return "" if value is None else printable(str(value))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    *,
    as_json: bool = False,
    above: str = "",
    dim: Callable[[Mapping[str, Any]], bool] = lambda row: False,
) -> None:
    """Print rows as JSON, or as a table without the columns that are empty; print no table without rows.

    Nothing is cut: cells are folded, and the first one, which identifies the row, is never. If the columns do not fit
    next to each other, each row is a paragraph.

    Args:
        rows: an object for each row.
        columns: what a table shows.
        as_json: whether to print the rows themselves.
        above: a line before the table.
        dim: tells whether a row is dimmed.
    """
    if as_json:
        print_json(rows)
        return
    filled = [column for column in columns if any(map(column.text, rows))]
    if filled:
        shown = [([column.text(row) for column in filled], "dim" if dim(row) else "") for row in rows]
        print_text("\n".join(filter(None, [above, rendered(_fitted(filled, shown))])))


def print_facts(facts: Iterable[tuple[str, str, str]], above: str) -> None:
    """Print what is known of one thing as a table: of which kind each fact is, its name, and its value."""
    names = ("what", "name", "value")
    print_rows([dict(zip(names, fact, strict=True)) for fact in facts], list(map(Column, names)), above=above)


def _fitted(columns: Sequence[Column], rows: Sequence[tuple[list[str], str]]) -> RenderableType:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    headings, room = [printable(column.heading) for column in columns], terminal_width()
    widths = [max(map(cell_len, column)) for column in zip(headings, *(cells for cells, _ in rows), strict=True)]
    if room is not None and widths[0] + sum(_GAP + min(width, _LEAST) for width in widths[1:]) > room:
        paragraphs: list[RenderableType] = []
        for cells, style in rows:
            facts = (f"{heading} {cell}" for heading, cell in zip(headings[1:], cells[1:], strict=True) if cell)
            below = Text("   ".join(facts), style)
            paragraphs += [Text(cells[0], style), *([Padding(below, (0, 0, 0, _INDENT))] if below else [])]
        return Group(*paragraphs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, (column, heading) in enumerate(zip(columns, headings, strict=True)):
        widest = _WIDEST_CELL if at and room is None else None
        # In a Text, [0] in a name is not read as markup.
        table.add_column(
            Text(heading),
            justify="right" if column.right else "left",
            no_wrap=not at,
            overflow="fold",
            max_width=widest,
        )
    for cells, style in rows:
        table.add_row(*map(Text, cells), style=style)
    return table


def rendered(what: RenderableType) -> str:
    """Render an object with rich for the terminal's width, with styles if the terminal has them."""
    from rich.console import Console

    styles = has_styles()
    console = Console(
        # Nothing is written to it: its encoding decides whether lines are drawn in ASCII.
        file=io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8"),
        force_terminal=styles,
        color_system="standard" if styles else None,
        width=max(_NARROW, terminal_width() or _WIDE),
    )
    with console.capture() as capture:
        console.print(what)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")
