"""The table of stages that a cell of a notebook shows while a run is in progress."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

from torchx_kfp.common.text import clean
from torchx_kfp.execution.runs.events import Event, RunFinished, RunStarted
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.watch import Lines, Watch

#: The seconds between two drawings: frontends keep up with a few a second.
_PAUSE = 0.3


def default_watch() -> Watch:
    """Return what shows a run if its caller names nothing: a table in a notebook, otherwise lines on stderr."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    # IPython in a terminal has no kernel, and shows no HTML.
    return NotebookTable() if get_shell is not None and hasattr(get_shell(), "kernel") else Lines()


class NotebookTable(Lines):
    """Shows the stages of a run as a table that changes, with the line that was printed last below it."""

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
