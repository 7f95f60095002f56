"""Results of stages that KFP took from its cache: their readers know from which run they are."""

# Annotations are not postponed: kfp reads them as types.

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.cases.apps import python
from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.results import cached_execution_ids
from torchx_kfp.execution.pipeline.walk import indices_of, walk_tasks, without_indices
from torchx_kfp.execution.runs.prepared_run import prepare
from torchx_kfp.execution.runs.record import cached_by_kfp
from torchx_kfp.execution.runs.watch import messages
from torchx_kfp.host import Host, HostRun
from torchx_kfp.local import Event, RunFinished, RunResult, StageFinished, StageResult, State, Watch, load_pipeline

RECORD = """
import sys
from torchx_kfp.tracking import current_run
current_run().put(value=sys.argv[1])
"""


@dsl.container_component
def prints(run_id: str, last: str):
    return dsl.ContainerSpec(image="busybox:1", command=["echo", run_id, last])


@dsl.pipeline(name="inner")
def inner(tracker_base: str, first: str, value: str):
    stages = Stages(tracker_base=tracker_base)
    one = stages.task(python("one", RECORD, f"{value}"), reads={"first": first})
    stages.task(python("two", RECORD, f"{value}!"), reads=one)


@dsl.pipeline(name="outer")
def outer(tracker_base: str, last: str, found: str = "b"):
    stages = Stages(tracker_base=tracker_base)
    first = stages.task(python("first", RECORD, "1"))
    # Two iterations do the same work, so they have one run id once they are cached.
    with dsl.ParallelFor(["x", "x", "y"]) as item:
        trial = stages.task(python("trial", RECORD, f"{item}"), reads=first)
        with dsl.ParallelFor([1, 2]) as number:
            deep = stages.task(python("deep", RECORD, f"{item}{number}"), reads={"before": trial})
    with dsl.If(found == "a") as if_a:
        a = stages.task(python("branch", RECORD, "a"))
    with dsl.Else():
        b = stages.task(python("branch", RECORD, "b"))
    del if_a
    # Two stages of one name, and a fan-in.
    best = stages.task(
        python("best", RECORD, "best"),
        reads={
            "trials": dsl.Collected(trial.outputs["run_id"]),
            "deep": dsl.Collected(deep.outputs["run_id"]),
            "both": [first, stages.task(python("first", RECORD, "other"))],
            "branch": dsl.OneOf(a.outputs["run_id"], b.outputs["run_id"]),
        },
    )
    inner(tracker_base=tracker_base, first=first.outputs["run_id"], value="n")
    stages.task(python("unread", RECORD, "u"))
    # Components of KFP, and programs that are not Python, record nothing.
    prints(run_id=stages.task(python("printed", RECORD, "p")).outputs["run_id"], last=last)
    shell = Role("shell", image="busybox:1", entrypoint="echo", args=[f"{last}"])
    stages.task(AppDef("shell", [shell]), reads=stages.task(python("echoed", RECORD, "e")))
    stages.task(python("last", RECORD, f"{last}"), reads={"best": best})


@pytest.fixture
def submit(host: Host, tmp_path: Path) -> Callable[..., HostRun]:
    def submit(**arguments: Any) -> HostRun:
        base = str(tmp_path / "results")
        return HostRun(host.connection, host.submit(load_pipeline(outer), {"tracker_base": base, **arguments}))

    return submit


def values(result: RunResult) -> dict[str, Any]:
    return {stage.name: (stage.results or {}).get("value") for stage in result.stages if stage.state.is_success}


def test_results_of_cached_stages_are_those_that_their_readers_were_given(
    submit: Callable[..., HostRun],
) -> None:
    first = submit(last="1").wait()
    # The two iterations have one run id from now on, so what reads all of them runs again.
    again = submit(last="1").wait()
    assert again["best"].state is State.SUCCEEDED
    run = submit(last="2")
    second = run.wait()
    cached = {stage.name for stage in second.stages if stage.state is State.CACHED}
    ran = {"last", "prints", "shell"}
    assert cached == {stage.name for stage in first.stages if stage.state.is_success} - ran
    known = values(first)
    assert len(set(known.values())) > 10
    # Nobody reads the last stage of the nested pipeline, and the one before it is read by that alone.
    unread = dict.fromkeys(["unread", "inner/two", "inner/one"])
    assert values(second) == {**known, "last": "2", **unread}
    for stage in second.stages:
        if stage.name in cached - unread.keys():
            assert stage.cached_from == (again if stage.name == "best" else first).run_id
            assert (stage.execution_id or "").startswith(f"{stage.cached_from}/")
    record = run.read()
    assert re.search(says("No results of cached stages: ", "unread", "inner/two"), cached_by_kfp(record))
    assert "trial" not in cached_by_kfp(record)
    # Who comes later reads the same.
    assert values(HostRun(run._connection, run.run_id).read().run.result()) == values(second)


