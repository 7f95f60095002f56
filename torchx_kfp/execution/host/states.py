"""Translate the states and times of KFP's API."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.runs.vocabulary import State

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


@dataclass(frozen=True)
class Period:
    """A period in which KFP worked on a run; each retry starts another one.

    Times are in seconds since the epoch: ``canceled_at`` is None unless the run was terminated, ``ended_at`` is None
    during the period.
    """

    state: State
    started_at: float
    canceled_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class Progress:
    """The progress of a run: its periods, the current one last."""

    run_id: str
    periods: tuple[Period, ...]

    @property
    def last(self) -> Period:
        """The last period."""
        return self.periods[-1]

    @property
    def started_at(self) -> float:
        """The start of the run, in seconds since the epoch."""
        return self.periods[0].started_at

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.last.state.is_over

    def period_at(self, time: float) -> int:
        """Return the index of the period that contains a time of a node.

        Nodes and periods have different clocks, so a retry counts from the midpoint between two periods.
        """
        ends = zip(self.periods, self.periods[1:], strict=False)
        return sum(time > ((before.ended_at or after.started_at) + after.started_at) / 2 for before, after in ends)

    def is_canceled(self, end: float | None) -> bool:
        """Return whether a node that failed at this time (if known) did so because the run was canceled."""
        period = self.last if end is None else self.periods[self.period_at(end)]
        canceled = period.canceled_at
        return canceled is not None and (end is None or end >= canceled)


def read_progress(run: Mapping[str, Any], now: float) -> Progress:
    """Return the progress of a run, from its JSON (v2beta1).

    Args:
        now: the time of the response; a state missing from the history began about then.
    """
    found = run.get("state_history")
    history = [
        (as_text(item.get("state")), when)
        for item in map(as_object, found if isinstance(found, list) else ())
        if (when := seconds(item.get("update_time"))) is not None
    ]
    started = seconds(run.get("created_at")) or (history[0][1] if history else 0.0)
    latest, word = history[-1][1] if history else started, as_text(run.get("state"))
    if word and (not history or word != history[-1][0]):
        # Right after a terminate, the history still ends with RUNNING. Whatever ended before now was not canceled.
        history.append((word, max(now, latest) if word == _CANCELING else latest))
    periods = [Period(State.RUNNING, started)]
    for word, when in history:
        last = periods[-1]
        if last.ended_at is not None and word not in _ENDS:  # the run is retried
            last = Period(State.RUNNING, when)
            periods.append(last)
        if word in (_CANCELING, "CANCELED") and last.canceled_at is None:
            periods[-1] = last = replace(last, canceled_at=when)
        if word in _ENDS:
            # KFP ends a canceled run as FAILED.
            is_canceled = last.canceled_at is not None and _STATES[word] is State.FAILED
            periods[-1] = replace(last, state=State.CANCELED if is_canceled else _STATES[word], ended_at=when)
    last, finished = periods[-1], seconds(run.get("finished_at"))
    if last.ended_at is not None:
        periods[-1] = replace(last, ended_at=max(finished or last.ended_at, last.started_at))
    return Progress(as_text(run.get("run_id")), tuple(periods))


def run_state(run: Mapping[str, Any]) -> State:
    """Return the state of a run, from its JSON (v2beta1); a run that KFP has not started is queued."""
    state = _STATES.get(str(run.get("state") or ""), State.QUEUED)
    return read_progress(run, 0.0).last.state if state is State.FAILED else state


def words_of(state: State) -> tuple[str, ...]:
    """Return KFP's states that may stand for a state. For KFP, canceled runs have failed."""
    words = tuple(word for word, meaning in _STATES.items() if meaning is state)
    return (*words, "FAILED") if state is State.CANCELED else words


def seconds(moment: object) -> float | None:
    """Return a time of the API in seconds since the epoch; None for the epoch and the year 1, which mean no time."""
    return _seconds(moment) if isinstance(moment, str) else None


@functools.lru_cache(maxsize=1 << 16)  # nodes share many times
def _seconds(moment: str) -> float | None:
    try:
        # Python 3.10 reads neither Z nor nanoseconds.
        whole, _, rest = moment.removesuffix("Z").partition(".")
        when = datetime.datetime.fromisoformat(whole)
        fraction = float(f"0.{rest}") if rest.isdigit() else 0.0
        found = when.replace(tzinfo=when.tzinfo or datetime.timezone.utc).timestamp() + fraction
    except (ValueError, OverflowError):
        return None
    return found if found > 0 else None
