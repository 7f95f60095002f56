"""The part of a terminal that shows a picture of the run and changes while it goes on.

Not ``rich.live``: that leaves lines behind when a terminal is made narrower, hides the cursor for as long as it
lives (a killed program leaves it hidden), and lets two lines of one picture be two of several. Here each picture is
one write, after which the terminal is as it was, with the cursor on an empty line below the picture.
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
from torchx_kfp.runs.messages import messages
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.watch import Terminal
from torchx_kfp.text import clean

#: Seconds between two pictures while something happens, and while nothing does but time.
INTERVAL, IDLE = 0.2, 1.0
#: A picture takes a part of the time that is one in so many.
_SHARE = 20
# All at once, and without the cursor, for terminals that know it; a line of the picture that is wider than was thought
# is cut by the terminal.
_BEGIN, _CUT, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?2026l"

Size = Callable[[], os.terminal_size]


class Screen:
    """Draws pictures, each over the last one."""

    def __init__(self, terminal: Terminal, size: Size) -> None:
        self._terminal = terminal
        self._size = size
        self._widths: list[int] = []

    def draw(self, lines: Sequence[Text], rendered: Sequence[str], above: str = "") -> None:
        """Replaces the last picture; ``above`` stays in the terminal, above the new one."""
        picture = "".join(f"{line}\x1b[K\r\n" for line in rendered)
        above = above.replace("\n", "\x1b[K\r\n")
        self._terminal.write(f"{_BEGIN}{self._back()}{above}{_CUT}{picture}\x1b[J{_END}")
        self._widths = [line.cell_len for line in lines]

    def erase(self, above: str = "") -> None:
        """Removes the picture."""
        # Line by line: what is erased from the screen's first place on, tmux keeps in its history.
        height = self._height()
        blank = "\x1b[K\r\n" * height
        self._terminal.write(f"{self._back()}{blank}\x1b[K")
        self.draw([], [], above)

    def forget(self) -> None:
        """Leaves the last picture where it is: somebody else has written below it."""
        self._widths = []

    def _back(self) -> str:
        """The way to the last picture's first line, where a terminal that is narrower by now has folded it."""
        height = self._height()
        return f"\r\x1b[{height}A" if height else "\r"

    def _height(self) -> int:
        columns = max(1, self._size().columns)
        return sum(max(1, -(-width // columns)) for width in self._widths)


class Output:
    """The last lines that the stages have printed."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[str]] = {}
        self._unfinished: dict[str, str] = {}

    def on_line(self, stage: str, line: str) -> None:
        """Takes a line of a stage's output. The first may come before the event of the stage's start."""
        if line and not line.isspace():
            self._lines.setdefault(stage, deque(maxlen=LINES)).append(line)

    def on_unfinished(self, stage: str, line: str) -> None:
        """Takes the line that the stage has not ended yet."""
        self._unfinished[stage] = line

    def tail(self, stage: str) -> list[str]:
        """Return the last lines of the stage, without empty ones."""
        unfinished = self._unfinished.get(stage, "")
        lines = [*self._lines.get(stage, ()), *([unfinished] if unfinished.strip() else [])]
        return lines[-LINES:]

    def forget(self, stage: str) -> None:
        """Drops the lines of a stage that has ended."""
        self._lines.pop(stage, None)
        self._unfinished.pop(stage, None)


class LiveView(Shown):
    """A run as a picture that changes; to be entered before the run, and left after it."""

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
        # The run is changed by two threads and read by a third, which must not hold them up while it writes.
        self._lock = threading.Lock()
        self._changed = False
        self._said: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def on_event(self, event: Event) -> None:
        """Takes an event of the run."""
        with self._lock:
            self.run.on_event(event)
            if isinstance(event, StageFinished):
                self._output.forget(event.result.name)
            self._changed = True
        if isinstance(event, RunStarted | PipelineRetried):
            self.say("".join(f"{line}\n" for line in messages(event)))

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        """Takes lines of a stage's output."""
        with self._lock:
            for line in lines:
                self._output.on_line(stage, line)
            self._changed = True

    def on_unfinished(self, stage: str, line: str) -> None:
        """Takes the line that a stage has not ended yet."""
        with self._lock:
            self._output.on_unfinished(stage, line)
            self._changed = True

    def say(self, text: str) -> None:
        """Puts a text above the picture, where it stays."""
        with self._lock:
            self._said.append(clean(text, colours=True))
            self._changed = True

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the picture while the block runs; then it is gone."""
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
            # One column and one line stay free: for the cursor, and for the ^C that a terminal shows.
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
    """Stands for stderr, and puts what others write there (warnings) above the picture."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        self._say(text)
        return len(text)


@contextlib.contextmanager
def _continued(handle: Callable[[], None]) -> Iterator[None]:
    """Calls ``handle`` when the program goes on after Ctrl-Z: the shell has written below the picture."""
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
    """Columns and lines of the terminal that stderr is; 80 and 24 where it does not say."""
    try:
        size = os.get_terminal_size(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or 80, size.lines or 24))
