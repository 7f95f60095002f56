"""The states of a run, and when it was in them."""

from __future__ import annotations

from tests.execution.host.answers_of_kfp import answer
from torchx_kfp.execution.host.states import read_progress, seconds
from torchx_kfp.execution.runs.vocabulary import State


def test_a_run_is_canceled_when_that_was_asked_for() -> None:
    """For a second or more, KFP says CANCELING while the history still ends with RUNNING."""
    polls = answer("canceling")
    found = [read_progress(poll["answer"], poll["at"]) for poll in polls]
    states = [(poll["answer"]["state"], poll["answer"]["state_history"][-1]["state"]) for poll in polls]
    assert states[1] == ("CANCELING", "RUNNING")
    assert [progress.last.canceled_at is not None for progress in found] == [False, True, True, True]
    asked = seconds("2026-11-28T21:45:08Z")
    assert asked is not None
    for progress in found[1:]:
        assert abs((progress.last.canceled_at or 0.0) - asked) <= 1
        # A stage that failed half a minute after the start of the run has failed by itself.
        assert not progress.is_canceled(progress.started_at + 30)
    assert [progress.last.state for progress in found] == [State.RUNNING] * 3 + [State.CANCELED]
