"""Text for people: lists of names, shortened values, durations, suggestions, and text that is safe for a terminal.

All foreign text (names, values, errors, log lines) passes through ``clean`` or ``printable`` on its way to a terminal,
in the modules that write: ``cli.display.printing`` for commands, ``runs.watch.Terminal`` for a run in progress,
``report.page`` for reports. Control characters can move the cursor and set titles and clipboards; format characters can
reverse the direction of writing, so that text reads as something else.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from torchx_kfp.errors import UnknownNameError

V = TypeVar("V")

#: Replaces a character that is not shown.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: The number of names that a message lists.
LISTED = 5
#: Matches a UUID in lower case, such as the id of a run on KFP.
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: The number of names with which a misspelled one is compared.
_COMPARED = 2000
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
#: Matches a user with a password in a URL.
_USER = re.compile(r"://[^/@:\s'\"]*:[^/@\s'\"]*@")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
#: Matches an escape sequence that hides the following text.
_CONCEALS = re.compile(r"[\[;]0*8[;m]")
#: Newlines and tabs are layout; many scripts and emoji need the two joiners.
_KEPT = "\n\t\u200c\u200d"


# Lists and numbers


def listed(names: Iterable[str], most: int = LISTED) -> str:
    """List the first names and count the rest: ``a, b and 1,000 more``; "" without names.

    Args:
        names: the names; each is made ``printable``.
        most: the most names.
    """
    printed = [printable(name) for name in names]
    more = f" and {len(printed) - most:,} more" if len(printed) > most else ""
    return ", ".join(printed[:most]) + more


def joined(names: Iterable[str]) -> str:
    """Join all names in quotes: ``'a', 'b' and 'c'``."""
    quoted = [repr(name) for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 file``, ``1,000 files``, ``0 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration in at most two units: ``0.35s``, ``9.0s``, ``12m 05s``, ``3h 02m``, ``2d 07h``, ``30d``.

    Args:
        seconds: the duration; negative ones, from clocks that were set back, count as 0.
        whole: omit fractions of a second, as for a ticking clock: ``9s``.
    """
    seconds = max(0.0, seconds)
    if whole:
        seconds = int(seconds)
    if seconds < 59.95:
        if whole or seconds < 0.001:
            return f"{int(seconds)}s"
        return f"{seconds:.1f}s" if seconds >= 0.9995 else f"{seconds:.2g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    hours = minutes // 60
    if hours < 48:
        return f"{hours}h {minutes % 60:02}m"
    return f"{hours // 24}d {hours % 24:02}h" if hours < 240 else f"{hours // 24:,}d"


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as ``45s``, ``1.5h``, ``1h30m`` or ``12m 05s`` (units: s, m, h, d, w).

    Raises:
        ValueError: the text is not a positive duration.
    """
    parts = _DURATION.findall(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text.replace(" ", "") or not 0 < seconds < float("inf"):
        raise ValueError(f"{text!r} is not a duration. Write, for example, 30d, 12h, 1h30m or 45s.")
    return seconds


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def moment(seconds: float) -> str:
    """Format a time (seconds since the epoch) with its time zone: ``2026-01-31 14:05:09 +0000``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


# Shortened text


def shown(value: object, limit: int = 120) -> str:
    """Return the value's repr for a message; beyond ``limit``, its beginning and length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, or deeply nested lists
        return f"a very large {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def without_passwords(text: str) -> str:
    """Return a message without users and passwords in URLs, which driver errors may contain."""
    return _USER.sub("://...@", text)


def shorten(text: str, limit: int, *, keep: str = "start") -> str:
    """Shorten text to ``limit`` characters; ``…`` replaces the rest.

    Args:
        text: a text in one line.
        limit: at least 1.
        keep: the part to keep: ``"start"``, or ``"ends"`` (for names).
    """
    if len(text) <= limit:
        return text
    room = limit - 1
    head = {"start": room, "ends": room * 3 // 5}[keep]
    return f"{text[:head]}…{text[len(text) - (room - head) :]}"


# Suggestions


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a message that suggests the most similar name, after a space, or "" if none is similar.

    Prefixes of names also match: ``digtis`` is similar to ``digits-20260101-120000``.

    Args:
        name: the wrong name; callers may pass non-text values.
        names: the known names.
    """
    near = most_similar(str(name), names)
    return f" Did you mean {near!r}?" if near is not None else ""


