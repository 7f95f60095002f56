"""Show a run in progress: live in the terminal, as lines, as JSON, or not at all."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchx_kfp.common.text import clean
from torchx_kfp.contract.protocol import PodAttempt
from torchx_kfp.entrypoints.cli.display.frame import OutputTails, frame
from torchx_kfp.entrypoints.cli.display.printing import for_stderr, is_capable, is_utf8, json_text, wants_colors
from torchx_kfp.entrypoints.cli.flags import ViewOptions
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.runs.events import (
    Event,
    PipelineRetried,
    RunFinished,
    RunStarted,
    StageFinished,
    encode_event,
)
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.watch import Terminal, Watch, messages

#: Frames per second, and their share of a core: a loop may have 10,000 stages.
_RATE, _SHARE = 4, 0.05


def view_of(run: RunState, options: ViewOptions) -> View:
    """Return the view for these options and the terminal.

    Args:
        run: the state that the view updates.
        options: ``quiet`` shows nothing; ``verbose`` prints lines with the inputs and outputs of stages instead of a
            live view; ``as_json`` also prints events as JSON.
    """
    if options.quiet:
        return View(run, options)
    if not (options.verbose or options.as_json) and is_capable(sys.stderr) and is_utf8(sys.stderr):
        return LiveView(run, Terminal(sys.stderr), colors=wants_colors())
    return LineView(run, options)


class View(Watch):
    """Follows a run for a command: keeps its state and may print JSON on stdout, but shows nothing else."""

    def __init__(self, run: RunState, options: ViewOptions) -> None:
        self.run, self.options = run, options
        #: The stages whose lines were printed.
        self.printed: set[str] = set()
        self._stdout = Terminal(sys.stdout) if options.as_json else None
        self._has_files = True

    def on_event(self, event: Event) -> None:
        self.run.on_event(event)
        if self._stdout is None:
            return
        content = encode_event(event)
        if isinstance(event, RunStarted):
            self._has_files = event.folder is not None
        if "log_file" in content and not self._has_files:
            # The log files of a run on a host are temporary.
            content["log_file"] = None
        if isinstance(event, StageFinished):
            # As in tables, restarts of the application in one pod count.
            content |= {"attempts": event.result.starts, "pods": event.result.attempts}
        if isinstance(event, StageFinished) and not self._has_files and not event.result.cached_from:
            # KFP does not say the UID of a pod: the id of an execution without results is not known.
            is_known = bool(PodAttempt.parse(event.result.execution_id or "").incarnation)
            content["execution_id"] = event.result.execution_id if is_known or event.result.results else None
        self._stdout.write_lines([json_text(content)])

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the run while the block runs."""
        yield
        error = None if self._stdout is None else self._stdout.error
        # A reader such as head -1 closes the pipe.
        if error is not None and not isinstance(error, BrokenPipeError):
            raise TorchxKfpError(f"The output cannot be written: {getattr(error, 'strerror', None) or error}.")


class LineView(View):
    """Prints the lines of stages and messages about events on stderr."""

    def __init__(self, run: RunState, options: ViewOptions) -> None:
        super().__init__(run, options)
        self._terminal = Terminal(sys.stderr)

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        # The summary reports the end of the run.
        if not isinstance(event, RunFinished):
            self._terminal.write_lines([for_stderr(line) for line in messages(event, verbose=self.options.verbose)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self.printed.add(stage)
        self._terminal.write_lines([f"{stage} | {for_stderr(line)}" for line in lines])


class _Console(Console):
    """A console on a stream that may disappear. It never hides the cursor, which a killed program would not restore."""

    def __init__(self, terminal: Terminal, *, colors: bool) -> None:
        super().__init__(
            file=_Stream(terminal),
            force_terminal=True,
            color_system="standard" if colors else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Stream(io.StringIO):
    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str, /) -> int:
        self._terminal.write(text)
        return len(text)


class LiveView(View):
    """Shows a live view of a run below other output on stderr."""

    def __init__(self, run: RunState, terminal: Terminal, *, colors: bool) -> None:
        super().__init__(run, ViewOptions())
        self._output = OutputTails()
        self._console = _Console(terminal, colors=colors)
        # Two threads change the run; a third one reads it, and must not block them while it writes.
        self._lock = threading.Lock()
        self._picture, self._next = Text(), 0.0
        self._live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=_RATE, transient=True)

    def on_event(self, event: Event) -> None:
        with self._lock:
            super().on_event(event)
            if isinstance(event, StageFinished):
                self._output.forget(event.result.name)
        for line in messages(event) if isinstance(event, RunStarted | PipelineRetried) else ():
            self._console.print(Text.from_ansi(clean(line, colours=True)), soft_wrap=True)

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        with self._lock:
            for line in lines:
                self._output.on_line(stage, line)

    def on_unfinished(self, stage: str, line: str) -> None:
        with self._lock:
            self._output.on_unfinished(stage, line)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live view while the block runs, and then remove it."""
        with self._live:
            yield

    def _draw(self) -> Text:
        began = time.monotonic()
        if began < self._next:
            return self._picture
        with self._lock:
            # Leave a column and two lines for the cursor and the terminal's ^C.
            width, height = max(1, self._console.width - 1), max(1, self._console.height - 2)
            lines = frame(self.run, self._output.tail, width, height, time.time())
        self._picture = Text("\n").join([*lines, Text()])
        self._next = began + (time.monotonic() - began) / _SHARE
        return self._picture
