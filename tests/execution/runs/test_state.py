"""The state that is computed from a run's events, and its readers."""

import json
from pathlib import Path

import pytest

from tests.execution.local.conftest import execute_failing  # noqa: F401 (a fixture)
from torchx_kfp.execution.runs.events import LoopStarted, PipelineRetried, RunStarted, StageFinished, encode_event
from torchx_kfp.execution.runs.events import StageStarted as Started
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State


def finished(name: str, state: State = State.SUCCEEDED, **fields: object) -> StageFinished:
    attempts = 0 if state in (State.SKIPPED, State.NOT_RUN, State.CACHED) else 1
    return StageFinished(StageResult(name, name, state, **{"attempts": attempts, **fields}), time=20.0)


@pytest.fixture
def run() -> RunState:
    made = RunState({"first": False, "inner/a": False, "inner/b": True, "last": False})
    made.on_event(RunStarted("pipeline", "run-1", Path("/runs/run-1"), time=10.0))
    return made


def test_stages_that_the_outline_has_not_are_found_by_their_names() -> None:
    run = RunState()
    run.on_event(finished("x/y[3]/z[0,1]"))
    run.on_event(finished("x/y[2]/z[10,1]"))
    run.on_event(finished("x/y[2]/z[9,1]"))
    assert list(run.tasks) == ["x/y/z"]
    assert "x/y/z" in run.expected
    assert [stage.name for stage in run.stages] == ["x/y[2]/z[9,1]", "x/y[2]/z[10,1]", "x/y[3]/z[0,1]"]


def test_a_stage_that_runs_again_after_its_end_counts_once(run: RunState) -> None:
    run.on_event(finished("inner/a", State.FAILED))
    run.on_event(Started("inner/a", "pod", 1, time=30.0))
    assert run.counts() == {State.RUNNING: 1, State.WAITING: 3}
    assert not run.has_ended("inner/a")


def test_a_nested_pipeline_that_is_tried_again_changes_what_failed_in_it(run: RunState) -> None:
    for name, state in (("first", State.FAILED), ("inner/a", State.FAILED), ("inner/b[0]", State.SUCCEEDED)):
        run.on_event(finished(name, state))
    run.on_event(PipelineRetried("inner", 1, "failed in inner/a", 5.0, time=21.0))
    states = {name: stage.state for name, stage in run.by_name.items()}
    assert states == {"first": State.FAILED, "inner/a": State.RETRYING, "inner/b[0]": State.SUCCEEDED}
    assert run.by_name["inner/a"].retry_at == 26.0


@pytest.mark.parametrize(("now", "seconds"), [(13.5, 3.5), (7.0, 0.0)])
def test_a_stage_that_runs_has_no_negative_duration_if_clocks_differ(run: RunState, now: float, seconds: float) -> None:
    run.on_event(Started("first", "first", 1, "first", None, time=10.0))
    assert [stage.duration for stage in run.result(now).stages if stage.name == "first"] == [seconds]


def test_iterations_that_may_not_begin_yet_are_counted(run: RunState) -> None:
    loop = LoopStarted("for-loop-1", 5, ("inner/b",), time=11.0)
    run.on_event(loop)
    run.on_event(Started("inner/b[0]", "b_1", 1, time=12.0))
    run.on_event(finished("inner/b[0]"))
    run.on_event(Started("inner/b[1]", "b-1_1", 1, time=13.0))
    task = "inner/b"
    assert run.counts([task]) == {State.SUCCEEDED: 1, State.RUNNING: 1, State.WAITING: 3}
    # A nested pipeline that is retried has the same stages.
    run.on_event(loop)
    assert sum(run.counts([task]).values()) == 5


def test_a_log_whose_folder_no_disk_can_have_is_none(tmp_path: Path) -> None:
    lines = [
        encode_event(RunStarted("pipeline", "run-1", tmp_path, time=10.0)),
        encode_event(Started("tr\ud800", "tr\ud800_1", 1, log_file=tmp_path / "tr\ud800_1" / "log.txt", time=11.0)),
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    [started] = read_run(tmp_path).run.attempts_at("tr\ud800")
    assert started.log_file is None
