"""What checks find: a verdict each, with the way out; and how long a check may take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from torchx_kfp.common.text import printable, shorten
from torchx_kfp.errors import TorchxKfpError

T = TypeVar("T")
#: How many characters of an error's message are shown.
_LONGEST = 900
#: Seconds that an action still has after Ctrl-C.
_SETTLING = 5.0


class Level(Enum):
    """The meaning of a verdict; the value is its wording."""

    OK = "ok"
    #: Something is not as it should be, and most things work nevertheless.
    WARNING = "warning"
    #: Something needed is missing.
    MISSING = "missing"
    #: The check could not be made, because of another verdict or for want of an option.
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """One fact.

    Attributes:
        level: what it means.
        subject: what was looked at.
        found: what was found, as a sentence.
        way_out: what to do, as a sentence; empty if there is nothing to do, or if ``found`` says it.
    """

    level: Level
    subject: str
    found: str
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.level.value:8} {self.subject}: {f'{self.found} {self.way_out}'.strip()}"


def ok(subject: str, found: str) -> Verdict:
    """Return a verdict about something that is as it should be."""
    return Verdict(Level.OK, subject, found)


def warning(subject: str, found: str, way_out: str = "") -> Verdict:
    """Return a verdict about something with which most things work nevertheless."""
    return Verdict(Level.WARNING, subject, found, way_out)


def missing(subject: str, found: str, way_out: str = "") -> Verdict:
    """Return a verdict about something needed that is missing."""
    return Verdict(Level.MISSING, subject, found, way_out)


def skipped(subject: str, why: str) -> Verdict:
    """Return a verdict about something that was not looked at."""
    return Verdict(Level.SKIPPED, subject, why)


def said(error: BaseException) -> str:
    """Return the message of an error in one line."""
    text = str(error) if isinstance(error, TorchxKfpError) else f"{type(error).__name__}: {error}"
    return shorten(printable(" ".join(text.split())), _LONGEST)


def within(seconds: float, action: Callable[[], T]) -> T:
    """Return what the action returns, or raise what it raises.

    Args:
        seconds: how long it may take. It is left behind after that: a library that hangs cannot be interrupted.
        action: anything that may run in another thread.

    Raises:
        TimeoutError: it has taken longer.
    """
    values: list[T] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            values.append(action())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    try:
        threading.Thread(target=run, name="torchx-kfp-doctor", daemon=True).start()
        ended.wait(seconds)  # a thread whose join() a signal interrupts counts as ended
    except BaseException:  # a signal: the action may be about to remove what it has made
        ended.wait(min(seconds, _SETTLING))
        raise
    if errors:
        raise errors[0]
    if not values:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return values[0]


def guarded(subject: str, checks: Callable[[], Iterator[Verdict]]) -> Iterator[Verdict]:
    """Yield the verdicts of checks; an error that they raise is the last one.

    Args:
        subject: what they look at.
        checks: returns their verdicts.
    """
    try:
        yield from checks()
    except Exception as error:  # also of a library: other checks go on
        yield missing(subject, said(error))
