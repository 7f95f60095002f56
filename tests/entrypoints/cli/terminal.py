"""A terminal, emulated, with the command line in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import termios
import time
from pathlib import Path

import pyte

from tests.entrypoints.cli.ready import PROGRAM, Ready

#: Seconds after which a test gives up.
PATIENCE = 60


class Terminal:
    """A terminal with the program in it, emulated by pyte. With ``ready``, the program need not import anything."""

    def __init__(
        self, folder: Path, columns: int, lines: int, *words: str, ready: Ready | None = None, **environ: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self.written = b""
        self._stream = pyte.ByteStream(self.screen)
        self._stream.feed(b"before\r\n")
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "TERM", "PYTHONIOENCODING")
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self._connection: socket.socket | None = None
        if ready is not None:
            self.terminal, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            environ = {**variables, "TERM": "xterm", **environ}
            self.pid, self._connection = ready.fork(words, folder, environ, [theirs] * 3)
            os.close(theirs)
            return
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.chdir(folder)
                os.execve(PROGRAM, [PROGRAM, *words], {**variables, "TERM": "xterm", **environ})
            os._exit(127)

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
        if self._connection is not None:
            with self._connection:
                return os.waitstatus_to_exitcode(int(self._connection.recv(100)))
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

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