@dsl.pipeline(name="slow")
def slow(tracker_base: str, go: str, turn: str):
    stages = Stages(tracker_base=tracker_base)
    prepare = stages.task(python("prepare", RECORD, "1"))
    wait = stages.task(
        python("wait", "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)", go)
    )
    wait.set_caching_options(False)
    stages.task(python("train", RECORD, f"{turn}"), reads=prepare).after(wait)


def test_a_watch_is_told_again_what_becomes_known_of_a_cached_stage(host: Host, tmp_path: Path) -> None:
    go = tmp_path / "go"

    class Told(Watch):
        """It lets the run go on once the end of the cached stage was told."""

        def __init__(self) -> None:
            self.events: list[Event] = []

        def on_event(self, event: Event) -> None:
            self.events.append(event)
            if isinstance(event, StageFinished) and event.result.name == "prepare":
                go.touch()

    told = Told()
    for turn in ("1", "2"):
        go.unlink(missing_ok=True)
        arguments = {"tracker_base": str(tmp_path / "results"), "go": str(go), "turn": turn}
        told.events.clear()
        HostRun(host.connection, host.submit(load_pipeline(slow), arguments)).wait(told)
    ends = [event for event in told.events if isinstance(event, StageFinished) and event.result.name == "prepare"]
    assert [(end.again, end.result.results) for end in ends] == [(False, None), (True, {"value": "1"})]
    assert ends[1].result.execution_id
    assert [len(messages(end)) for end in ends] == [1, 0]
    assert isinstance(told.events[-1], RunFinished)


def test_stages_that_run_afresh(host: Host, tmp_path: Path) -> None:
    """All executions of a stage, in loops and nested pipelines, and what reads them; the others stay cached."""
    arguments = {"tracker_base": str(tmp_path / "results"), "last": "1"}
    for fresh in ((), (), ["deep", "inner"]):
        prepared = prepare(load_pipeline(outer), arguments, fresh=fresh)
        result = HostRun(host.connection, host.submit(prepared.pipeline, prepared.arguments)).wait()
    assert {without_indices(stage.name) for stage in result.stages if stage.state is State.SUCCEEDED} == {
        "deep",
        "inner/one",
        "inner/two",
        "best",
        "last",
    }
    with pytest.raises(ArgumentError, match=says("'outer'", "'dep'", "Did you mean 'deep'?", "branch-2")):
        prepare(load_pipeline(outer), arguments, fresh=["dep"])


@dsl.pipeline(name="long")
def long(tracker_base: str):
    stages = Stages(tracker_base=tracker_base)
    with dsl.ParallelFor(["x", "y"]) as item:
        trial = stages.task(python("trial", RECORD, f"{item}"))
        score = stages.task(python("score", RECORD, f"{item}"), reads={"of": trial})
    stages.task(python("best", RECORD), reads={"scores": dsl.Collected(score.outputs["run_id"])})


def test_the_time_for_a_loop_of_cached_stages_grows_with_its_length() -> None:
    """Each poll of a run looks for run ids."""
    places = list(walk_tasks(load_pipeline(long), arguments={"tracker_base": "/results"}))
    [reads] = [place.task.parameters for place in places if place.name == "best"]

    def seconds(length: int) -> float:
        names = [f"{name}[{number}]" for name in ("trial", "score") for number in range(length)]
        ends = {name: StageResult(name, without_indices(name), State.CACHED) for name in names}
        scores = [f"old/score/pod-{number}" for number in range(length)]
        recorded = {score: {"of": [score.replace("score", "trial")]} for score in scores}
        began = time.process_time()
        found = cached_execution_ids(places, ends, {"best": dict.fromkeys(reads, scores)}, lambda by_base: recorded)
        took = time.process_time() - began
        assert found == {name: f"old/{without_indices(name)}/pod-{indices_of(name)[0]}" for name in names}
        return took

    assert seconds(1200) < 16 * seconds(150), "it is 8 times as long"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (["old/score/pod-0"], {}),
        (["old/score/pod-0", "old/score/pod-1", "old/score/pod-2"], {}),
        (["old/trial/pod-0", "old/score/pod-1"], {"score[1]": "old/score/pod-1"}),
    ],
)
def test_run_ids_that_may_be_of_another_execution_are_not_taken(scores: list[str], expected: dict[str, str]) -> None:
    places = list(walk_tasks(load_pipeline(long), arguments={"tracker_base": "/results"}))
    [reads] = [place.task.parameters for place in places if place.name == "best"]
    ends = {f"score[{number}]": StageResult("", "score", State.CACHED) for number in range(2)}
    assert cached_execution_ids(places, ends, {"best": dict.fromkeys(reads, scores)}, lambda by_base: {}) == expected
