"""Showing a run while it goes on: as a picture, as lines, as JSON, or not at all."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import click

from torchx_kfp.cli.display.printing import is_capable, json_ready, wants_colors
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.runs.events import Event, RunFinished, encode
from torchx_kfp.runs.messages import messages
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.watch import Terminal, Watch


class Shown(Watch):
    """Watches a run for a command; by itself it shows nothing, but knows how far the run is."""

    def __init__(self, run: RunState) -> None:
        self.run = run

    def on_event(self, event: Event) -> None:
        self.run.on_event(event)

    def shown(self) -> AbstractContextManager[None]:
        """To be entered while the run goes on."""
        return contextlib.nullcontext()


class ShownLines(Shown):
    """A line on stderr for each that a stage prints, and for what happens."""

    def __init__(self, run: RunState, *, verbose: bool) -> None:
        super().__init__(run)
        self._terminal = Terminal(sys.stderr)
        self._verbose = verbose

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        # How the run has ended is part of the summary.
        if not isinstance(event, RunFinished):
            self._terminal.write_lines([for_stderr(line) for line in messages(event, verbose=self._verbose)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._terminal.write_lines([f"{stage} | {for_stderr(line)}" for line in lines])


class Json(Shown):
    """Each event as a JSON object on a line of stdout, beside what another one shows on stderr."""

    def __init__(self, beside: Shown) -> None:
        super().__init__(beside.run)
        self._beside = beside
        self._stdout = Terminal(sys.stdout)

    def on_event(self, event: Event) -> None:
        self._beside.on_event(event)
        self._stdout.write_lines([json.dumps(json_ready(encode(event)), allow_nan=False)])

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._beside.on_lines(stage, lines)

    def on_unfinished(self, stage: str, line: str) -> None:
        self._beside.on_unfinished(stage, line)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        with self._beside.shown():
            yield
        error = self._stdout.error
        # Somebody who has read enough closes the pipe (head -1).
        if error is not None and not isinstance(error, BrokenPipeError):
            raise TorchxKfpError(f"The output cannot be written: {getattr(error, 'strerror', None) or error}.")


def for_stderr(text: str) -> str:
    """Lines with a stage's colours as they are shown on stderr: no others get these, or none at all."""
    if "\x1b" not in text:
        return text
    if not (is_capable(sys.stderr) and wants_colors()):
        return click.unstyle(text)
    return "\n".join(f"{line}\x1b[0m" if "\x1b" in line else line for line in text.split("\n"))
