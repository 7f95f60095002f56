"""Tables and trees for people. They fit the terminal, and nothing is cut for a file or a pipe."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from torchx_kfp.cli.display.printing import has_styles, print_text, symbol, terminal_width
from torchx_kfp.text import printable

#: Columns between two of the table's columns, and those that a text keeps where it is cut, and where it is folded: in
#: the column that is folded where no other is named, and in the others.
_GAP, _CUT, _FOLDED, _NARROW = 3, 12, 32, 8
#: Columns where stdout is no terminal, and those before the lines below a row's first cell.
_WIDE, _INDENT = 10_000, 4


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
    """A table on stdout. In a narrow terminal the columns that may be cut are, then some are folded.

    The first column, which tells what a row is about (a run id), is neither: where there is no room for the others
    beside it, they stand below it.

    Args:
        columns: the headings.
        rows: a text for each column.
        right: headings of the columns that are aligned to the right.
        cut: headings of the columns that may be cut.
        fold: headings of the columns that are folded; the last column otherwise.
        dim: numbers of the rows that are less to look at.
        above: a line before the table.
        below: a line after it.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells, cut)
    room = terminal_width() or _WIDE
    least = dict.fromkeys(fold, _NARROW) or {columns[-1]: _FOLDED}
    folded = _narrowed(widths, [least.get(column) for column in columns], room)
    shown = _beside(columns, cells, folded, right, cut, dim) if folded else _stacked(columns, cells, room, dim)
    print_text("\n".join(filter(None, [above, rendered(shown), below])))


def _beside(
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
            # Text: markup such as [0] in a name stays as it is.
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
    """Each row's first cell on a line of its own, and the others below it with their headings."""
    text = Text()
    indent = " " * _INDENT
    for number, row in enumerate(cells):
        others = [(column, cell) for column, cell in zip(columns[1:], row[1:], strict=True) if cell]
        # A heading stays with its text.
        told = (cell if len(columns) == 2 else f"{column}\N{NO-BREAK SPACE}{cell}" for column, cell in others)
        lines = _fold("   ".join(told), max(_NARROW, room - _INDENT)).replace("\N{NO-BREAK SPACE}", " ").split("\n")
        below = "".join(f"\n{indent}{line}" for line in lines if line)
        text.append(f"{_fold(row[0], room)}{below}\n", "dim" if number in dim else "")
    return text


def _narrowed(widths: Sequence[int], least: Sequence[int | None], room: int) -> list[int] | None:
    """The widths with the widest of the columns that may be folded made narrower; None where that is not enough."""
    narrowed = list(widths)
    while _total(narrowed) > room:
        places = [place for place, limit in enumerate(least) if limit is not None and narrowed[place] > limit]
        if not places:
            return None
        narrowed[max(places, key=narrowed.__getitem__)] -= 1
    return narrowed


def _fold(text: str, width: int) -> str:
    """The text in lines of this width, broken at spaces, else in front of a part of a path, else anywhere."""
    lines = [""]
    for word, spaces in re.findall(r"([^ ]+)( *)", text):
        if lines[-1] and cell_len(lines[-1] + word) > width:
            lines.append("")
        while cell_len(word) > width:
            piece = chop_cells(word, width)[0]
            end = max(piece.rfind(character) + 1 for character in "/=") or len(piece)
            lines[-1] += word[:end]
            lines.append("")
            word = word[end:]
        lines[-1] += word + spaces
    return "\n".join(line.rstrip() for line in lines)


def fits(columns: Sequence[str], rows: Iterable[Sequence[str]], cut: Collection[str] = ()) -> bool:
    """Whether the table has room, with cut columns, but without folding."""
    width = terminal_width()
    return width is None or _total(_widths(columns, list(rows), cut)) <= width


def rendered(what: RenderableType) -> str:
    """What rich makes of it, as wide as the terminal, and in its styles where it has some."""
    encoding = sys.stdout.encoding or "utf-8"
    # Not stdout itself: an error of it is told apart, and lines are stripped.
    file = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace", write_through=True)
    styles = has_styles()
    console = Console(
        file=file,
        force_terminal=styles,
        color_system="standard" if styles else None,
        width=terminal_width() or _WIDE,
    )
    console.print(what)
    text = file.buffer.getvalue().decode(encoding)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(lines).strip("\n").replace("…", symbol("…", "~"))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str]) -> list[int]:
    """The width of each column; of those that may be cut, no more than what lets the rest fit."""
    headings = map(printable, columns)
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    room = terminal_width()
    least = [max(_CUT, cell_len(column)) for column in columns]
    # The widest first, until it is as wide as the next.
    while room is not None and _total(widths) > room:
        places = [place for place, column in enumerate(columns) if column in cut and widths[place] > least[place]]
        if not places:
            break
        widths[max(places, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
