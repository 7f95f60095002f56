"""The reasons for which stages do not run, in the same words wherever the run is.

A reason follows the stage's name in a sentence: "train was not run: prepare failed".
"""

from __future__ import annotations

from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import listed

#: How many stages of a group a reason names.
MOST_NAMED = 3
#: The condition of a branch does not hold.
CONDITION_IS_FALSE = "was skipped: its condition is false"
#: The run is over, because its user ended it.
RUN_WAS_ENDED = "the run was ended"
#: The states of tasks whose dependent tasks do not run, and the words that describe them, the first that applies.
WITHOUT_OUTPUTS = {
    State.FAILED: "failed",
    State.CANCELED: "was ended",
    State.NOT_RUN: "was not run",
    State.SKIPPED: "was skipped",
}


def not_run(why: str) -> str:
    """Return the reason of a stage that does not run."""
    return f"was not run: {why}"


def after(upstream: str, state: State) -> tuple[State, str]:
    """Return the state of a task after another one that has no outputs, and the reason."""
    skipped = State.SKIPPED if state is State.SKIPPED else State.NOT_RUN
    return skipped, not_run(f"{upstream} {WITHOUT_OUTPUTS[state]}")


def replaced(rival: str) -> str:
    """Return the reason of an exit task in whose place KFP runs another one."""
    return f"was skipped: KFP runs {rival!r} in its place"


def ends_the_run(failed: str) -> str:
    """Return why nothing more begins after a failure."""
    return f"{failed} failed, which ends the run"


def ended_with_the_run(why: str = "") -> str:
    """Return the reason of a stage that was running when the run was ended."""
    return f"was ended with the run: {why}" if why else "was ended with the run"


def canceled_while_waiting(why: str, last: str) -> str:
    """Return the reason of a stage that was to be tried again; ``last`` is the reason of its last attempt."""
    before = f"; the last one {last}" if last else ""
    return f"was canceled while it waited for another attempt: {why}{before}"


def failed_in(failed: list[str]) -> str:
    """Return the reason of a nested pipeline, given the names of the failed stages in it."""
    return f"failed in {listed(failed)}" if failed else ""
