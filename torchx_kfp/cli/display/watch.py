"""Showing a run while it goes on: as a picture, as lines, as JSON, or not at all."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

import click

from torchx_kfp.cli.display.output import is_capable, plain, wants_colors
from torchx_kfp.cli.display.progress import Progress
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.local.stage.output import Terminal
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.runs.events import Event, encode
from torchx_kfp.runs.messages import messages


class Watch(Protocol):
    """Somebody who watches a run. The methods may be called from several threads."""

    progress: Progress

    def on_event(self, event: Event) -> None:
        """Takes an event of the run."""

    def on_line(self, stage: str, line: str) -> None:
        """Takes a line of a stage's output."""

    def on_unfinished(self, stage: str, line: str) -> None:
        """Takes the line that a stage has not ended yet."""

    def shown(self) -> AbstractContextManager[None]:
        """To be entered while the run goes on."""


def choose_watch(pipeline: Pipeline, *, quiet: bool, verbose: bool, as_json: bool) -> Watch:
    """What these options, and the terminal, ask for."""
    progress = Progress({place.name: place.looped for place in walk(pipeline) if place.is_stage})
    watch: Watch
    if quiet:
        watch = Silent(progress)
    elif not (verbose or as_json) and is_capable(sys.stderr):
        from torchx_kfp.cli.display.live import LiveView, size_of_stderr

        symbols = _has_symbols(sys.stderr)
        watch = LiveView(progress, Terminal(sys.stderr), size_of_stderr, colors=wants_colors(), ascii_only=not symbols)
    else:
        watch = Lines(progress, verbose=verbose)
    return Json(watch) if as_json else watch


class Silent:
    """Keeps what is known of a run, and shows nothing of it."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_event(self, event: Event) -> None:
        self.progress.on_event(event)

    def on_line(self, stage: str, line: str) -> None:
        pass

    def on_unfinished(self, stage: str, line: str) -> None:
        pass

    def shown(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


class Lines(Silent):
    """A line on stderr for each that a stage prints, and for what happens."""

    def __init__(self, progress: Progress, *, verbose: bool) -> None:
        super().__init__(progress)
        self._terminal = Terminal(sys.stderr)
        self._verbose = verbose

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        self._terminal.write_lines([for_stderr(line) for line in messages(event, verbose=self._verbose)])

    def on_line(self, stage: str, line: str) -> None:
        self._terminal.write_lines([f"{stage} | {for_stderr(line)}"])


class Json:
    """Each event as a JSON object on a line of stdout, beside what another one shows on stderr."""

    def __init__(self, beside: Watch) -> None:
        self.progress = beside.progress
        self._beside = beside
        self._stdout = Terminal(sys.stdout)

    def on_event(self, event: Event) -> None:
        self._beside.on_event(event)
        self._stdout.write_lines([json.dumps(plain(encode(event)), allow_nan=False)])

    def on_line(self, stage: str, line: str) -> None:
        self._beside.on_line(stage, line)

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


def _has_symbols(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
