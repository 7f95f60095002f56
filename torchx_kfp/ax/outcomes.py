"""The outcome of a trial: what its app has recorded under the metric's name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchx_kfp.ax.keys import result_keys
from torchx_kfp.errors import TrialError
from torchx_kfp.named import describe_unknown
from torchx_kfp.text import joined, shown
from torchx_kfp.tracking.results import Result
from torchx_kfp.tracking.statements.steps import History
from torchx_kfp.tracking.tracker import FsspecResultTracker

#: The suffixes of two results that are one outcome: the mean of several measurements, and its standard error.
MEAN, SEM = "/mean", "/sem"

Outcome = float | tuple[float, float]


def read_outcome(tracker: FsspecResultTracker, name: str, handle: str, own_key: str = "") -> tuple[int, Outcome]:
    """Return how far a trial has come, and its outcome.

    The outcome is the result of this name, or the pair ``<name>/mean`` and ``<name>/sem``. Before the app has recorded
    either, it is the last value that the app has logged with ``current_run().log(step, ...)``.

    Args:
        tracker: the tracker of the trial's tracker base.
        name: the name of the metric.
        handle: the handle of the trial's app.
        own_key: see ``result_keys``.

    Returns:
        The last step of the metric (0 if it has no steps), and its value or the pair of mean and standard error.

    Raises:
        TrialError: the app has not recorded the metric, or its value is not a finite number.
        TrackerError: the store failed.
    """
    keys = result_keys(tracker, handle, own_key)
    for key in keys:
        results, history = tracker.get(key), tracker.history(key)
        if results or history:
            return _outcome(f"The trial {handle}", name, results, history)
    looked = f"looked for {joined(keys)}" if keys else "its run on KFP has no results"
    raise TrialError(
        f"The trial {handle} has recorded nothing under the tracker base {tracker.tracker_base!r} ({looked}). "
        f"Record the metric in its application: current_run().put({name}=...). An application that records under a key "
        "of its own takes the key from its component's parameter trial_idx."
    )


def _outcome(trial: str, name: str, results: Mapping[str, Result], history: History) -> tuple[int, Outcome]:
    step = history[name].last.step if name in history else 0
    if name in results:
        return step, _number(trial, name, results[name])
    if name + MEAN in results:
        mean = _number(trial, name + MEAN, results[name + MEAN])
        return step, (mean, _number(trial, name + SEM, results[name + SEM])) if name + SEM in results else mean
    if name in history:
        return step, _number(trial, name, history[name].last.value)
    known = [*results, *(each for each in history if each not in results)]
    raise TrialError(
        f"{describe_unknown(trial, 'result', name, known)} Name the metric as the application records it, or "
        f"record it: current_run().put({name}=...)."
    )


def _number(trial: str, name: str, value: object) -> float:
    """Return a result as a float: Ax refuses an int."""
    if not isinstance(value, (int, float)):
        raise TrialError(f"{trial} has recorded {shown(value)} as {name!r}, but an outcome is a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TrialError(
            f"{trial} has recorded {shown(value)} as {name!r}, from which Ax cannot learn. To tell Ax that the "
            "parameters are bad, record a large finite number."
        )
    return number
