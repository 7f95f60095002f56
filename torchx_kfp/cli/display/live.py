"""Show a picture of the run in the terminal, and redraw it while the run goes on.

``rich.live`` is not suitable: it leaves lines behind when the terminal becomes narrower, keeps the cursor hidden (even
after the program was killed), and may mix the lines of two pictures. Here, each picture is a single write that leaves
the terminal in its usual state, with the cursor on an empty line below the picture.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from rich.console import Console
from rich.text import Text

from torchx_kfp.cli.display.frame import LINES, frame
from torchx_kfp.cli.display.watch import Shown
from torchx_kfp.runs.events import Event, PipelineRetried, RunStarted, StageFinished
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.watch import Terminal, messages
from torchx_kfp.text import clean

#: Seconds between two pictures while something happens, and while only time passes.
INTERVAL, IDLE = 0.2, 1.0
#: Drawing may take one part in this many of the time.
_SHARE = 20
# Terminals that know these sequences show the picture at once, without the cursor, and cut lines that turn out wider
# than expected.
_BEGIN, _CUT, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?2026l"

Size = Callable[[], os.terminal_size]


class Screen:
    """Draws pictures, each over the previous one."""

    def __init__(self, terminal: Terminal, size: Size) -> None:
        self._terminal = terminal
        self._size = size
        self._widths: list[int] = []

    def draw(self, lines: Sequence[Text], rendered: Sequence[str], above: str = "") -> None:
        """Replace the previous picture; the text ``above`` stays in the terminal, above the new one."""
        picture = "".join(f"{line}\x1b[K\r\n" for line in rendered)
        above = above.replace("\n", "\x1b[K\r\n")
        self._terminal.write(f"{_BEGIN}{self._back()}{above}{_CUT}{picture}\x1b[J{_END}")
        self._widths = [line.cell_len for line in lines]

    def erase(self, above: str = "") -> None:
        """Remove the picture."""
        # Erase line by line: if a screen is erased from its first position, tmux keeps it in its history.
        height = self._height()
        blank = "\x1b[K\r\n" * height
        self._terminal.write(f"{self._back()}{blank}\x1b[K")
        self.draw([], [], above)

    def forget(self) -> None:
        """Leave the previous picture where it is, because something was written below it."""
        self._widths = []

    def _back(self) -> str:
        """Return the sequence that moves to the picture's first line, even if a narrower terminal has wrapped it."""
        height = self._height()
        return f"\r\x1b[{height}A" if height else "\r"

    def _height(self) -> int:
        columns = max(1, self._size().columns)
        return sum(max(1, -(-width // columns)) for width in self._widths)


class Output:
    """Keeps the last lines that the stages have printed."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[str]] = {}
        self._unfinished: dict[str, str] = {}

    def on_line(self, stage: str, line: str) -> None:
        """Receive a line of a stage's output. The first line may come before the event of the stage's start."""
        if line and not line.isspace():
            self._lines.setdefault(stage, deque(maxlen=LINES)).append(line)

    def on_unfinished(self, stage: str, line: str) -> None:
        """Receive the stage's unfinished line."""
        self._unfinished[stage] = line

    def tail(self, stage: str) -> list[str]:
        """Return the last lines of the stage, without empty ones."""
        unfinished = self._unfinished.get(stage, "")
        lines = [*self._lines.get(stage, ()), *([unfinished] if unfinished.strip() else [])]
        return lines[-LINES:]

    def forget(self, stage: str) -> None:
        """Drop the lines of a stage that has ended."""
        self._lines.pop(stage, None)
        self._unfinished.pop(stage, None)


class LiveView(Shown):
    """Shows a run as a picture that changes. Enter ``shown`` before the run and leave it afterwards."""

    def __init__(self, run: RunState, terminal: Terminal, size: Size, *, colors: bool, ascii_only: bool) -> None:
        super().__init__(run)
        self._output = Output()
        self._size = size
        self._ascii_only = ascii_only
        self._screen = Screen(terminal, size)
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard" if colors else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
        # Two threads change the run and a third one reads it, which must not block them while it writes.
        self._lock = threading.Lock()
        self._changed = False
        self._said: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def on_event(self, event: Event) -> None:
        """Receive an event of the run."""
        with self._lock:
            self.run.on_event(event)
            if isinstance(event, StageFinished):
                self._output.forget(event.result.name)
            self._changed = True
        if isinstance(event, RunStarted | PipelineRetried):
            self.say("".join(f"{line}\n" for line in messages(event)))

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        """Receive lines of a stage's output."""
        with self._lock:
            for line in lines:
                self._output.on_line(stage, line)
            self._changed = True

    def on_unfinished(self, stage: str, line: str) -> None:
        """Receive a stage's unfinished line."""
        with self._lock:
            self._output.on_unfinished(stage, line)
            self._changed = True

    def say(self, text: str) -> None:
        """Write a text above the picture, where it stays."""
        with self._lock:
            self._said.append(clean(text, colours=True))
            self._changed = True

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the picture while the block runs, and then remove it."""
        with contextlib.redirect_stderr(_Above(self.say)), _continued(self._screen.forget):
            self._thread.start()
            try:
                yield
            finally:
                self._stop.set()
                self._thread.join()
                self._screen.erase(self._take_said())

    def _run(self) -> None:
        drawn, size, cost = 0.0, None, 0.0
        while not self._stop.wait(max(INTERVAL, _SHARE * cost)):
            now, new_size = time.monotonic(), self._size()
            if self._changed or new_size != size or now - drawn >= IDLE:
                self._draw(new_size)
                drawn, size, cost = now, new_size, time.monotonic() - now

    def _draw(self, size: os.terminal_size) -> None:
        with self._lock:
            self._changed = False
            # Leave a column and a line free, for the cursor and for the ^C that a terminal shows.
            width, height = max(1, size.columns - 1), max(1, size.lines - 1)
            lines = frame(self.run, self._output.tail, width, height, time.time(), ascii_only=self._ascii_only)
        self._screen.draw(lines, [self._render(line) for line in lines], self._take_said())

    def _render(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True)
        return capture.get()

    def _take_said(self) -> str:
        with self._lock:
            said, self._said = "".join(self._said), []
        return said if not said or said.endswith("\n") else f"{said}\n"


class _Above(io.TextIOBase):
    """Replaces stderr: text that is written to it, such as warnings, appears above the picture."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        self._say(text)
        return len(text)


@contextlib.contextmanager
def _continued(handle: Callable[[], None]) -> Iterator[None]:
    """Call ``handle`` when the program continues after Ctrl-Z, because the shell has written below the picture."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, where: FrameType | None) -> None:
        handle()

    previous = signal.signal(signal.SIGCONT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, previous)


def size_of_stderr() -> os.terminal_size:
    """Return the columns and lines of stderr's terminal; 80 and 24 if they are unknown."""
    try:
        size = os.get_terminal_size(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or 80, size.lines or 24))
