"""The states of stages and runs: their words, order and signs, wherever they are shown."""

from __future__ import annotations

import enum
from collections.abc import Iterable

#: The folder, below the current directory, in which each run has a folder named by its run id.
OUTPUT_DIR = "local_outputs"


class State(str, enum.Enum):
    """The state of a stage or of a run, as its word.

    A run is running, succeeded, failed, canceled or interrupted; a stage can be in any state. The members are in the
    order in which they are shown: the worst first, success last.
    """

    def __new__(cls, word: str, glyph: str = "", style: str = "", color: str = "") -> State:
        state = str.__new__(cls, word)
        state._value_ = word
        state.rank = len(cls.__members__)
        state.glyph, state.style, state.color = glyph, style, color
        return state

    _value_: str
    rank: int
    #: A sign for the state.
    glyph: str
    #: The style of the word in a terminal, as rich knows it, and its color in the report, as ``page.css`` names it.
    style: str
    color: str

    FAILED = "failed", "✗", "bold red", "red"
    #: The process that ran the pipeline was killed.
    INTERRUPTED = "interrupted", "!", "bold red", "purple"
    #: The run was ended while the stage was running or waiting for its next attempt.
    CANCELED = "canceled", "■", "yellow", "orange"
    RUNNING = "running", "●", "cyan", "blue"
    #: An attempt has failed, and the next one follows.
    RETRYING = "retrying", "↻", "yellow", "orange"
    #: The stage knows its inputs and waits for a free place.
    QUEUED = "queued", "○", "dim", "gray"
    #: The stage waits for other stages.
    WAITING = "waiting", "·", "dim", "gray"
    #: A stage that this one depends on has failed, or the run was ended before its turn.
    NOT_RUN = "not run", "–", "dim", "gray"
    #: The application has failed, and the stage has not: it may fail (``may_fail``).
    ALLOWED = "failed (allowed)", "✗", "yellow", "orange"
    SUCCEEDED = "succeeded", "✓", "green", "green"
    #: The outputs were taken from an earlier run that did the same work.
    CACHED = "cached", "=", "green", "teal"
    #: The condition was false, or a stage that this one reads was skipped.
    SKIPPED = "skipped", "↷", "dim", "gray"

    @property
    def is_success(self) -> bool:
        """Whether the stage has outputs."""
        return self in (State.SUCCEEDED, State.ALLOWED, State.CACHED)

    @property
    def css(self) -> str:
        """The class of elements of a page that show the state."""
        return f"s-{self.name.lower()}"

    @property
    def is_active(self) -> bool:
        """Whether the stage has started and has not ended."""
        return self in (State.RUNNING, State.RETRYING)

    @property
    def is_pending(self) -> bool:
        """Whether the stage has not started but still may."""
        return self in (State.QUEUED, State.WAITING)

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return not (self.is_active or self.is_pending)

    def __str__(self) -> str:
        return self._value_


#: The states of runs; on a host, none is interrupted.
RUN_STATES = (State.QUEUED, State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELED, State.INTERRUPTED)


def state_of_all(states: Iterable[State]) -> State:
    """Return the state that represents several: an active one, if any, otherwise the worst."""
    return min(states, key=lambda state: (not state.is_active, state.rank))
