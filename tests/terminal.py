"""A terminal, emulated, with a program in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence

import pyte

from tests.programs import Program

#: Seconds after which a test gives up.
PATIENCE = 120
#: What this terminal decides.
_OWN = ("COLUMNS", "LINES", "NO_COLOR", "TERM", "PYTHONIOENCODING")


class Terminal:
    """A terminal with the program in it, emulated by pyte."""

    def __init__(
        self, program: Program, columns: int, lines: int, words: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self.written = b""
        self._stream = pyte.ByteStream(self.screen)
        self._stream.feed(b"before\r\n")
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        variables = {name: value for name, value in program.environ().items() if name not in _OWN}
        self.process = program.fork(words, [theirs] * 3, {**variables, "TERM": "xterm", **environ})
        os.close(theirs)

    @property
    def shown(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_for(self, *texts: str) -> str:
        """Read until the terminal shows all texts at once, and return its content."""
        ends = time.monotonic() + PATIENCE
        while not all(text in self.shown for text in texts):
            assert time.monotonic() < ends, self.shown
            if not self._read():
                raise AssertionError(f"the program has ended:\n{self.shown}")
        return self.shown

    def send(self, data: bytes) -> None:
        os.write(self.terminal, data)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        os.close(self.terminal)
        return self.process.wait()

    def read(self) -> str:
        """Read to the end, and return all that was written, without carriage returns."""
        self.end()
        return self.written.decode().replace("\r\n", "\n")

    def _read(self) -> bool:
        if not select.select([self.terminal], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self.terminal, 65536)
        except OSError:  # Linux raises this when there is no writer any more
            return False
        self.written += data
        self._stream.feed(data)
        return bool(data)
