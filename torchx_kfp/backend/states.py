"""Translate the states and times of KFP's API."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from torchx_kfp.runs.vocabulary import State

_STATES = {
    "PENDING": State.QUEUED,
    "RUNNING": State.RUNNING,
    "CANCELING": State.RUNNING,
    "PAUSED": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "SKIPPED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "CANCELED": State.CANCELED,
}
_CANCELING = "CANCELING"
_ENDS = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")


def run_state(run: Mapping[str, Any]) -> State:
    """Return the state of a run, from its JSON in v2beta1; a run that KFP has not begun is queued.

    KFP ends a canceled run as FAILED: the history of its states tells.
    """
    state = _STATES.get(str(run.get("state") or ""), State.QUEUED)
    if state is State.FAILED and is_canceled(run):
        return State.CANCELED
    return state


def is_canceled(run: Mapping[str, Any]) -> bool:
    """Tell whether somebody has terminated a run, and nobody has tried it again since."""
    history = run.get("state_history")
    states = [item.get("state") for item in (history if isinstance(history, list) else []) if isinstance(item, Mapping)]
    # A run that is tried again runs after its end.
    before_the_end = [state for state in (*states, run.get("state")) if state not in _ENDS]
    return before_the_end[-1:] == [_CANCELING]


def is_over(run: Mapping[str, Any]) -> bool:
    """Tell whether a run has ended."""
    return run_state(run) in (State.SUCCEEDED, State.FAILED, State.CANCELED)


def seconds(text: object) -> float | None:
    """Return a time of the API in seconds since the epoch; None for the epoch and the year 1, which mean none."""
    if not isinstance(text, str):
        return None
    try:
        # Python 3.10 reads neither Z nor nanoseconds.
        whole, _, rest = text.removesuffix("Z").partition(".")
        when = datetime.datetime.fromisoformat(whole)
        fraction = float(f"0.{rest}") if rest.isdigit() else 0.0
        found = when.replace(tzinfo=when.tzinfo or datetime.timezone.utc).timestamp() + fraction
    except (ValueError, OverflowError):
        return None
    return found if found > 0 else None
