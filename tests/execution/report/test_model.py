"""The facts that a run's folder shows, from events of pipelines that really ran, and from parts of these events."""

import fcntl
from itertools import pairwise
from pathlib import Path

import pytest
from kfp import dsl

from tests.execution.local.components import python, shell
from tests.execution.report.runs import play, record, write_events
from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.report import read_model
from torchx_kfp.execution.report.graph import counts_of
from torchx_kfp.execution.report.timeline import draw_timeline
from torchx_kfp.execution.runs.events import (
    RunFinished,
    RunStarted,
    StageFinished,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.local import State


@dsl.pipeline(name="flaky")
def flaky():
    first = shell(script='[ -e "$0.seen" ] || { echo first > /dev/null; exit 7; }').set_retry(1, backoff_duration="0s")
    python(code="raise SystemExit('gone')").set_display_name("second")
    shell(script="true").after(first)


def test_a_run_is_read_as_it_was(tmp_path: Path) -> None:
    folder, result = record(flaky, {}, tmp_path)
    run = read_model(folder)
    assert (run.run_id, run.pipeline, run.state) == (result.run_id, "flaky", "failed")
    assert {stage.name: stage.state for stage in run.stages} == {stage.name: stage.state for stage in result.stages}
    assert [stage.name for stage in run.stages] == [stage.name for stage in result.stages]
    retried = next(stage for stage in run.stages if stage.name == "shell")
    assert [attempt.state for attempt in retried.attempts] == ["failed", "failed"]
    assert retried.attempts[0].reason == "ended with exit code 7"
    assert all(attempt.end is not None for attempt in retried.attempts)
    assert run.duration >= sum(attempt.end - attempt.start for attempt in retried.attempts if attempt.end)
    assert dict(counts_of(stage.state for stage in run.stages)) == {"failed": 2, "not run": 1}


def unfinished(folder: Path, *further: object) -> Path:
    """Return a run in which stage a has succeeded, b is in its second attempt, and c waits."""
    events = [
        RunStarted("p", "run-1", folder, time=100.0),
        StageStarted("a", "a-0", 1, "a", folder / "a-0/log.txt", time=101.0),
        StageFinished(StageResult("a", "a", State.SUCCEEDED, attempts=1, duration=2.0), time=103.0),
        StageStarted("b", "b-0", 1, "b", time=103.0),
        StageRetried("b", 1, "ended with exit code 1", 0.0, time=104.0),
        StageStarted("b", "b-1", 2, "b", inputs={"x": 1}, time=104.0),
        StageWaiting("c", "c", time=104.5),
    ]
    write_events(folder, [*events, *further])
    return folder


def states(folder: Path) -> dict[str, str]:
    return {stage.name: stage.state for stage in read_model(folder).stages}


def test_a_run_whose_runner_lives_is_running(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = read_model(folder, now=110.0)
        assert (run.state, run.duration) == ("running", 10.0)
        assert states(folder) == {"a": "succeeded", "b": "running", "c": "queued"}
        [running] = [stage for stage in run.stages if stage.state == "running"]
        assert [(attempt.state, attempt.end) for attempt in running.attempts] == [("failed", 104.0), ("running", None)]
        assert running.result.inputs == {"x": 1}
    assert read_model(folder, now=110.0).state == "interrupted"


def test_a_killed_runner_leaves_an_interrupted_run(tmp_path: Path) -> None:
    folder = unfinished(tmp_path)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "stage_fin')
    run = read_model(folder, now=1000.0)
    assert (run.state, run.duration, run.unreadable) == ("interrupted", 4.5, ())
    assert states(folder) == {"a": "succeeded", "b": "interrupted", "c": "not run"}


def test_a_canceled_run_says_what_was_running(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, RunFinished("run-1", State.CANCELED, 6.0, time=106.0))
    assert read_model(folder).state == "canceled"
    assert states(folder) == {"a": "succeeded", "b": "canceled", "c": "not run"}


def test_a_resumed_run_is_one_run_and_the_time_between_is_left_out(tmp_path: Path) -> None:
    folder = unfinished(
        tmp_path,
        RunStarted("p", "run-1", tmp_path, resumed=True, time=5000.0),
        StageStarted("b", "b-2", 1, "b", time=5001.0),
        StageFinished(StageResult("b", "b", State.SUCCEEDED, attempts=1, duration=1.0), time=5002.0),
        RunFinished("run-1", State.SUCCEEDED, 2.0, time=5002.5),
    )
    run = read_model(folder)
    assert (run.state, [(it.start, it.end) for it in run.sessions], run.duration) == (
        "succeeded",
        [(100.0, 104.5), (5000.0, 5002.5)],
        6.5,
    )
    [b] = [stage for stage in run.stages if stage.name == "b"]
    assert [attempt.state for attempt in b.attempts] == ["failed", "interrupted", "succeeded"]
    timeline = draw_timeline(run)
    assert timeline.resumed == [pytest.approx(100 * 4.5 / 7)]
    [row] = [row for row in timeline.rows if row.path == "b"]
    assert [round(bar.left + bar.width, 3) for bar in row.bars] == [
        pytest.approx(100 * 4 / 7, abs=1e-3),
        pytest.approx(100 * 4.5 / 7, abs=1e-3),
        pytest.approx(100 * 6.5 / 7, abs=1e-3),
    ]


def test_the_iterations_of_a_loop_share_a_row_of_lanes_without_overlaps(tmp_path: Path) -> None:
    play(tmp_path, [f"train[{number}]" for number in range(200)], parallel=7)
    [row] = draw_timeline(read_model(tmp_path)).rows
    assert (row.path, row.lanes, len(row.bars)) == ("train", 7, 200)
    for lane in range(7):
        bars = sorted((bar.left, bar.left + bar.width) for bar in row.bars if bar.lane == lane)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(bars))
    assert max(bar.left + bar.width for bar in row.bars) == pytest.approx(100)


def test_a_moved_folder_has_its_logs_where_it_is_now(tmp_path: Path) -> None:
    play(tmp_path / "old", ["a"])
    (tmp_path / "old").rename(tmp_path / "new")
    [stage] = read_model(tmp_path / "new").stages
    assert stage.result.log_file == tmp_path / "new" / "a-0" / "log.txt"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=says("is not the folder of a run", "events.jsonl is missing")):
        read_model(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(ArgumentError, match=says("has not started yet", "nothing has happened")):
        read_model(tmp_path)
