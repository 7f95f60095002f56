"""Decide whether a task runs after its upstream tasks, and word the reasons of stages, local or on KFP.

A reason follows the stage's name in a sentence: "train was not run: prepare failed".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchx_kfp.common.text import listed
from torchx_kfp.execution.pipeline.spec import Dag, Task
from torchx_kfp.execution.runs.vocabulary import State

#: How many stages of a group a reason names.
MOST_NAMED = 3
#: The condition of a branch is false.
CONDITION_IS_FALSE = "was skipped: its condition is false"
#: The user has ended the run.
RUN_WAS_ENDED = "the run was ended"
#: The states of tasks whose dependent tasks do not run, and their words. The first that applies counts.
_WITHOUT_OUTPUTS = {
    State.FAILED: "failed",
    State.CANCELED: "was ended",
    State.NOT_RUN: "was not run",
    State.SKIPPED: "was skipped",
}


@dataclass
class TaskOutcome:
    """The end of a task, or of a group of tasks. ``name`` is used in reasons; ``state`` is None until it has ended."""

    name: str = ""
    state: State | None = None
    #: Whether it ended, or did not run, because the run was canceled.
    is_canceled: bool = False
    time: float = 0.0
    #: The failed stages in it, if it is a group.
    failed: list[str] = field(default_factory=list)


def after_upstream(dag: Dag, task: Task, upstream: Sequence[TaskOutcome], stopped: str = "") -> tuple[State, str]:
    """Return the state of a task, given the tasks before it, and the reason if it does not run.

    The state is WAITING until all upstream tasks have ended, then QUEUED for a task that may begin, NOT_RUN or SKIPPED.
    The condition of a task that may start is not evaluated here.

    Args:
        dag: the tasks of the scope.
        task: the task.
        upstream: the tasks in its ``depends_on``.
        stopped: why tasks do not start while the run is ending; empty if they do.
    """
    if any(before.state is None for before in upstream):
        return State.WAITING, ""
    # An exit task, or one that ignores failures, runs however the tasks before it ended.
    for state, words in _WITHOUT_OUTPUTS.items() if not task.ignores_failures else ():
        for before in upstream:
            if before.state is state and before.is_canceled:
                return State.NOT_RUN, not_run(RUN_WAS_ENDED)
            if before.state is state:
                skipped = State.SKIPPED if state is State.SKIPPED else State.NOT_RUN
                return skipped, not_run(f"{before.name} {words}")
    if stopped:
        return State.NOT_RUN, stopped
    if rival := dag.hook_instead_of(task):
        return State.SKIPPED, f"was skipped: KFP runs {rival!r} in its place"
    return State.QUEUED, ""


def is_ignored(task: Task, state: State | None) -> bool:
    """Return whether the task has failed, but the tasks around it succeed anyway.

    On KFP, a run succeeds if only its exit task fails, which is a hook outside the graph.
    """
    return state is State.FAILED and task.ignores_failures


def not_run(why: str) -> str:
    """Return the reason of a stage that does not run."""
    return f"was not run: {why}"


def ends_the_run(failed: str) -> str:
    """Return why no more tasks start after a failure."""
    return f"{failed} failed, which ends the run"


def ended_with_the_run(why: str = "") -> str:
    """Return the reason of a stage that was running when the run was terminated."""
    return f"was ended with the run: {why}" if why else "was ended with the run"


def canceled_while_waiting(why: str, last: str) -> str:
    """Return the reason of a stage that waited for another attempt; ``last`` is its last attempt's reason."""
    before = f"; the last one {last}" if last else ""
    return f"was canceled while it waited for another attempt: {why}{before}"


def failed_in(failed: list[str]) -> str:
    """Return the reason of a nested pipeline, given the names of the failed stages in it."""
    return f"failed in {listed(failed)}" if failed else ""
