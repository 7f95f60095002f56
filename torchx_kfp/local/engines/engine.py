"""The interface of engines, and the one that runs attempts as processes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from torchx_kfp.local.engines.process import StageProcess

if TYPE_CHECKING:
    from torchx_kfp.local.engines.attempt import AttemptPlan


class StartError(Exception):
    """An attempt could not be started, or was lost; ``exit_code`` is a shell's for it, if any."""

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class RunningStage(Protocol):
    """An attempt that was started. Its output is read from ``pipe``, which the reader closes."""

    pipe: int

    def wait(self, output_closed: threading.Event) -> int:
        """Wait for its end, and return its exit code, negative for a signal.

        Args:
            output_closed: is set when the output has been read to its end.

        Raises:
            StartError: it could not be started after all, or was lost.
        """

    def terminate(self, grace: float) -> None:
        """Ask it to end within ``grace`` seconds, and return at once."""

    def kill(self) -> None:
        """Kill it, and return at once."""

    def describe(self, code: int) -> str:
        """Describe how an attempt ended that has this exit code."""


class TimeLimit:
    """Ends an attempt that is still running after some seconds: asks first, and kills ``grace`` seconds later."""

    def __init__(self, running: RunningStage, seconds: float | None, grace: float) -> None:
        """Prepare the limit; ``seconds`` is None if there is none."""
        self.is_over = False
        self._running = running
        self._grace = grace
        self._timer = None if seconds is None else _timer(seconds, self._end)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._timer = _timer(self._grace, self._running.kill)
        self._timer.start()
        self._running.terminate(self._grace)


def _timer(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), action)
    timer.daemon = True
    return timer


class Engine(Protocol):
    """A way to run attempts. Its methods are called from many threads."""

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Start an attempt and return at once: anything that takes long belongs to ``RunningStage.wait``.

        Raises:
            StartError: it cannot be started.
        """

    def image_id(self, image: str) -> str:
        """Return an id of the image as it is now; empty if it is missing, or images are not used."""


class Processes:
    """Attempts as processes of this machine."""

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Start the process.

        Raises:
            StartError: there is no such command, or its words cannot be given to one.
        """
        try:
            return StageProcess(attempt.command, attempt.environ, attempt.directory)
        except (OSError, ValueError) as error:
            raise _start_error(attempt.command, error) from None

    def image_id(self, image: str) -> str:
        """Return an empty id: a process has no image."""
        return ""


def _start_error(command: Sequence[str], error: Exception) -> StartError:
    word = command[0]
    if isinstance(error, UnicodeEncodeError):
        return StartError(
            "could not be started: its command or environment holds a character that no UTF-8 text may hold "
            f"({error.object[error.start]!r}, a surrogate)"
        )
    if isinstance(error, ValueError):
        return StartError("could not be started: a word of its command holds a NUL character")
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT and os.sep not in word:
        return StartError(
            f"could not be started: there is no command {word!r} on this machine. Install it, or put its folder "
            "into PATH",
            127,
        )
    if number == errno.ENOENT:
        return StartError(
            f"could not be started: there is no file {word!r} on this machine, or its interpreter is missing", 127
        )
    if number in (errno.EACCES, errno.ENOEXEC):
        return StartError(f"could not be started: {word!r} is not a program that may be run here", 126)
    if number == errno.E2BIG:
        longest = max(len(os.fsencode(word)) for word in command)
        return StartError(
            f"could not be started: its command is too long (its longest argument has {longest} bytes; the system "
            "takes 128 KiB in one argument)"
        )
    return StartError(f"could not be started: {error}")
