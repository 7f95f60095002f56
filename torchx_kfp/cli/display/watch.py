"""Show a run in progress: as a picture, as lines, as JSON, or not at all."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import click

from torchx_kfp.cli.display.printing import is_capable, json_ready, wants_colors
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.runs.events import Event, RunFinished, RunStarted, encode
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.watch import Terminal, Watch, messages


class Shown(Watch):
    """Follows a run for a command. It shows nothing itself, but knows the run's state."""

    def __init__(self, run: RunState) -> None:
        self.run = run

    def on_event(self, event: Event) -> None:
        self.run.on_event(event)

    def shown(self) -> AbstractContextManager[None]:
        """Return a context to be entered for the time of the run."""
        return contextlib.nullcontext()


class ShownLines(Shown):
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
        self._terminal.write_lines([f"{stage} | {for_stderr(line)}" for line in lines])


class Json(Shown):
    """Prints each event as a line of JSON on stdout, while another watch shows the run on stderr."""

    def __init__(self, beside: Shown) -> None:
        super().__init__(beside.run)
        self._beside = beside
        self._stdout = Terminal(sys.stdout)
        self._has_files = True

    def on_event(self, event: Event) -> None:
        self._beside.on_event(event)
        content = encode(event)
        if isinstance(event, RunStarted):
            self._has_files = event.folder is not None
        if "log_file" in content and not self._has_files:
            # The log of a run on a host is read into a file that does not last.
            content["log_file"] = None
        self._stdout.write_lines([json.dumps(json_ready(content), allow_nan=False)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._beside.on_lines(stage, lines)

    def on_unfinished(self, stage: str, line: str) -> None:
        self._beside.on_unfinished(stage, line)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        with self._beside.shown():
            yield
        error = self._stdout.error
        # A reader that has seen enough, such as head -1, closes the pipe.
        if error is not None and not isinstance(error, BrokenPipeError):
            raise TorchxKfpError(f"The output cannot be written: {getattr(error, 'strerror', None) or error}.")


def for_stderr(text: str) -> str:
    """Return lines for stderr: their colors end with each line, or are removed if stderr does not accept colors."""
    if "\x1b" not in text:
        return text
    if not (is_capable(sys.stderr) and wants_colors()):
        return click.unstyle(text)
    return "\n".join(f"{line}\x1b[0m" if "\x1b" in line else line for line in text.split("\n"))