def did_you_mean_path(path: str | os.PathLike[str], suffixes: Collection[str] = ()) -> str:
    """Return a message that suggests the most similar path in the same folder, as ``did_you_mean`` does for names.

    Args:
        path: a path that does not exist or has the wrong type.
        suffixes: the suffixes of possible files; empty if a folder is meant.
    """

    def stem(name: str) -> str:  # a common suffix does not make names similar
        return os.path.splitext(name)[0] if suffixes else name

    folder, wrong = os.path.split(path)
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = sorted(entry.name for entry in entries if (entry.is_file() if suffixes else entry.is_dir()))
    except OSError:  # there is nothing to suggest
        return ""
    stems = {stem(name): name for name in names if name.endswith(tuple(suffixes) or "")}
    near = most_similar(stem(wrong), stems)
    return "" if near is None else f" Did you mean {os.path.join(folder, stems[near])!r}?"


def most_similar(wrong: str, names: Iterable[str]) -> str | None:
    """Return the name that ``did_you_mean`` suggests, or None."""
    known = list(itertools.islice(names, _COMPARED))
    near = difflib.get_close_matches(wrong, known, n=1)
    if not near and wrong:
        # Of the names with the same beginning, the first one.
        beginnings = {each[: len(wrong)]: each for each in reversed(known)}
        near = [beginnings[found] for found in difflib.get_close_matches(wrong, beginnings, n=1)]
    return near[0] if near else None


# Values by name


class SuggestingDict(dict[str, V]):
    """A dict that raises ``UnknownNameError``, a KeyError, for an unknown name.

    Args:
        values: the values by name.
        owner: the owner of the values, as the beginning of a sentence: ``The stage 'train'``.
        kind: the kind of value, such as ``result``.
        way_out: the remedy, which ends the message.
    """

    def __init__(self, values: Mapping[str, V], owner: str, kind: str, way_out: str = "") -> None:
        super().__init__(values)
        self._owner = owner
        self._kind = kind
        self._way_out = way_out

    def __missing__(self, name: object) -> V:
        text = describe_unknown(self._owner, self._kind, name, self)
        raise UnknownNameError(f"{text} {self._way_out}".rstrip())


def describe_unknown(owner: str, kind: str, name: object, known: Iterable[str]) -> str:
    """Return a message about an unknown name that lists the known ones.

    Args:
        owner: the owner of the values, as the beginning of a sentence: ``The stage 'train'``.
        kind: the kind of value, such as ``result``; an ``s`` is added for the plural.
        name: the unknown name.
        known: the known names.
    """
    names = list(known)
    there = f"Its {kind}s: {listed(map(repr, names), 20)}." if names else "It has none."
    return f"{owner} has no {kind} {shown(name)}.{did_you_mean(name, names)} {there}"


# Terminals


def is_unsafe(character: str) -> bool:
    """Return whether a character is unsafe in a terminal: controls, writing directions, line ends."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _KEPT


def clean(text: str, *, colours: bool = False) -> str:
    """Replace each character that is unsafe in a terminal; newlines and tabs stay.

    Args:
        text: any text.
        colours: keep escape sequences for colors, bold and dim text.
    """
    if text.isprintable():
        return text
    if not colours:
        # A large page has only few different characters.
        return text.translate({ord(character): REPLACEMENT for character in set(text) if is_unsafe(character)})
    pieces = _COLOUR.split(text)
    # Every second piece is an escape sequence.
    pieces[::2] = map(clean, pieces[::2])
    pieces[1::2] = ["" if _CONCEALS.search(piece) else piece for piece in pieces[1::2]]
    return "".join(pieces)


def clean_line(line: bytes) -> str:
    """Decode a log line for a terminal: colors stay, unsafe characters are replaced."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    # A progress bar overwrites its line: keep its last text.
    return clean(text.rsplit("\r", 1)[-1], colours=True)


def printable(text: str, *, keep: str = "") -> str:
    """Return text as one line: line ends, tabs and unsafe characters become Python's escapes.

    Args:
        text: any text.
        keep: line ends or tabs to keep.
    """
    if text.isprintable():
        return text
    escaped = set("\n\t") - set(keep)
    return "".join(repr(each)[1:-1] if each in escaped or is_unsafe(each) else each for each in text)


def escape_json(text: str) -> str:
    """Escape characters in JSON that are unsafe in a terminal; they only occur inside strings."""
    if text.isprintable():
        return text
    return "".join(json.dumps(character)[1:-1] if is_unsafe(character) else character for character in text)
