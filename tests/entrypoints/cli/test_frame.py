"""The picture of a run, at any moment and size, as text."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.execution.host.calling import wait_until
from tests.execution.runs.test_state import finished
from torchx_kfp.entrypoints.cli.display.frame import LINES, OutputTails, frame
from torchx_kfp.entrypoints.cli.display.views import LiveView
from torchx_kfp.execution.runs.events import LoopStarted, RunFinished
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.watch import Terminal as Output
from torchx_kfp.local import RunEnding, RunStarted, StageReplicas, StageRetried, StageStarted, StageWaiting, State

pytestmark = pytest.mark.lowest


class Progress(RunState):
    """A run and the output of its stages."""

    def __init__(self, stages: dict[str, bool]) -> None:
        super().__init__(stages)
        self.output = OutputTails()
        self.on_line = self.output.on_line


def started(name: str, time: float = 10.0, attempt: int = 1) -> StageStarted:
    return StageStarted(name, "pod", attempt, time=time)


def shown(progress: Progress, width: int = 80, height: int = 24, now: float = 75.0) -> str:
    """Return the picture in a terminal of this size."""
    lines = frame(progress, progress.output.tail, width, height, now)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    for line in lines:
        console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


@pytest.fixture
def progress() -> Progress:
    """A run with a loop, a nested pipeline, a retry, and a stage in each final state."""
    names = ("prepare", "train", "flaky", "inner/fit", "inner/score", "cached", "broken", "after", "unless")
    made = Progress({name: name == "train" for name in names})
    made.on_event(RunStarted("digits", "digits-1", Path("/runs"), time=10.0))
    for event in (
        finished("prepare", duration=1.234, results={"data": "uri", "rows": 1797}),
        finished("cached", State.CACHED, results={"loss": 0.25}),
        finished("broken", State.FAILED, reason="ended with exit code 3", duration=61.0, attempts=2),
        finished("after", State.NOT_RUN, reason="was not run: broken failed"),
        finished("unless", State.SKIPPED, reason="was skipped: its condition is false"),
        started("flaky", 15.0),
        StageRetried("flaky", 1, "ended with exit code 1", 30.0, time=70.0),
        *(StageWaiting(f"train[{index}]", "train") for index in range(30)),
        *(started(f"train[{index}]", 20.0 + index) for index in range(12)),
        *(finished(f"train[{index}]") for index in range(9)),
        finished("train[9]", State.FAILED, reason="was ended by signal 9 (SIGKILL)", duration=2.0),
        started("inner/fit", 74.5),
    ):
        made.on_event(event)
    made.on_line("train[10]", "epoch 1")
    made.on_line("train[10]", "epoch 2 loss=0.3")
    return made


def test_a_loop_without_items_has_no_row_in_the_end() -> None:
    run = Progress({"before": False, "train": True})
    for event in (
        finished("before"),
        LoopStarted("train", 0, ("train",)),
        RunFinished("digits-1", State.SUCCEEDED, 1.0),
    ):
        run.on_event(event)
    assert "before" in shown(run)
    assert "train" not in shown(run)


def test_everything_where_there_is_room(progress: Progress) -> None:
    expected = """\
digits 1m 05s  2 failed, 3 running, 1 retrying, 18 queued, 1 waiting, 1 not run, 10 succeeded, 1 cached, 1 skipped
✓ prepare       1.2s  rows=1797  data=uri
● train          55s  ━━━━──────── 10/30  1 failed, 2 running
  ● train[10]    45s
    │ epoch 1
    │ epoch 2 loss=0.3
  ● train[11]    44s
  ✗ train[9]    2.0s  was ended by signal 9 (SIGKILL)
↻ flaky       1m 00s  attempt 2 in 25 s: ended with exit code 1
● inner/fit       0s
· inner/score
= cached              cached  loss=0.25
✗ broken      1m 01s  ended with exit code 3 (2 attempts)
– after               not run: broken failed
↷ unless              skipped: its condition is false"""
    assert shown(progress, 120) == expected


def test_replicas() -> None:
    made = Progress({"plan": False, "train": False, "again": False})
    made.on_event(RunStarted("dist", "dist-1", Path("/runs"), time=10.0))
    for event in (
        finished("plan", results={"n": 4}, replicas=2),
        started("train", 60.0),
        StageReplicas("train", 4, 4, time=61.0),
        StageReplicas("train", 3, 4, time=70.0),
        started("again", 20.0),
        StageReplicas("again", 8, 8, time=21.0),
        StageRetried("again", 1, "ended with exit code 1", 0.0, time=30.0),
        started("again", 70.0, attempt=2),
    ):
        made.on_event(event)
    made.on_line("train", "trainer/0 | epoch 1")
    assert (
        shown(made, 80)
        == """\
