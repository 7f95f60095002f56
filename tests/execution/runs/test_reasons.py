"""Decisions about a task after its upstream tasks: one table for local runs and runs on KFP."""

from __future__ import annotations

import itertools

import pytest

from torchx_kfp.execution.pipeline.spec import Dag, Task
from torchx_kfp.execution.runs.reasons import TaskOutcome, after_upstream, is_ignored
from torchx_kfp.execution.runs.vocabulary import State

BEGINS, WAITS = (State.QUEUED, ""), (State.WAITING, "")
STOPPED = "was not run: other failed, which ends the run"
#: For each state of one upstream task: what becomes of a task after it, and of one that runs after failures.
TABLE = {
    None: (WAITS, WAITS),
    State.SUCCEEDED: (BEGINS, BEGINS),
    State.ALLOWED: (BEGINS, BEGINS),
    State.CACHED: (BEGINS, BEGINS),
    State.FAILED: ((State.NOT_RUN, "was not run: a failed"), BEGINS),
    State.CANCELED: ((State.NOT_RUN, "was not run: a was ended"), BEGINS),
    State.NOT_RUN: ((State.NOT_RUN, "was not run: a was not run"), BEGINS),
    State.SKIPPED: ((State.SKIPPED, "was not run: a was skipped"), BEGINS),
    # The host does not know more about a task that was running when KFP last reported it.
    State.INTERRUPTED: (BEGINS, BEGINS),
}


def decide(*upstream: TaskOutcome, stopped: str = "", **own: bool) -> tuple[State, str]:
    task = Task("b", "b", "comp-b", depends_on=tuple(before.name for before in upstream), **own)
    return after_upstream(Dag({"b": task}), task, upstream, stopped)


@pytest.mark.parametrize("state", TABLE, ids=str)
def test_one_upstream_task_decides(state: State | None) -> None:
    usual, always = TABLE[state]
    upstream = TaskOutcome("a", state)
    assert decide(upstream) == usual
    assert decide(upstream, ignores_failures=True) == always
    stopped = (State.NOT_RUN, STOPPED)
    assert decide(upstream, stopped=STOPPED) == (stopped if usual == BEGINS else usual)


def test_the_table_has_every_final_state() -> None:
    assert set(TABLE) == {None, *(state for state in State if state.is_over)}


def test_a_task_without_upstream_tasks_begins_unless_the_run_is_ending() -> None:
    assert decide() == decide(ignores_failures=True) == BEGINS
    assert decide(stopped=STOPPED) == (State.NOT_RUN, STOPPED)


def test_the_worst_upstream_task_is_named_and_the_first_of_several() -> None:
    order = [State.FAILED, State.CANCELED, State.NOT_RUN, State.SKIPPED, State.SUCCEEDED]
    for worse, better in itertools.combinations(order, 2):
        both = decide(TaskOutcome("c", better), TaskOutcome("a", worse))
        assert both == TABLE[worse][0]
    assert decide(TaskOutcome("a", State.FAILED), TaskOutcome("c", State.FAILED)) == TABLE[State.FAILED][0]


def test_kfp_runs_one_exit_task_for_each_task() -> None:
    exits = [Task(name, name, f"comp-{name}", depends_on=("a",), ignores_failures=True) for name in ("first", "second")]
    dag = Dag({task.name: task for task in exits})
    for state in (State.SUCCEEDED, State.FAILED):
        upstream = [TaskOutcome("a", state)]
        replaced = (State.SKIPPED, "was skipped: KFP runs 'second' in its place")
        assert [after_upstream(dag, task, upstream) for task in exits] == [replaced, BEGINS]
        assert after_upstream(dag, exits[0], upstream, STOPPED) == (State.NOT_RUN, STOPPED)
    assert [after_upstream(dag, task, [TaskOutcome("a", None)]) for task in exits] == [WAITS, WAITS]


def test_only_the_failure_of_an_exit_task_is_ignored() -> None:
    always, usual = (Task("b", "b", "comp-b", ignores_failures=ignores_failures) for ignores_failures in (True, False))
    assert [state for state in State if is_ignored(always, state)] == [State.FAILED]
    assert not [state for state in State if is_ignored(usual, state)]
