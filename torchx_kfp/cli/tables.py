"""Tables for people. They fit the terminal, and nothing is cut for a file or a pipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from torchx_kfp.cli.output import print_text, printable, styled, symbol, terminal_width

_GAP = "   "
#: Columns that a text keeps where it is cut, and where it is folded.
_CUT, _FOLDED = 12, 8


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
    """A table on stdout.

    In a narrow terminal the columns that may be cut are, then some are folded, and at last all are.

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
    headings = [printable(column) for column in columns]
    widths = _cut_widths(columns, [headings, *cells], cut)
    widths = _folded_widths(widths, [place for place, column in enumerate(columns) if column in (fold or columns[-1:])])
    at_right = [column in right for column in columns]
    may_cut = [column in cut for column in columns]

    def lines(row: Sequence[str]) -> list[str]:
        pieces = [
            [_cut(cell, width)] if cutting else _fold(cell, width)
            for cell, width, cutting in zip(row, widths, may_cut, strict=True)
        ]
        height = max(map(len, pieces))
        return [
            _GAP.join(
                _aligned(piece[line] if line < len(piece) else "", width, to_right)
                for piece, width, to_right in zip(pieces, widths, at_right, strict=True)
            ).rstrip()
            for line in range(height)
        ]

    text = [above] if above else []
    text += [styled(line, bold=True) for line in lines(headings)]
    text.append(symbol("─", "-") * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for number, row in enumerate(cells):
        style: Callable[[str], str] = (lambda line: styled(line, dim=True)) if number in dim else str
        text += map(style, lines(row))
    if below:
        text.append(below)
    print_text("\n".join(text))


def fits(columns: Sequence[str], rows: Iterable[Sequence[str]], cut: Collection[str] = ()) -> bool:
    """Whether the table has room, with cut columns, but without folding."""
    width = terminal_width()
    return width is None or _total(_cut_widths(columns, [columns, *rows], cut)) <= width


def _cut_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str]) -> list[int]:
    """The width of each column, cut columns no wider than they have to be for the rest to fit."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = terminal_width()
    if room is None or _total(widths) <= room:
        return widths
    places = [place for place, column in enumerate(columns) if column in cut]
    widest = max((widths[place] for place in places), default=0)
    least = [max(_CUT, cell_len(column)) for column in columns]
    for cap in range(widest, _CUT - 1, -1):
        smaller = list(widths)
        for place in places:
            smaller[place] = min(widths[place], max(cap, least[place]))
        if _total(smaller) <= room or cap == _CUT:
            return smaller
    return widths


def _folded_widths(widths: Sequence[int], first: Sequence[int]) -> list[int]:
    room = terminal_width()
    folded = list(widths)
    for places, least in ((first, _CUT), (range(len(folded)), _FOLDED)):
        while room is not None and _total(folded) > room:
            widest = max(places, key=folded.__getitem__)
            if folded[widest] <= least:
                break
            folded[widest] -= 1
    return folded


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + symbol("…", "~")


def _fold(text: str, width: int) -> list[str]:
    """The text in lines of this width, broken at spaces where there are some."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in re.findall(r" *[^ ]+", text):
        if cell_len(line + word) <= width:
            line += word
            continue
        if line:
            lines.append(line)
        *full, line = chop_cells(word.lstrip(), width)
        lines += full
    return [*lines, line]


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
