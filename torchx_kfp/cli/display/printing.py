"""What commands print: text, JSON and CSV. Tables are in ``tables``."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.text import clean, escape_json, printable

_PROGRAM = "torchx-kfp"
#: Of a curve in one line, from below.
_LEVELS = "▁▂▃▄▅▆▇█"


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none: nothing is cut for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_styles() -> bool:
    """Whether stdout is a terminal that shall have bold and dim text."""
    return is_capable(sys.stdout) and wants_colors()


def is_capable(stream: TextIO) -> bool:
    """Whether the stream is a terminal that knows more than lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colors() -> bool:
    """Whether the user has not asked for none: https://no-color.org."""
    return not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """The text in bold or dim, where stdout shall have it."""
    return click.style(text, **style) if has_styles() else text


def symbol(character: str, otherwise: str) -> str:
    """The character, or another one where stdout's encoding has it not."""
    return character if encodable(character) == character else otherwise


def print_json(value: Any) -> None:
    """The value as JSON on stdout; numbers that JSON has not are text, ``"NaN"``."""
    # Escapes only where stdout, or UTF-8 itself, cannot have a character as it is.
    text = escape_json(json.dumps(json_ready(value), indent=2, ensure_ascii=False, allow_nan=False))
    print_text(text if encodable(text) == text else json.dumps(json_ready(value), indent=2, allow_nan=False))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table as CSV on stdout, with numbers, NaN and infinities spelled so that pandas reads them back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    print_text(text.getvalue())


def print_text(text: str) -> None:
    """The text on stdout, clean, with escapes for what its encoding has not."""
    _echo(encodable(clean(text.removesuffix("\n"), colours=True)) + "\n")


def print_bytes(data: bytes) -> None:
    """The bytes on stdout, as they are and at once."""
    _echo(data)


def _echo(what: str | bytes) -> None:
    try:
        click.echo(what, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TorchxKfpError(f"The output cannot be written: {error.strerror}.") from error


def print_message(text: str, *, colours: bool = False) -> None:
    """A message on stderr, clean; with the colours that it quotes from a log, if it does."""
    click.echo(clean(text, colours=colours), err=True)


def encodable(text: str) -> str:
    """The text with escapes for what stdout's encoding has not."""
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
    return "  ".join(f"{printable(name)}={show_value(value)}" for name, value in results.items())


def without_run(text: str, run: str | None) -> str:
    """The text without this run's id, which a terminal shows above it; a pipe gets all."""
    return text.replace(f"{run}/", f"{symbol('…', '...')}/") if run and sys.stdout.isatty() else text


def show_value(value: Any) -> str:
    """A value in one line and in few characters."""
    if isinstance(value, float):
        # Six significant digits read well; json and csv have all.
        text = f"{value:.6g}"
        return text if set(text) & set(".en") else f"{text}.0"
    if isinstance(value, str):
        return repr(value) if not value or not value.isprintable() or " " in value else value
    if isinstance(value, bool) or value is None or isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value)


def sparkline(values: Sequence[float], width: int = 12) -> str:
    """The values as a line of so many characters; empty where stdout has none for it, or where there is no line."""
    if len(values) < 2 or symbol(_LEVELS, "") == "":
        return ""
    parts = min(width, len(values))
    shown = [values[part * (len(values) - 1) // (parts - 1)] for part in range(parts)]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Halves: the difference of two large numbers may be infinite.
    room = high / 2 - low / 2
    most = len(_LEVELS) - 1

    def level(value: float) -> str:
        if value != value:
            return " "
        value = min(high, max(low, value))
        return _LEVELS[round((value / 2 - low / 2) / room * most) if room else most // 2]

    return "".join(map(level, shown)).rstrip()


def is_number(value: Any) -> bool:
    """Whether the value is a number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _csv_cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, str):
        # CSV has no escapes: those of Python.
        return printable(value, keep="\n\t")
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | Mapping | list) else repr(value)


def json_ready(value: Any) -> Any:
    """The value for JSON: numbers that it has not are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value
