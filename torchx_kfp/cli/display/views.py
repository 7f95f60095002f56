"""Choose how a run in progress is shown, by the options of a command and by the terminal."""

from __future__ import annotations

import sys

from torchx_kfp.cli.display.printing import is_capable, wants_colors
from torchx_kfp.cli.display.watch import Json, Shown, ShownLines
from torchx_kfp.errors import ArgumentError
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.watch import Terminal


def view_of(run: RunState, *, quiet: bool, verbose: bool, as_json: bool) -> Shown:
    """Return the view that these options, and the terminal, ask for.

    Args:
        run: the state that the view updates.
        quiet: whether to show nothing.
        verbose: whether to print lines instead of a picture, including the inputs and outputs of stages.
        as_json: whether to print events as JSON, besides the view.

    Raises:
        ArgumentError: both ``quiet`` and ``verbose`` are given.
    """
    if quiet and verbose:
        raise ArgumentError("--quiet and --verbose contradict each other. Give only one of them.")
    view: Shown
    if quiet:
        view = Shown(run)
    elif not (verbose or as_json) and is_capable(sys.stderr):
        from torchx_kfp.cli.display.live import LiveView, size_of_stderr

        is_utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
        view = LiveView(run, Terminal(sys.stderr), size_of_stderr, colors=wants_colors(), ascii_only=not is_utf8)
    else:
        view = ShownLines(run, verbose=verbose)
    return Json(view) if as_json else view
