"""Print tables and trees. They fit the terminal; in a file or a pipe, nothing is cut, but long cells are folded."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.display.printing import has_styles, print_json, print_text, symbol, terminal_width

#: The gap between two columns, and the least widths: of a column that is cut, of the last column when it is folded, and
#: of other columns that are folded.
_GAP, _CUT, _FOLDED, _NARROW = 3, 12, 32, 8
#: The width if stdout is not a terminal, the widest cell there, and the indent of lines below a row's first cell.
_WIDE, _WIDEST_CELL, _INDENT = 10_000, 100, 4


class Column(NamedTuple):
    """A column of a table whose rows are the objects that ``--json`` prints.

    Attributes:
        heading: its heading.
        cell: returns what it shows of a row; by default, the value with the name of the heading.
        right: whether it is aligned to the right.
        cut: whether it may be cut.
        fold: whether it may be folded; if no column may, the last one is.
    """

    heading: str
    cell: Callable[[Mapping[str, Any]], object] | None = None
    right: bool = False
    cut: bool = False
    fold: bool = False

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the text of a row."""
        value = row[self.heading] if self.cell is None else self.cell(row)
        return "" if value is None else str(value)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    *,
    as_json: bool,
    above: str = "",
    below: str = "",
    short: Mapping[str, str] | None = None,
) -> None:
    """Print rows as JSON, or as a table without the columns that are empty.

    Args:
        rows: an object for each row.
        columns: what a table shows.
        as_json: whether to print the rows themselves.
        above: a line before the table.
        below: a line after it.
        short: shorter texts for those of the first column, if the table does not fit.
    """
    if as_json:
        print_json(rows)
        return
    filled = [column for column in columns if any(column.text(row) for row in rows)]
    headings, cut = [column.heading for column in filled], [column.heading for column in filled if column.cut]
    cells = [[column.text(row) for column in filled] for row in rows]
    if short and not fits(headings, cells, cut):
        cells = [[short.get(first, first), *others] for first, *others in cells]
    right = [column.heading for column in filled if column.right]
    fold = [column.heading for column in filled if column.fold]
    print_table(headings, cells, right=right, cut=cut, fold=fold, above=above, below=below)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    cut: Collection[str] = (),
    fold: Collection[str] = (),
    dim: Collection[int] = (),
    above: str = "",
    below: str = "",
) -> None:
    """Print a table on stdout. For a narrow terminal, some columns are cut and then others are folded.

    In a file or a pipe, only cells of more than 100 characters are folded.

    The first column identifies the row, for instance by a run id, and is never cut or folded. If the other columns do
    not fit next to it, they are printed below it.

    Args:
        columns: the headings.
        rows: a text for each column.
        right: headings of the columns that are aligned to the right.
        cut: headings of the columns that may be cut.
        fold: headings of the columns that may be folded; by default the last column.
        dim: numbers of the rows that are dimmed.
        above: a line before the table.
        below: a line after it.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells, cut)
    room = terminal_width()
    least = dict.fromkeys(fold, _NARROW) or {columns[-1]: _FOLDED}
    if room is None:
        cut, folded = (), [widths[0], *(min(width, _WIDEST_CELL) for width in widths[1:])]
    else:
        folded = _narrowed(widths, [least.get(column) for column in columns], room)
    if room is None or _total(folded) <= room:
        shown = _in_columns(columns, cells, folded, right, cut, dim)
    else:
        shown = _stacked(columns, cells, room, dim)
    print_text("\n".join(filter(None, [above, rendered(shown), below])))


def _in_columns(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Collection[str],
    cut: Collection[str],
    dim: Collection[int],
) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            # In a Text, [0] in a name is not read as markup.
            Text(_fold(printable(column), width)),
            justify="right" if column in right else "left",
            no_wrap=True,
            overflow="ellipsis" if column in cut else "fold",
            max_width=width,
        )
    for number, row in enumerate(cells):
        texts = (
            cell if column in cut else _fold(cell, width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        table.add_row(*map(Text, texts), style="dim" if number in dim else None)
    return table


def _stacked(columns: Sequence[str], cells: Sequence[Sequence[str]], room: int, dim: Collection[int]) -> RenderableType:
    """Put the first cell of each row on a separate line, and the others below it with their headings."""
    text = Text()
    indent = " " * _INDENT
    for number, row in enumerate(cells):
        rest = [(column, cell) for column, cell in zip(columns[1:], row[1:], strict=True) if cell]
        # A heading stays on the line of its text.
        texts = (cell if len(columns) == 2 else f"{column}\N{NO-BREAK SPACE}{cell}" for column, cell in rest)
        lines = _fold("   ".join(texts), max(_NARROW, room - _INDENT)).replace("\N{NO-BREAK SPACE}", " ").split("\n")
        below = "".join(f"\n{indent}{line}" for line in lines if line)
        text.append(f"{_fold(row[0], room)}{below}\n", "dim" if number in dim else "")
    return text


def _narrowed(widths: Sequence[int], least: Sequence[int | None], room: int | None) -> list[int]:
    """Narrow the columns that have a least width, the widest first, until they fit or all have it."""
    narrowed = list(widths)
    while room is not None and _total(narrowed) > room:
        wide = [number for number, limit in enumerate(least) if limit is not None and narrowed[number] > limit]
        if not wide:
            break
        narrowed[max(wide, key=narrowed.__getitem__)] -= 1
    return narrowed


def _fold(text: str, width: int) -> str:
    """Break the text into lines of this width: at spaces, else between the parts of a path, else anywhere."""
    lines = [""]
    for word, spaces in re.findall(r"([^ ]+)( *)", text):
        if lines[-1] and cell_len(lines[-1] + word) > width:
            lines.append("")
        while cell_len(word) > width:
            # A terminal of one column has no room for a wide character.
            piece = chop_cells(word, max(2, width))[0]
            end = max(piece.rfind(character) + 1 for character in "/=") or len(piece)
            lines[-1] += word[:end]
            lines.append("")
            word = word[end:]
        lines[-1] += word + spaces
    return "\n".join(line.rstrip() for line in lines)


def fits(columns: Sequence[str], rows: Iterable[Sequence[str]], cut: Collection[str] = ()) -> bool:
    """Return whether the table fits, with columns cut but without folding."""
    width = terminal_width()
    return width is None or _total(_widths(columns, list(rows), cut)) <= width


def rendered(what: RenderableType) -> str:
    """Render an object with rich for the terminal's width, with styles if the terminal has them."""
    styles = has_styles()
    console = Console(
        # Nothing is written to it: its encoding decides whether lines are drawn in ASCII.
        file=io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8"),
        force_terminal=styles,
        color_system="standard" if styles else None,
        width=terminal_width() or _WIDE,
    )
    with console.capture() as capture:
        console.print(what)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).strip("\n").replace("…", symbol("…", "~"))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str]) -> list[int]:
    """Return the width of each column; columns that may be cut are narrowed until the table fits."""
    headings = map(printable, columns)
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    least = [max(_CUT, cell_len(column)) if column in cut else None for column in columns]
    return _narrowed(widths, least, terminal_width())


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