dist 1m 05s  2 running, 1 succeeded
✓ plan      0s  2 replicas  n=4
● train    15s  3/4 replicas
  │ trainer/0 | epoch 1
● again    55s  attempt 2"""
    )
    assert [stage.result.replicas for stage in made.stages] == [2, 4, None]


def test_a_low_terminal_has_what_runs_and_what_failed(progress: Progress) -> None:
    assert shown(progress, 80, 9).splitlines()[1:] == [
        "● train          55s  ━━━━──────── 10/30  1 failed, 2 running",
        "  ● train[10]    45s  epoch 2 loss=0.3",
        "  ● train[11]    44s",
        "  ✗ train[9]    2.0s  was ended by signal 9 (SIGKILL)",
        "↻ flaky       1m 00s  attempt 2 in 25 s: ended with exit code 1",
        "● inner/fit       0s",
        "✗ broken      1m 01s  ended with exit code 3 (2 attempts)",
        "⋯ 5 more: 1 waiting, 1 not run, 1 succeeded, 1 cached, 1 skipped",
    ]


@pytest.mark.parametrize("height", [1, 2, 3, 10, 24])
@pytest.mark.parametrize("width", [1, 10, 40, 200])
def test_any_size(progress: Progress, width: int, height: int) -> None:
    shown(progress, width, height)


def test_output_that_would_break_the_picture() -> None:
    progress = Progress({"a": False})
    progress.on_event(RunStarted("p", "p-1", Path("/runs"), time=0.0))
    progress.on_event(started("a"))
    progress.on_line("a", "\ufffd[2J\ufffd[5A \x1b[31mred \x1b[1mbold")
    progress.on_line("a", "日本語" * 100)
    progress.on_line("a", "tab\tend \u202eturned\u200b\u2028 x" + "y" * 70_000)
    text = shown(progress, 30).splitlines()
    assert text[2:4] == ["  │ \ufffd[2J\ufffd[5A red bold", "  │ " + "日本語" * 4 + " …"]
    assert text[4] == "  │ tab end \ufffdturned\ufffd x" + "y" * 7 + "…"
    assert all(cell_len(line) <= 30 for line in text)


def test_the_end_by_a_signal_is_announced(progress: Progress) -> None:
    progress.on_event(RunEnding("SIGINT", 10.0, time=70.0))
    header = shown(progress).splitlines()[0]
    assert header.startswith("SIGINT: ending, 5 s left; another signal: at once  digits 1m 05s  2 failed")


def test_lines_are_the_last_ones_and_the_one_that_has_no_end() -> None:
    output = OutputTails()
    output.on_line("first", "0")
    for number in range(1, 9):
        output.on_line("first", f"{number}")
        output.on_line("first", "  ")
    assert output.tail("first") == ["4", "5", "6", "7", "8"]
    output.on_unfinished("first", "50%")
    assert output.tail("first") == ["5", "6", "7", "8", "50%"]
    output.on_unfinished("first", "")
    assert output.tail("first")[-1] == "8"
    assert len(output.tail("first")) == LINES
    output.forget("first")
    assert output.tail("first") == []


def test_what_others_write_to_stderr_stays_above_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    view = LiveView(RunState({"a": False}), Output(stream), colors=False)
    with view.shown():
        print("a warning", file=sys.stderr)
        view.on_event(RunStarted("pipeline", "run-1", Path("/runs/1"), time=time.time()))
        wait_until(lambda: "· a" in stream.getvalue())
        print("another", file=sys.stderr)
    screen = pyte.Screen(40, 10)
    pyte.Stream(screen).feed(stream.getvalue())
    lines = [line.rstrip() for line in screen.display if line.strip()]
    # A longer line is folded, not cut like the lines of the picture.
    assert lines == ["a warning", "Run run-1: logs and outputs are in /runs", "/1", "another"]
