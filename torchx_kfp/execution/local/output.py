"""Copy the output of stages byte for byte to log files, and line by line to a watch."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from torchx_kfp.common.text import clean_line
from torchx_kfp.errors import explain
from torchx_kfp.execution.runs.watch import Watch

#: Longer lines are shown in pieces of this many bytes.
_LINE_LIMIT = 1 << 16
_READ_SIZE = 1 << 16
#: The number of bytes of an unfinished line that a watch gets.
_UNFINISHED = 1 << 10
#: Seconds between two checks for the end of the process.
_LOOK_UP = 0.1
#: The bytes that a pipe holds at most, unless an administrator has changed that (``pipe-max-size`` of Linux).
_LARGEST_PIPE = 1 << 20


class StageLines:
    """Passes the lines of stages to a watch, one thread at a time.

    If the watch raises an exception, ``error`` is set to it, the watch is not called again, and the stages continue.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def show(self, stage: str, lines: Sequence[str], unfinished: str) -> None:
        """Show the complete lines of a stage, and its unfinished one."""
        with self._lock:
            if self.error is not None:
                return
            try:
                if lines:
                    self._watch.on_lines(stage, lines)
                self._watch.on_unfinished(stage, unfinished)
            except Exception as error:  # raised at the end of the run
                self.error = error


class Log:
    """The log of a process: a file with its output, byte for byte. ``show`` gets the lines, and the unfinished one."""

    def __init__(self, path: Path, show: Callable[[Sequence[str], str], None]) -> None:
        self._show = show
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self._rest = b""
        #: Why the log is incomplete, as a clause.
        self.problem = ""

    def read(self, pipe: int, is_over: Callable[[], bool]) -> bool:
        """Read from a pipe until it is closed or ``is_over`` returns true; return whether it was closed.

        Then the rest in the pipe is still read: this reader may have been slow.
        """
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        over, left = False, _LARGEST_PIPE
        while left > 0:
            over = over or is_over()
            if not poll.poll(0 if over else _LOOK_UP * 1000):
                if over:
                    break
                continue
            data = os.read(pipe, _READ_SIZE)
            if not data:
                return True
            left -= len(data) if over else 0
            self._show(self._write(data), clean_line(self._rest[-_UNFINISHED:]))
        return False

    def close(self) -> None:
        """Show the last line, and close the file."""
        self._show([clean_line(self._rest)] if self._rest else [], "")
        if self._file is not None:
            self._file.close()

    def _write(self, data: bytes) -> list[str]:
        """Write the data to the log, and return the completed lines, safe for a terminal."""
        said: list[str] = []
        if self._file is not None:
            try:
                # A disk that is almost full may accept only a part of the data.
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                # A full disk must not end the run; the process continues without a log.
                self.problem = f"the log ends early: {explain(error)}"
                said = [f"torchx-kfp: the log ends here: {explain(error)}: {self._file.name}"]
                self._file.close()
                self._file = None
        *lines, last = (self._rest + data).split(b"\n")
        *early, self._rest = _pieces(last)
        return said + [clean_line(piece) for piece in (*(piece for line in lines for piece in _pieces(line)), *early)]


def _pieces(line: bytes) -> list[bytes]:
    """Split a line into pieces of at most ``_LINE_LIMIT`` bytes."""
    return [line[start : start + _LINE_LIMIT] for start in range(0, len(line), _LINE_LIMIT)] or [b""]
