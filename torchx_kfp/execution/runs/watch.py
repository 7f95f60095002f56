"""Watch a run in progress: its events, the output of its stages, and the signals that end it.

A run reports to a ``Watch``. ``Lines`` writes to a stream, with the ``messages`` about events; the command line has
other watches.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any, NoReturn, TextIO

from torchx_kfp.common.text import clean, duration, shown
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.runs.events import (
    CANCELED_ON_KFP,
    Event,
    PipelineRetried,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePending,
    StageRetried,
    StageStarted,
)
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State

#: The seconds between two drawings of a table in a notebook: frontends keep up with a few a second.
_PAUSE = 0.3
#: How many characters of a value are shown.
_LONGEST = 200
#: The signals that end a run.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watch:
    """Receives the events and lines of a run. Override the methods that you need; the defaults do nothing.

    Lines are free of control characters that could harm a terminal, and arrive on a different thread than events. If a
    method raises an exception, ``run`` raises it: at once for an event, at the end of the run for a line.
    """

    def on_event(self, event: Event) -> None:
        """Receive an event of the run."""

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        """Receive lines that a stage printed."""

    def on_unfinished(self, stage: str, line: str) -> None:
        """Receive a stage's unfinished line, such as a progress bar, whenever it changes."""

    def on_warning(self, message: str) -> None:
        """Receive a message about a problem with the run's record, such as a full disk. By default, write it."""
        Terminal(sys.stderr).write_lines([message])


class Lines(Watch):
    """Write events as messages, and lines with the name of their stage before them."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Write to a stream.

        Args:
            stream: the stream; stderr by default.
            verbose: whether to also write stage starts, inputs and outputs.
        """
        self._terminal = Terminal(stream or sys.stderr)
        self._verbose = verbose

    def on_event(self, event: Event) -> None:
        self._terminal.write_lines(messages(event, verbose=self._verbose))

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._terminal.write_lines([f"{stage} | {line}" for line in lines])

    def on_warning(self, message: str) -> None:
        self._terminal.write_lines([message])


def messages(event: Event, *, verbose: bool = False) -> list[str]:
    """Return lines about an event; if ``verbose``, also about starts of stages, and their inputs and outputs."""
    if isinstance(event, RunStarted) and event.retried and event.folder is None:
        return [f"Run {event.run_id} was retried on KFP: it runs again."]
    if isinstance(event, StagePending):
        return [f"{event.name} cannot start: {event.reason}."] if event.reason else []
    if isinstance(event, RunStarted):
        where = f"logs and outputs are in {event.folder}" if event.folder is not None else event.link
        lines = [f"Run {event.run_id}: {where}"]
        if event.not_applied:
            lines.append(f"Not applied locally: {', '.join(event.not_applied)}.")
        return lines + [f"On KFP: {text}" for text in event.differs]
    if isinstance(event, StageStarted) and verbose:
        attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        return [f"{event.name} starts{attempt}.", *_values(event.name, "input", event.inputs)]
    if isinstance(event, StageRetried | PipelineRetried):
        in_ = f" in {event.delay:g} s" if event.delay else ""
        return [f"{event.name} {event.reason} (attempt {event.attempt}); trying again{in_}."]
    if isinstance(event, StageFinished):
        return [] if event.again else _finished(event, verbose)
    if isinstance(event, RunEnding):
        if event.reason == CANCELED_ON_KFP:
            return [f"{event.reason}: the running applications have about {event.grace:g} s to stop."]
        return [f"{event.reason}: the running stages have {event.grace:g} s to stop; another signal kills them."]
    if isinstance(event, RunFinished) and event.state is State.CANCELED:
        return [f"Run {event.run_id} was ended by {event.reason}."]
    return []


