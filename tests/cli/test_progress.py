"""The state machine behind the view: events in, phases and counts out."""

from pathlib import Path

import pytest
from kfp import dsl

from tests.local.components import shell
from tests.local.conftest import execute_failing  # noqa: F401 (a fixture)
from tests.watching import Heard
from torchx_kfp.cli.display.progress import LINES, Phase, Progress
from torchx_kfp.local import load_pipeline
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.runs.events import LoopStarted, RunFinished, RunStarted, StageFinished
from torchx_kfp.runs.events import StageRetried as Retried
from torchx_kfp.runs.events import StageStarted as Started
from torchx_kfp.runs.events import StageWaiting as Waiting
from torchx_kfp.runs.result import StageResult, State


def finished(name: str, state: State = State.SUCCEEDED, **fields: object) -> StageFinished:
    attempts = 0 if state in (State.SKIPPED, State.NOT_RUN, State.CACHED) else 1
    return StageFinished(StageResult(name, name, state, **{"attempts": attempts, **fields}), time=20.0)  # type: ignore[arg-type]


@pytest.fixture
def progress() -> Progress:
    made = Progress({"first": False, "inner/a": False, "inner/b": True, "last": False})
    made.on_event(RunStarted("pipeline", "run-1", Path("/runs/run-1"), time=10.0))
    return made


def test_a_stage_goes_through_its_phases(progress: Progress) -> None:
    assert progress.counts() == {Phase.WAITING: 4}
    for event, phase in (
        (Waiting("first", "first"), Phase.QUEUED),
        (Started("first", "first-0", 1, time=11.0), Phase.RUNNING),
        (Retried("first", 1, "ended with exit code 1", 5.0, time=12.0), Phase.RETRYING),
        (Started("first", "first-1", 2, time=17.0), Phase.RUNNING),
        (finished("first", attempts=2), Phase.DONE),
    ):
        progress.on_event(event)
        stage = progress.tasks["first"].stages["first"]
        assert stage.phase is phase
        assert progress.counts() == {phase: 1, Phase.WAITING: 3}
    # Its time is that of all attempts.
    assert (stage.started_at, stage.retry_at, stage.attempt) == (11.0, 17.0, 2)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (State.SUCCEEDED, Phase.DONE),
        (State.CACHED, Phase.CACHED),
        (State.FAILED, Phase.FAILED),
        (State.SKIPPED, Phase.SKIPPED),
        (State.NOT_RUN, Phase.NOT_RUN),
        (State.CANCELED, Phase.CANCELED),
    ],
)
def test_every_end_has_a_phase(progress: Progress, state: State, phase: Phase) -> None:
    progress.on_event(finished("first", state))
    assert progress.counts() == {phase: 1, Phase.WAITING: 3}


def test_iterations_are_counted_with_their_task(progress: Progress) -> None:
    for index in range(5):
        progress.on_event(Waiting(f"inner/b[{index}]", "b"))
        progress.on_event(Started(f"inner/b[{index}]", "pod", 1))
    progress.on_event(finished("inner/b[1]"))
    progress.on_event(finished("inner/b[2]", State.FAILED))
    task = progress.tasks["inner/b"]
    assert list(task.active) == ["inner/b[0]", "inner/b[3]", "inner/b[4]"]
    assert list(task.failed) == ["inner/b[2]"]
    assert progress.counts(task) == {Phase.FAILED: 1, Phase.RUNNING: 3, Phase.DONE: 1}
    assert progress.counts(progress.root) == {Phase.FAILED: 1, Phase.RUNNING: 3, Phase.DONE: 1, Phase.WAITING: 3}


def test_stages_that_the_outline_has_not_are_found_by_their_names() -> None:
    progress = Progress()
    progress.on_event(finished("x/y[3]/z[0,1]"))
    progress.on_event(finished("x/y[2]/z[10,1]"))
    progress.on_event(finished("x/y[2]/z[9,1]"))
    assert list(progress.tasks) == ["x/y/z"]
    assert progress.tasks["x/y/z"].looped
    assert [result.name for result in progress.results()] == ["x/y[2]/z[9,1]", "x/y[2]/z[10,1]", "x/y[3]/z[0,1]"]


def test_a_stage_that_runs_again_after_its_end_counts_once(progress: Progress) -> None:
    progress.on_event(finished("inner/a", State.FAILED))
    progress.on_event(Started("inner/a", "pod", 1, time=30.0))
    assert progress.counts() == {Phase.RUNNING: 1, Phase.WAITING: 3}
    assert progress.tasks["inner/a"].failed == {}
    assert progress.results() == []


def test_lines_are_the_last_ones_and_the_one_that_has_no_end(progress: Progress) -> None:
    # The first line may be faster than the event.
    progress.on_line("first", "0")
    progress.on_event(Started("first", "pod", 1))
    for number in range(1, 9):
        progress.on_line("first", f"{number}")
        progress.on_line("first", "  ")
    assert progress.lines_of("first") == ["4", "5", "6", "7", "8"]
    progress.on_unfinished("first", "50%")
    assert progress.lines_of("first") == ["5", "6", "7", "8", "50%"]
    progress.on_unfinished("first", "")
    assert progress.lines_of("first")[-1] == "8"
    assert len(progress.lines_of("first")) == LINES
    progress.on_event(finished("first"))
    assert progress.lines_of("first") == []


def test_a_nested_pipeline_that_is_tried_again_is_no_stage(execute_failing) -> None:  # noqa: F811 (its stages run again)
    @dsl.pipeline
    def inner():
        shell(script="exit 3")

    @dsl.pipeline
    def outer():
        inner().set_retry(1, backoff_duration="0s")

    loaded = load_pipeline(outer)
    progress = Progress({place.name: place.looped for place in walk(loaded) if place.is_stage})
    execute_failing(loaded, watch=Heard(on_event=progress.on_event))
    assert list(progress.tasks) == ["inner/shell"]
    assert progress.counts() == {Phase.FAILED: 1}
    assert [result.attempts for result in progress.results()] == [2]


def test_a_resumed_run_is_not_over(progress: Progress) -> None:
    progress.on_event(finished("first", State.FAILED))
    progress.on_event(RunFinished("run-1", State.FAILED, 8.0))
    progress.on_event(RunStarted("pipeline", "run-1", Path("/runs/run-1"), resumed=True, time=100.0))
    assert progress.finished is None
    progress.on_event(finished("first"))
    assert [result.state for result in progress.results()] == [State.SUCCEEDED]


def test_iterations_that_may_not_begin_yet_are_counted(progress: Progress) -> None:
    loop = LoopStarted("for-loop-1", 5, ("inner/b",), time=11.0)
    progress.on_event(loop)
    progress.on_event(Started("inner/b[0]", "b-0", 1, time=12.0))
    progress.on_event(finished("inner/b[0]"))
    progress.on_event(Started("inner/b[1]", "b-1", 1, time=13.0))
    task = progress.tasks["inner/b"]
    assert dict(task.counts) == {Phase.DONE: 1, Phase.RUNNING: 1, Phase.WAITING: 3}
    # A nested pipeline that is tried again has the same ones.
    progress.on_event(loop)
    assert sum(task.counts.values()) == 5
