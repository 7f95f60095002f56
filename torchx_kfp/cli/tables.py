"""Tables and trees for people. They fit the terminal, and nothing is cut for a file or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from torchx_kfp.cli.output import has_styles, print_text, printable, symbol, terminal_width

#: Columns between two of the table's columns, and those that a text keeps where it is cut, and where it is folded.
_GAP, _CUT, _FOLDED = 3, 12, 8
#: Columns where stdout is no terminal.
_WIDE = 10_000


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
    """A table on stdout. In a narrow terminal the columns that may be cut are, then some are folded, and at last all.

    Args:
        columns: the headings.
        rows: a text for each column.
        right: headings of the columns that are aligned to the right.
        cut: headings of the columns that may be cut.
        fold: headings of the columns that are folded first; the last column otherwise.
        dim: numbers of the rows that are less to look at.
        above: a line before the table.
        below: a line after it.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells, cut)
    folded = [(not fold and place == len(widths) - 1) or column in fold for place, column in enumerate(columns)]
    least = [min(width, _FOLDED) if folds else width for width, folds in zip(widths, folded, strict=True)]
    all_fold = (terminal_width() or _WIDE) < _total(least)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width, folds in zip(columns, widths, folded, strict=True):
        table.add_column(
            # Text: markup such as [0] in a name stays as it is.
            Text(printable(column)),
            justify="right" if column in right else "left",
            no_wrap=column in cut or not (folds or all_fold),
            overflow="ellipsis" if column in cut else "fold",
            max_width=width if column in cut else None,
        )
    for number, row in enumerate(cells):
        table.add_row(*map(Text, row), style="dim" if number in dim else None)
    print_text("\n".join(filter(None, [above, rendered(table), below])))


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
