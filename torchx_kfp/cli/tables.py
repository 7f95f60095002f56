"""Tables for people. They fit the terminal, and nothing is cut for a file or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from torchx_kfp.cli.output import print_text, printable, styled, symbol, terminal_width

_GAP = "   "
#: Columns that a text keeps where it is cut, and where it is folded.
_CUT, _FOLDED, _LAST = 12, 8, 20


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    cut: Collection[str] = (),
    dim: Collection[int] = (),
    above: str = "",
    below: str = "",
) -> None:
    """A table on stdout.

    In a narrow terminal the columns that may be cut are, then the last one is folded, and at last all are.

    Args:
        columns: the headings.
        rows: a text for each column.
        right: headings of the columns that are aligned to the right.
        cut: headings of the columns that may be cut.
        dim: numbers of the rows that are less to look at.
        above: a line before the table.
        below: a line after it.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    headings = [printable(column) for column in columns]
    widths = _cut_widths(columns, [headings, *cells], cut)
    widths = _folded_widths(widths, [cell_len(heading) for heading in headings])
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


def _folded_widths(widths: list[int], headings: list[int]) -> list[int]:
    room = terminal_width()
    widths = list(widths)
    if room is None or _total(widths) <= room:
        return widths
    widths[-1] = max(min(widths[-1], max(_LAST, headings[-1])), widths[-1] - (_total(widths) - room))
    while _total(widths) > room and max(widths) > _FOLDED:
        widths[widths.index(max(widths))] -= 1
    return widths


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
    for word in text.split("  "):
        joined = f"{line}  {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = chop_cells(word, width) or [""]
        lines += full
    return [*lines, line]


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