class Terminal:
    """A text stream that is written in whole lines. If it is closed, the run continues without it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor = None if stream is None else _descriptor(stream)
        self._lock = threading.Lock()
        #: The error that has ended the output.
        self.error: OSError | ValueError | None = None

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write the lines in one call, so that lines never mix, without control characters except colors."""
        self.write("".join(f"{clean(line, colours=True)}\n" for line in lines))

    def write(self, text: str) -> None:
        """Write the text at once."""
        with self._lock:
            if self._stream is None or not text:
                return
            try:
                self._write(self._stream, text)
            except (OSError, ValueError) as error:
                self._stream, self.error = None, error

    def _write(self, stream: TextIO, text: str) -> None:
        encoding = getattr(stream, "encoding", None) or "ascii"
        if self._descriptor is not None:
            stream.flush()
            _write_all(self._descriptor, text.encode(encoding, "backslashreplace"))
            return
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor that the stream writes to, if it is one of Python's own streams on a file."""
    # Other streams, such as those of notebooks and tests, may have a descriptor and still process the text.
    if type(stream) is not io.TextIOWrapper:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return raw.fileno() if isinstance(raw, io.FileIO) and not raw.closed else None


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all data, even to a full non-blocking pipe, where a text stream would lose some of it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _finished(event: StageFinished, verbose: bool) -> list[str]:
    stage = event.result.judged()
    if not stage.attempts and not verbose and not (stage.state.is_success or stage.state is State.FAILED):
        return []
    how = stage.reason or str(stage.state)
    if stage.state is State.CACHED:
        how = f"is cached, from {stage.cached_from}" if stage.cached_from else "is cached"
    lines = [f"{stage.name} {how} ({duration(stage.duration)})." if stage.attempts else f"{stage.name} {how}."]
    if verbose:
        artifacts = {
            name: [item.location or item.uri for item in made] if isinstance(made, list) else made.location or made.uri
            for name, made in stage.artifacts.items()
        }
        lines += _values(stage.name, "output", {**stage.outputs, **artifacts})
        lines += _values(stage.name, "result", stage.results or {})
        lines += [f"{stage.name}   code: {stage.code}"] if stage.code else []
    return lines


def _values(stage: str, what: str, values: Mapping[str, Any]) -> list[str]:
    # JSON escapes line breaks, so that each value stays in one line.
    shorter = {
        name: shown(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)[:_LONGEST]
        for name, value in values.items()
    }
    return [f"{stage}   {what} {name} = {value}" for name, value in shorter.items()]


@contextmanager
def ending_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, call ``handle`` with the number of each SIGINT, SIGTERM and SIGHUP.

    A signal that is ignored (a background job's SIGINT, ``nohup``'s SIGHUP) stays ignored. Only a program's main
    thread may set handlers; in another thread, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda number, frame: handle(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def awaitable_processes() -> Iterator[None]:
    """Let this process wait for its children, even if it was started with SIGCHLD ignored."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise TorchxKfpError(
            "This process ignores SIGCHLD, so it cannot learn how stages end. Only the main thread may change that: "
            "call signal.signal(signal.SIGCHLD, signal.SIG_DFL) there."
        )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def raise_for_signal(number: int) -> NoReturn:
    """End the caller as the signal would: raise KeyboardInterrupt, or SystemExit with the shell's exit code."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt from None
    raise SystemExit(128 + number) from None


def default_watch() -> Watch:
    """Return the default watch: a table in a notebook, otherwise lines on stderr."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    # IPython in a terminal has no kernel, and shows no HTML.
    return NotebookTable() if get_shell is not None and hasattr(get_shell(), "kernel") else Lines()


class NotebookTable(Lines):
    """Shows the stages of a run as a live table, with the last printed line below it."""

    def __init__(self) -> None:
        super().__init__()
        self._ipython: Any = import_module("IPython.display")
        self._state, self._last_line = RunState(), ""
        self._lock = threading.Lock()
        self._drawing: threading.Timer | None = None
        self._display = self._ipython.display(self._ipython.HTML(""), display_id=True)

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            super().on_event(event)
        with self._lock:
            self._state.on_event(event)
        if isinstance(event, RunFinished):
            self._draw()
        else:
            self._draw_soon()

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._last_line = f"{stage} | {lines[-1]}" if lines else self._last_line
        self._draw_soon()

    def _draw_soon(self) -> None:
        with self._lock:
            if self._drawing is None:
                self._drawing = threading.Timer(_PAUSE, self._draw)
                self._drawing.daemon = True
                self._drawing.start()

    def _draw(self) -> None:
        with self._lock:
            if self._drawing is not None:
                self._drawing.cancel()
                self._drawing = None
            result = self._state.result()
            line = "" if result.state.is_over else f"<pre>{escape(clean(self._last_line))}</pre>"
            self._display.update(self._ipython.HTML(result._repr_html_() + line))
