"""Stages that run at the same time, and the order in which they run."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035

import threading
import time
from typing import List

import pytest
from kfp import dsl

from tests.execution.local.components import shell, write
from tests.watching import Heard
from torchx_kfp.execution.local import dag_scheduler
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.local import StageFinished, StageStarted


def _overlap(events):
    """Return the largest number of stages that ran at the same time."""
    running = most = 0
    for event in events:
        running += isinstance(event, StageStarted)
        running -= isinstance(event, StageFinished)
        most = max(most, running)
    return most


@pytest.mark.parametrize(("limit", "parallelism", "expected"), [(2, 8, 2), (0, 3, 3), (5, 1, 1)])
def test_parallelism_of_the_run_and_of_a_loop(execute, tmp_path, limit, parallelism, expected):
    # The first ones wait for each other, so that all of them run at the same time.
    script = f"cd {tmp_path}; touch $$.here; until [ $(ls *.here | wc -l) -ge {expected} ]; do sleep 0.02; done"

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2, 3, 4, 5], parallelism=limit or None):
            shell(script=script)

    events = []
    execute(pipeline, watch=Heard(on_event=events.append), parallelism=parallelism)
    assert _overlap(events) == expected


def test_a_task_starts_as_soon_as_its_own_inputs_are_there(execute, tmp_path):
    @dsl.pipeline
    def pipeline():
        shell(script=f"until [ -e {tmp_path}/end ]; do sleep 0.02; done")
        quick = write(x="x")
        write(x=quick.outputs["out"])

    events = []

    def hear(event):
        events.append(event)
        if isinstance(event, StageFinished) and event.result.name == "write-2":
            (tmp_path / "end").touch()

    result = execute(pipeline, parallelism=2, watch=Heard(on_event=hear))
    ended = [event.result.name for event in events if isinstance(event, StageFinished)]
    assert ended == ["write", "write-2", "shell"]
    # Results are in the pipeline's order, whichever stage ended first.
    assert [stage.name for stage in result.stages] == ["shell", "write", "write-2"]


def test_three_hundred_stages(execute):
    @dsl.pipeline
    def pipeline(items: List[int]):
        with dsl.ParallelFor(items):
            shell(script=":")

    # Measure only this process's CPU time: other programs on the machine affect the clock.
    started = time.process_time()
    result = execute(pipeline, {"items": list(range(300))})
    assert len(result.stages) == 300
    # Each takes 3-5 ms.
    assert time.process_time() - started < 300 * 0.03


def test_the_items_of_all_loops_are_limited(execute, execute_failing):
    @dsl.pipeline
    def pipeline(points: list):
        with dsl.ParallelFor(points) as x, dsl.ParallelFor(["a", "b", "c"]):
            write(x=x)

    assert len(execute(pipeline, {"points": ["1", "2"]}, max_items=8).stages) == 6
    result = execute_failing(pipeline, {"points": ["1", "2"]}, max_items=7)
    reasons = {stage.reason for stage in result.stages if stage.state == "failed"}
    told = "loops over 3 items, but all loops of a run together may have 7"
    assert any(told in reason for reason in reasons), reasons
    assert any("max_items of local.run" in reason for reason in reasons)


def test_a_stage_that_the_cache_looks_for_holds_up_no_other(execute, tmp_path, monkeypatch):
    """To find out, it may walk a large artifact, inspect an image or ask a store, which takes time."""
    get, other_ended, looked = Cache.get, threading.Event(), []

    def slow(self, key):
        looked.append(key)
        if len(looked) == 1:
            assert other_ended.wait(120)
        return get(self, key)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Cache, "get", slow)
    monkeypatch.setattr(dag_scheduler, "_PATIENCE", 0.2)

    @dsl.pipeline
    def pipeline():
        write(x="slow")
        write(x="x")
        write(x="y")

    ended = []

    def hear(event):
        if isinstance(event, StageFinished):
            ended.append(event.result.name)
            other_ended.set()

    execute(pipeline, cache=True, parallelism=2, watch=Heard(on_event=hear))
    assert len(looked) == 3
    assert sorted(ended) == ["write", "write-2", "write-3"]
