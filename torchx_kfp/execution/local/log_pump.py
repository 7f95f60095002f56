"""The output of stages, which is copied byte for byte to log files, and line by line to a watch."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from torchx_kfp.common.text import clean_line
from torchx_kfp.errors import explain
from torchx_kfp.execution.runs.watch import Watch

#: Longer lines are shown in pieces of this many bytes.
_LINE_LIMIT = 1 << 16
_READ_SIZE = 1 << 16

#: The number of bytes of an unfinished line that a watch gets.
_UNFINISHED = 1 << 10


class Log:
    """The output of one process: a pipe that is read to its end into a file."""

    def __init__(
        self, pipe: int, path: Path, stage: str, on_lines: Callable[[Sequence[str]], None] | None = None
    ) -> None:
        """Read from a pipe into a file; ``on_lines`` is also called with the stage's lines."""
        self.pipe = pipe
        self.stage = stage
        self.on_lines = on_lines
        self.closed = threading.Event()
        #: Why the log does not have all of the output, as a clause.
        self.problem = ""
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Write the data to the log, and return the lines that it completes, safe for a terminal."""
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

    @property
    def unfinished(self) -> str:
        """The last line if it is not complete, such as a progress bar."""
        return clean_line(self._rest[-_UNFINISHED:])

    def finish(self) -> list[str]:
        """Close the file and the pipe, and return the last line if it was not complete."""
        os.close(self.pipe)
        if self._file is not None:
            self._file.close()
        rest, self._rest = self._rest, b""
        return [clean_line(rest)] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    """Split a line into pieces of at most ``_LINE_LIMIT`` bytes."""
    return [line[start : start + _LINE_LIMIT] for start in range(0, len(line), _LINE_LIMIT)] or [b""]


class LogPump:
    """A thread that reads the output of all stages for a watch.

    If the watch raises an exception, ``error`` is set to it, the watch is not called again, and the stages continue.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.error: Exception | None = None
        self._selector = selectors.DefaultSelector()
        self._requests: deque[tuple[str, Log]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="stage-output", daemon=True)

    def __enter__(self) -> LogPump:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake()
        self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def add(self, log: Log) -> None:
        """Read the log's pipe from now on; ``log.closed`` is set at its end."""
        self._requests.append(("add", log))
        self._wake()

    def drop(self, log: Log) -> None:
        """Stop reading a pipe that another process holds open."""
        self._requests.append(("drop", log))
        self._wake()

    def _wake(self) -> None:
        # A full pipe wakes the thread anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        open_logs: set[Log] = set()
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, _READ_SIZE)
                    self._serve(open_logs)
                elif key.data in open_logs:
                    if data := os.read(key.data.pipe, _READ_SIZE):
                        self._show(key.data, key.data.feed(data))
                    else:
                        self._close(key.data, open_logs)
            if self._stopping:
                for log in list(open_logs):
                    self._close(log, open_logs)
                return

    def _serve(self, open_logs: set[Log]) -> None:
        while self._requests:
            request, log = self._requests.popleft()
            if request == "add":
                self._selector.register(log.pipe, selectors.EVENT_READ, log)
                open_logs.add(log)
            elif log in open_logs:
                self._close(log, open_logs)

    def _close(self, log: Log, open_logs: set[Log]) -> None:
        open_logs.discard(log)
        self._selector.unregister(log.pipe)
        self._show(log, log.finish())
        log.closed.set()

    def _show(self, log: Log, lines: list[str]) -> None:
        if log.on_lines is not None:
            log.on_lines(lines)
        if self.error is not None:
            return
        try:
            if lines:
                self._watch.on_lines(log.stage, lines)
            self._watch.on_unfinished(log.stage, log.unfinished)
        except Exception as error:  # without this thread, the stages would wait forever
            self.error = error
