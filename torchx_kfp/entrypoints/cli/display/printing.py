"""Print text, JSON, CSV, messages and tables.

rich fits tables into the terminal; in a file or a pipe, only long cells are folded. It is loaded when there is a table
to print.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import select
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from torchx_kfp.common.text import clean, counted, escape_json, printable, shorten, size_text, without_passwords
from torchx_kfp.errors import CorruptResultError
from torchx_kfp.tracking.record_tracker import StoredFiles

if TYPE_CHECKING:
    from rich.console import RenderableType


_PROGRAM = "torchx-kfp"
#: The key of the command line's words in a command's context.
WORDS = "torchx_kfp.words"


def terminal_width() -> int | None:
    """Return the width of stdout's terminal; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_styles() -> bool:
    """Return whether stdout gets bold and dim text."""
    return is_capable(sys.stdout) and wants_colors()


def is_capable(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that understands escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colors() -> bool:
    """Return whether colors are allowed: the user has not set NO_COLOR (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """Return the text with a style if stdout has styles."""
    return click.style(text, **style) if has_styles() else text


def print_json(value: Any) -> None:
    """Print the value as JSON on stdout; NaN and infinities become text such as ``"NaN"``."""
    try:
        text = json_text(value, indent=2)
    except RecursionError:
        raise CorruptResultError(
            "A record is nested too deeply for JSON: another program wrote it. Print a table instead."
        ) from None
    print_text(text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return the value as JSON for stdout; only characters that are unsafe or not in the encoding are escaped."""
    is_ascii = not is_utf8(sys.stdout)
    return escape_json(json.dumps(json_ready(value), indent=indent, ensure_ascii=is_ascii, allow_nan=False))


def is_utf8(stream: TextIO) -> bool:
    """Return whether the stream can encode all text."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as CSV on stdout; pandas reads its numbers, NaN and infinities back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    print_text(text.getvalue())


def print_text(text: str) -> None:
    """Print the text on stdout without control characters."""
    click.echo(clean(text.removesuffix("\n"), colours=True))


def print_bytes(data: bytes) -> None:
    """Print the bytes on stdout, unchanged and at once."""
    click.echo(data, nl=False)


def print_message(text: str, *, colours: bool = False) -> None:
    """Print a message on stderr without control characters and passwords; ``colours`` keeps colors of quoted logs."""
    click.echo(clean(without_passwords(text), colours=colours), err=True)


class MessageHandler(logging.Handler):
    """Prints warnings on stderr without control characters."""

    def emit(self, record: logging.LogRecord) -> None:
        print_message(record.getMessage())


def for_stderr(text: str) -> str:
    """Return lines for stderr: colors end with each line, or are removed if stderr has no colors."""
    if "\x1b" not in text:
        return text
    if not (is_capable(sys.stderr) and wants_colors()):
        return click.unstyle(text)
    return "\n".join(f"{line}\x1b[0m" if "\x1b" in line else line for line in text.split("\n"))


def is_read() -> bool:
    """Return whether stdout's pipe still has a reader; true for files."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(0)


def this_command(*words: str) -> str:
    """Return a command line of this program for a shell, with its path if it is not on PATH."""
    program = Path(sys.argv[0])
    installed = shutil.which(_PROGRAM)
    if program.name == _PROGRAM and (installed is None or not program.samefile(installed)):
        inside = program.is_relative_to(Path.cwd()) and Path.cwd() != Path("/")
        return shlex.join([str(program.relative_to(Path.cwd()) if inside else program), *words])
    return shlex.join([_PROGRAM, *words])


def this_call() -> tuple[str, ...]:
    """Return the arguments of the current command line."""
    words: tuple[str, ...] = click.get_current_context().meta[WORDS]
    return words


def show_results(results: Mapping[str, Any], *, most: int | None = None) -> str:
    """Format results in one line: ``accuracy=0.93 model_uri=...``; ``most`` is that of ``show_value``."""
    return "  ".join(f"{printable(name)}={show_value(value, most=most)}" for name, value in results.items())


def without_run(text: str, run: str | None) -> str:
    """Remove the run's id from the text for a terminal, which shows the id above; pipes get the full text."""
    return text.replace(f"{run}/", "…/") if run and sys.stdout.isatty() else text


def show_stored(stored: StoredFiles | None) -> str:
    """Format the size of a stored artifact, and the number of files of a folder."""
    if stored is None:
        return ""
    return size_text(stored.size) + ("" if stored.count is None else f" in {counted(stored.count, 'file')}")


def show_value(value: Any, *, most: int | None = None) -> str:
    """Format a value briefly, in one line; beyond ``most`` characters, only both ends are shown."""
    text = _in_a_line(value)
    return text if most is None else shorten(text, most, keep="ends")


def _in_a_line(value: Any) -> str:
    if isinstance(value, float):
        # Six significant digits are legible; JSON and CSV have all digits.
        text = f"{value:.6g}"
        return text if set(text) & set(".en") else f"{text}.0"
    if isinstance(value, str):
        return repr(value) if not value or not value.isprintable() or " " in value else value
    if isinstance(value, bool) or value is None or isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def is_number(value: Any) -> bool:
    """Return whether the value is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _csv_cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, str):
        # CSV has no escapes, so Python's are used.
        return printable(value, keep="\n\t")
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | Mapping | list) else repr(value)


def json_ready(value: Any) -> Any:
    """Return the value for JSON, with text for NaN and infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


#: The gap between two columns, and the least width to which a column, except the first, is folded.
_GAP, _LEAST = 3, 12
#: The width and the widest cell if stdout is not a terminal, and the least width of a terminal.
_WIDE, _WIDEST_CELL, _NARROW = 10_000, 100, 20
#: The indent of lines below a row's first cell.
_INDENT = 4


class Column(NamedTuple):
    """A column of a table whose rows are the objects of ``--json``.

    Attributes:
        cell: returns the cell of a row. Default: the value named like the heading.
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
    """Print rows as JSON, or as a table without empty columns; without rows, no table is printed.

    Cells are folded, except for the first one, which identifies the row. If the columns do not fit, each row becomes a
    paragraph.

    Args:
        above: a line before the table.
        dim: returns whether a row is dimmed.
    """
    if as_json:
        print_json(rows)
        return
    filled = [column for column in columns if any(map(column.text, rows))]
    if filled:
        shown = [([column.text(row) for column in filled], "dim" if dim(row) else "") for row in rows]
        print_text("\n".join(filter(None, [above, rendered(_fitted(filled, shown))])))


def print_facts(facts: Iterable[tuple[str, str, str]], above: str) -> None:
    """Print facts as a table: the kind, name and value of each."""
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
    """Render an object with rich for the terminal's width and styles."""
    from rich.console import Console

    styles = has_styles()
    console = Console(
        # Nothing is written to it; its encoding selects ASCII or Unicode lines.
        file=io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8"),
        force_terminal=styles,
        color_system="standard" if styles else None,
        width=max(_NARROW, terminal_width() or _WIDE),
    )
    with console.capture() as capture:
        console.print(what)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")
