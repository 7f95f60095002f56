"""Show a run in progress as a picture in the terminal that is redrawn, as lines, as JSON, or not at all.

``rich.live`` is not suitable: it leaves lines behind when the terminal becomes narrower, keeps the cursor hidden (even
after the program was killed), and may mix the lines of two pictures. Here, each picture is a single write that leaves
the terminal in its usual state, with the cursor on an empty line below the picture.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torchx_kfp.common.text import clean
from torchx_kfp.contract.protocol import Execution
from torchx_kfp.entrypoints.cli.display.printing import for_stderr, is_capable, json_ready, wants_colors
from torchx_kfp.entrypoints.cli.flags import ViewOptions
from torchx_kfp.errors import ArgumentError, TorchxKfpError
from torchx_kfp.execution.runs.events import Event, PipelineRetried, RunFinished, RunStarted, StageFinished, encode
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.watch import Terminal, Watch, messages

if TYPE_CHECKING:  # only the live view needs rich
    from rich.text import Text

#: Seconds between two pictures while something happens, and while only time passes.
INTERVAL, IDLE = 0.2, 1.0
#: Drawing may take one part in this many of the time.
_SHARE = 20
# Terminals that know these sequences show the picture at once, without the cursor, and cut lines that turn out wider
# than expected.
_BEGIN, _CUT, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?2026l"

Size = Callable[[], os.terminal_size]


def view_of(run: RunState, options: ViewOptions) -> View:
    """Return the view that these options, and the terminal, ask for.

    Args:
        run: the state that the view updates.
        options: ``quiet`` shows nothing; ``verbose`` prints lines instead of a picture, with the inputs and outputs of
            stages; ``as_json`` prints events as JSON, besides the view.

    Raises:
        ArgumentError: both ``quiet`` and ``verbose`` are given.
    """
    if options.quiet and options.verbose:
        raise ArgumentError("--quiet and --verbose contradict each other. Give only one of them.")
    is_utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
    view: View
    if options.quiet:
        view = View(run)
    elif not (options.verbose or options.as_json) and is_capable(sys.stderr) and is_utf8:
        view = LiveView(run, Terminal(sys.stderr), size_of_stderr, colors=wants_colors())
    else:
        view = LineView(run, verbose=options.verbose)
    return JsonView(view) if options.as_json else view


class View(Watch):
    """Follows a run for a command. It shows nothing itself, but knows the run's state."""

    def __init__(self, run: RunState) -> None:
        self.run = run
        #: The stages whose lines were printed.
        self.printed: set[str] = set()

    def on_event(self, event: Event) -> None:
        self.run.on_event(event)

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Return a context to be entered for the time of the run."""
        return contextlib.nullcontext()


class LineView(View):
    """Prints the lines of stages and sentences about events on stderr."""

    def __init__(self, run: RunState, *, verbose: bool) -> None:
        super().__init__(run)
        self._terminal = Terminal(sys.stderr)
        self._verbose = verbose

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        # The summary says how the run has ended.
        if not isinstance(event, RunFinished):
            self._terminal.write_lines([for_stderr(line) for line in messages(event, verbose=self._verbose)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self.printed.add(stage)
        self._terminal.write_lines([f"{stage} | {for_stderr(line)}" for line in lines])


class JsonView(View):
    """Prints each event as a line of JSON on stdout, while another view shows the run on stderr."""

    def __init__(self, other: View) -> None:
        super().__init__(other.run)
        self._other = other
        self.printed = other.printed
        self._stdout = Terminal(sys.stdout)
        self._has_files = True

    def on_event(self, event: Event) -> None:
        self._other.on_event(event)
        content = encode(event)
        if isinstance(event, RunStarted):
            self._has_files = event.folder is not None
        if "log_file" in content and not self._has_files:
            # The log of a run on a host is read into a file that does not last.
            content["log_file"] = None
        if isinstance(event, StageFinished):
            # As in tables, starts of the application in one pod count.
            content |= {"attempts": event.result.starts, "pods": event.result.attempts}
        if isinstance(event, StageFinished) and not self._has_files and not event.result.cached_from:
            # KFP does not say the UID of a pod: the run id of a stage without results is not known.
            is_known = bool(Execution.parse(event.result.run_id or "").incarnation)
            content["run_id"] = event.result.run_id if is_known or event.result.results else None
        self._stdout.write_lines([json.dumps(json_ready(content), allow_nan=False)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._other.on_lines(stage, lines)

    def on_unfinished(self, stage: str, line: str) -> None:
        self._other.on_unfinished(stage, line)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        with self._other.shown():
            yield
        error = self._stdout.error
        # A reader that has seen enough, such as head -1, closes the pipe.
        if error is not None and not isinstance(error, BrokenPipeError):
            raise TorchxKfpError(f"The output cannot be written: {getattr(error, 'strerror', None) or error}.")


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


class LiveView(View):
    """Shows a run as a picture that changes. Enter ``shown`` before the run and leave it afterwards."""

    def __init__(self, run: RunState, terminal: Terminal, size: Size, *, colors: bool) -> None:
        from rich.console import Console

        from torchx_kfp.entrypoints.cli.display.frame import OutputTails, frame

        super().__init__(run)
        self._output, self._frame = OutputTails(), frame
        self._size = size
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
        with self._lock:
            self.run.on_event(event)
            if isinstance(event, StageFinished):
                self._output.forget(event.result.name)
            self._changed = True
        if isinstance(event, RunStarted | PipelineRetried):
            self.say("".join(f"{line}\n" for line in messages(event)))

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        with self._lock:
            for line in lines:
                self._output.on_line(stage, line)
            self._changed = True

    def on_unfinished(self, stage: str, line: str) -> None:
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
            lines = self._frame(self.run, self._output.tail, width, height, time.time())
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

    previous = signal.signal(signal.SIGCONT, lambda number, frame: handle())
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
