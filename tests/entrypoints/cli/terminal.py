"""A terminal, emulated, with the command line in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from pathlib import Path

import pyte

from tests.entrypoints.cli.ready import Forked, Ready

#: Seconds after which a test gives up.
PATIENCE = 60


class Terminal:
    """A terminal with the program in it, emulated by pyte."""

    def __init__(self, ready: Ready, folder: Path, columns: int, lines: int, *words: str, **environ: str) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self.written = b""
        self._stream = pyte.ByteStream(self.screen)
        self._stream.feed(b"before\r\n")
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "TERM", "PYTHONIOENCODING")
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = Forked(*ready.fork(words, folder, {**variables, "TERM": "xterm", **environ}, [theirs] * 3))
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
