"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from torchx_kfp.errors import TorchxKfpError

#: Columns where stdout is no terminal: nothing is cut for a file or a pipe.
_WIDE = 10_000
_PROGRAM = "torchx-kfp"


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

    terminal = sys.stdout.isatty()
    # Not stdout itself: an error of it is told apart, and lines are stripped.
    file = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8", "backslashreplace", write_through=True)
    console = Console(file=file, force_terminal=terminal, width=None if terminal else _WIDE)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # Only the last column, that of long texts, is broken where the terminal is narrow.
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column != columns[-1]
        )
    for row in rows:
        # Text: markup such as [0] in a stage's name stays as it is.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    file.seek(0)
    print_text("\n".join(line.rstrip() for line in file.read().splitlines()))


def print_json(value: Any) -> None:
    """The value as JSON on stdout; numbers that JSON has not are text, ``"NaN"``."""
    # Escapes only where stdout, or UTF-8 itself, cannot have a character as it is.
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    print_text(text if _encodable(text) == text else json.dumps(_plain(value), indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """The text on stdout, with escapes for what its encoding has not."""
    try:
        click.echo(_encodable(text.removesuffix("\n")))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TorchxKfpError(f"The output cannot be written: {error.strerror}.") from error


def _encodable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def this_command(*words: str) -> str:
    """A command line of this program to be pasted into a shell: its path, where its name alone would not find it."""
    program = Path(sys.argv[0])
    found = shutil.which(_PROGRAM)
    if program.name == _PROGRAM and (found is None or not program.samefile(found)):
        inside = program.is_relative_to(Path.cwd())
        return shlex.join([str(program.relative_to(Path.cwd()) if inside else program), *words])
    return shlex.join([_PROGRAM, *words])


def show_results(results: Mapping[str, Any]) -> str:
    """Results in one line: ``accuracy=0.93 model_uri=...``."""
    return "  ".join(f"{name}={_show(value)}" for name, value in results.items())


def _show(value: Any) -> str:
    if isinstance(value, float):
        # Six significant digits read well; --json has all.
        text = f"{value:.6g}"
        return text if set(text) & set(".en") else f"{text}.0"
    if isinstance(value, str) and (not value or not value.isprintable() or " " in value):
        return repr(value)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
