"""Watching a run while it goes on: its events and the lines of its stages.

A run tells a ``Watch`` what happens. ``Lines`` writes it to a stream; the command line has others.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from torchx_kfp.runs.events import Event
from torchx_kfp.runs.messages import messages
from torchx_kfp.text import clean


class Watch:
    """Takes what happens in a run. Override the methods that you need; the others do nothing.

    Lines come without anything that could harm a terminal. They come from another thread than events do. If a method
    raises an exception, ``run`` raises it: for an event at once, for a line when the run is over.
    """

    def on_event(self, event: Event) -> None:
        """Takes an event of the run."""

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        """Takes lines that a stage has printed."""

    def on_unfinished(self, stage: str, line: str) -> None:
        """Takes the line that a stage has not ended yet, such as a progress bar, whenever it has changed."""

    def on_warning(self, message: str) -> None:
        """Takes a sentence about the record of the run, such as that the disk is full; it goes to stderr."""
        Terminal(sys.stderr).write_lines([message])


class Lines(Watch):
    """Writes events as sentences, and lines with their stage's name."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Write to a stream.

        Args:
            stream: the stream; stderr by default.
            verbose: whether the starts of stages, their inputs and their outputs are written too.
        """
        self._terminal = Terminal(stream or sys.stderr)
        self._verbose = verbose

    def on_event(self, event: Event) -> None:
        self._terminal.write_lines(messages(event, verbose=self._verbose))

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._terminal.write_lines([f"{stage} | {line}" for line in lines])

    def on_warning(self, message: str) -> None:
        self._terminal.write_lines([message])


class Terminal:
    """A text stream for whole lines. A stream that is closed meanwhile is left alone, and the run goes on."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor = None if stream is None else _descriptor(stream)
        self._lock = threading.Lock()
        #: What went wrong when the stream was given up.
        self.error: OSError | ValueError | None = None

    def write_lines(self, lines: Sequence[str]) -> None:
        """Writes them in one piece, so that lines never mix, without what could do something to a terminal."""
        self.write("".join(f"{clean(line, colours=True)}\n" for line in lines))

    def write(self, text: str) -> None:
        """Writes the text in one piece."""
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
    """The file descriptor that the stream writes to, if it is one of Python's own streams on a file."""
    # Others may have one too, and yet do something with the text (a notebook's, a test's).
    if type(stream) is not io.TextIOWrapper:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return raw.fileno() if type(raw) is io.FileIO and not raw.closed else None


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it, also to a pipe that does not block: a text stream would lose what finds no place there."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
