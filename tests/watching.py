"""A watch for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from torchx_kfp.local import Event, Lines, Watch


class Heard(Watch):
    """Passes events and lines on to functions, and shows nothing unless there is a stream."""

    def __init__(
        self,
        on_event: Callable[[Event], object] | None = None,
        on_line: Callable[[str, str], object] | None = None,
        on_unfinished: Callable[[str, str], object] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._on_event = on_event
        self._on_line = on_line
        self._on_unfinished = on_unfinished
        self._lines = Watch() if stream is None else Lines(stream)

    def on_event(self, event: Event) -> None:
        self._lines.on_event(event)
        if self._on_event is not None:
            self._on_event(event)

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        self._lines.on_lines(stage, lines)
        if self._on_line is not None:
            for line in lines:
                self._on_line(stage, line)

    def on_unfinished(self, stage: str, line: str) -> None:
        if self._on_unfinished is not None:
            self._on_unfinished(stage, line)
