"""The states of stages and runs: their words, order and signs, wherever they are shown."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class State(str, enum.Enum):
    """The state of a stage or of a run, as its word.

    A run is running, succeeded, failed, canceled or interrupted; a stage can be in any state. The members are in the
    order in which they are shown: the worst first, success last.
    """

    def __new__(cls, word: str, glyph: str = "", ascii_glyph: str = "", style: str = "") -> State:
        state = str.__new__(cls, word)
        state._value_ = word
        state.rank = len(cls.__members__)
        state.glyph, state.ascii_glyph, state.style = glyph, ascii_glyph, style
        return state

    _value_: str
    rank: int
    #: A sign for the state, and one for terminals that are limited to ASCII.
    glyph: str
    ascii_glyph: str
    #: The style of the word in a terminal, as rich knows it; the report's are in ``page.css``.
    style: str

    FAILED = "failed", "✗", "x", "bold red"
    #: The process that ran the pipeline was killed.
    INTERRUPTED = "interrupted", "!", "!", "bold red"
    #: The run was ended while the stage was running or waiting for its next attempt.
    CANCELED = "canceled", "■", "#", "yellow"
    RUNNING = "running", "●", "*", "cyan"
    #: An attempt has failed, and the next one follows.
    RETRYING = "retrying", "↻", "r", "yellow"
    #: The stage knows its inputs and waits for a free place.
    QUEUED = "queued", "○", "o", "dim"
    #: The stage waits for other stages.
    WAITING = "waiting", "·", ".", "dim"
    #: A stage that this one depends on has failed, or the run was ended before its turn.
    NOT_RUN = "not run", "–", "-", "dim"
    SUCCEEDED = "succeeded", "✓", "+", "green"
    #: The outputs were taken from an earlier run that did the same work.
    CACHED = "cached", "=", "=", "green"
    #: The condition was false, or a stage that this one reads was skipped.
    SKIPPED = "skipped", "↷", ">", "dim"

    @property
    def is_success(self) -> bool:
        """Whether the stage has outputs."""
        return self in (State.SUCCEEDED, State.CACHED)

    @property
    def is_active(self) -> bool:
        """Whether the stage has started and has not ended."""
        return self in (State.RUNNING, State.RETRYING)

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return not (self.is_active or self in (State.QUEUED, State.WAITING))

    def __str__(self) -> str:
        return self._value_


def state_of_all(states: Iterable[State]) -> State:
    """Return the state that represents several: an active one if there is one, otherwise the worst."""
    return min(states, key=lambda state: (not state.is_active, state.rank))
