"""Stages derived from nodes that the recordings do not have."""

# Annotations are not postponed: kfp reads them as types.

import json
from collections.abc import Mapping
from typing import Any

import pytest
from kfp import dsl

from tests.execution.host.answers_of_kfp import fold, states
from tests.execution.host.pipelines import work
from tests.execution.host.workflows import workflow
from torchx_kfp.execution.host.manifest import read_manifest
from torchx_kfp.execution.host.observer import Observer
from torchx_kfp.execution.pipeline.load import load_pipeline, read_specs
from torchx_kfp.execution.runs.events import (
    Event,
    LoopStarted,
    PipelineRetried,
    RunFinished,
    StageRetried,
    StageStarted,
    encode,
)
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State

POD = {"type": "Pod", "templateName": "system-container-impl"}
DONE = {"phase": "Succeeded"}
ROOT = {"W": {"phase": "Running"}, "W.root-driver": DONE, "W.root": {"phase": "Running"}}


@dsl.pipeline
def chain(code: str = ""):
    first = work(code=code)
    work(code=code).after(first).set_retry(2, backoff_duration="5s")


@dsl.container_component
def items(found: dsl.OutputPath(list)):  # type: ignore[valid-type] (KFP's own form)
    return dsl.ContainerSpec(image="app:1", command=["python3", "-c", "pass"], args=[found])


@dsl.pipeline
def loops():
    with dsl.ParallelFor(items().outputs["found"]) as code:
        work(code=code)


@dsl.pipeline
def branches(code: str = "a"):
    with dsl.If(code == "b"):
        work(code=code)


@dsl.pipeline
def one(code: str = ""):
    work(code=code)


@dsl.pipeline
def nested(code: str = ""):
    one(code=code).set_retry(1)


@dsl.pipeline
def with_exit(code: str = ""):
    bye = work(code="bye")
    with dsl.ExitHandler(bye):
        work(code=code)


@dsl.pipeline
def imports():
    dsl.importer(artifact_uri="s3://bucket/data", artifact_class=dsl.Dataset, reimport=False)


class Watched:
    """A run whose nodes a test sets."""

    def __init__(self, pipeline: Any) -> None:
        spec, platform = read_specs(load_pipeline(pipeline).text)
        self.observer = Observer()
        self._spec = {"pipeline_spec": spec, "platform_spec": platform}
        self.state: RunState | None = None

    def now(self, nodes: Mapping[str, Mapping[str, Any]], **run: Any) -> list[Event]:
        """Return the new events after an answer about a run with these nodes."""
        answer = {
            "run_id": "id",
            "created_at": "2026-11-22T03:00:00Z",
            "state": "RUNNING",
            "pipeline_spec": self._spec,
            **run,
        }
        events = self.observer.observe(answer, read_manifest(json.dumps(workflow({**ROOT, **nodes}))))
        self.state = self.state or fold(self.observer, [])
        for event in events:
            self.state.on_event(event)
        return events

    def ends(self, nodes: Mapping[str, Mapping[str, Any]], state: str = "SUCCEEDED", **run: Any) -> dict[str, str]:
        """Return the states of the stages after the last answer."""
        self.now(nodes, state=state, finished_at="2026-11-22T03:10:00Z", **run)
        assert self.state is not None
        return states(self.state)

    def reason(self, stage: str) -> str:
        assert self.state is not None
        return self.state.result()[stage].reason


def ran(name: str, start: float = 0, end: float | None = None, **pod: Any) -> dict[str, dict[str, Any]]:
    """Return the nodes of a stage that runs or has succeeded."""
    phase = {"phase": "Running" if end is None else "Succeeded"}
    return {
        f"{name}-driver": DONE,
        name: {**phase, "at": (start, end)},
        f"{name}.executor": {**POD, **phase, "at": (start, end), **pod},
    }


def test_a_stage_is_queued_until_its_pod_runs() -> None:
    watched = Watched(one)
    watched.now({"W.root.work-driver": {"phase": "Running"}})
    assert states(watched.state) == {"work": "queued"}
    watched.now(ran("W.root.work", phase="Pending"))
    assert states(watched.state) == {"work": "queued"}
    (event,) = watched.now(ran("W.root.work", start=7))
    assert isinstance(event, StageStarted)
    assert event.pod_name.startswith("W-system-container-impl-")
    assert states(watched.state) == {"work": "running"}
    assert watched.ends(ran("W.root.work", 7, 9)) == {"work": "succeeded"}
    result = watched.state.result()["work"]
    assert (result.exit_code, result.attempts, result.duration) == (0, 1, 2.0)


def test_a_stage_that_is_retried() -> None:
    watched = Watched(chain)
    path = "W.root.work-2"
    first = {**ran("W.root.work", 0, 1), **ran(path), f"{path}.executor": {"phase": "Running"}}
    failed = {**POD, "phase": "Failed", "message": "main: Error (exit code 7)", "outputs": {"exitCode": "7"}}
    watched.now({**first, f"{path}.executor(0)": {**failed, "at": (10, 20)}})
    assert states(watched.state) == {"work": "succeeded", "work-2": "retrying"}
    assert watched.state is not None
    assert next(stage for stage in watched.state.stages if stage.name == "work-2").retry_at % 60 == 25.0
    (event,) = watched.now(
        {
            **first,
            f"{path}.executor(0)": {**failed, "at": (10, 20)},
            f"{path}.executor(1)": {**POD, "phase": "Running", "at": (31,)},
        }
    )
    assert isinstance(event, StageStarted)
    assert event.attempt == 2
    end = {
        **first,
        path: {"phase": "Failed"},
        f"{path}.executor": {"phase": "Failed"},
        f"{path}.executor(0)": {**failed, "at": (10, 20)},
        f"{path}.executor(1)": {**failed, "at": (31, 40)},
    }
    assert watched.ends(end, "FAILED") == {"work": "succeeded", "work-2": "failed"}
    result = watched.state.result()["work-2"]
    assert (result.attempts, result.exit_code, result.reason) == (2, 7, "ended with exit code 7")
    assert result.duration == 30.0


def test_whoever_comes_late_sees_all_attempts() -> None:
    path = "W.root.work-2"
    failed = {**POD, "phase": "Failed", "message": "main: Error (exit code 7)"}
    watched = Watched(chain)
    nodes = {
        **ran("W.root.work", 0, 1),
        **ran(path, 10, 50),
        f"{path}.executor": {"phase": "Succeeded"},
        f"{path}.executor(0)": {**failed, "at": (10, 20)},
        f"{path}.executor(1)": {**POD, "phase": "Succeeded", "at": (31, 50)},
    }
    events = watched.now(nodes)
    (retried,) = [event for event in events if isinstance(event, StageRetried)]
    assert (retried.attempt, retried.delay, retried.reason) == (1, 11.0, "ended with exit code 7")
    assert [event.attempt for event in events if isinstance(event, StageStarted) and event.name == "work-2"] == [1, 2]
    assert watched.ends(nodes) == {"work": "succeeded", "work-2": "succeeded"}


def test_a_nested_pipeline_that_is_retried() -> None:
    watched = Watched(nested)
    path = "W.root.one"
    around = {f"{path}-driver": DONE, path: {"phase": "Running"}}
    failed = {"phase": "Failed", "message": "main: Error (exit code 1)", "at": (10, 20)}
    lost = {
        f"{path}(0)": {"phase": "Failed", "at": (5, 20)},
        f"{path}(0).work-driver": DONE,
        f"{path}(0).work": failed,
        f"{path}(0).work.executor": {**POD, **failed},
    }
    watched.now({**around, **lost})
    assert states(watched.state) == {"one/work": "failed"}
    again = {f"{path}(1)": {"phase": "Running", "at": (25,)}, f"{path}(1).work-driver": {"phase": "Running"}}
    events = watched.now({**around, **lost, **again})
    (retried,) = [event for event in events if isinstance(event, PipelineRetried)]
    assert (retried.name, retried.attempt, retried.reason, retried.delay) == ("one", 1, "failed in one/work", 5.0)
    assert states(watched.state) == {"one/work": "queued"}
    done = {f"{path}(1)": DONE, **ran(f"{path}(1).work", 30, 40)}
    assert watched.ends({**around, **lost, **done, path: DONE}) == {"one/work": "succeeded"}
    assert watched.state.result()["one/work"].attempts == 2


NO_MORE = {"phase": "Error", "message": "No more retries left"}


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({"": {"phase": "Failed", "message": "main: Error (exit code 1)"}}, "ended with exit code 1"),
        (
            {"": NO_MORE, "(0)": {"phase": "Error", "message": "a"}, "(1)": {"phase": "Error", "message": "b"}},
            "failed: b",
        ),
    ],
)
def test_a_driver_that_fails_fails_its_stage(nodes: dict[str, Any], reason: str) -> None:
    watched = Watched(chain)
    failed = {f"W.root.work-driver{attempt}": node for attempt, node in nodes.items()}
    assert watched.ends(failed, "FAILED") == {"work": "failed", "work-2": "not run"}
    assert watched.reason("work") == f"could not be prepared: KFP's driver {reason}"
    assert watched.reason("work-2") == "was not run: work failed"


def test_a_driver_of_a_group_that_fails() -> None:
    watched = Watched(branches)
    failed = {"W.root.condition-1-driver": {"phase": "Failed", "message": "cannot evaluate"}}
    assert watched.ends(failed, "FAILED") == {"condition-1": "failed"}
    assert watched.reason("condition-1") == "could not be prepared: KFP's driver failed: cannot evaluate"


def test_the_driver_of_the_run_fails() -> None:
    watched = Watched(one)
    events = watched.now(
        {"W.root-driver": {"phase": "Failed"}, "W.root": {"phase": "Omitted"}},
        state="FAILED",
        error={"message": "no such parameter"},
    )
    assert states(watched.state) == {"work": "not run"}
    assert isinstance(events[-1], RunFinished)
    assert events[-1].reason == "no such parameter"


def test_a_loop_over_an_output_has_as_many_iterations_as_its_driver_says() -> None:
    watched = Watched(loops)
    path = "W.root.for-loop-1"
    count = {"parameters": [{"name": "iteration-count", "value": "3"}]}
    before = ran("W.root.items", 0, 1)
    start = {
        path: {"phase": "Running"},
        f"{path}.iteration-driver": {**DONE, "outputs": count},
        f"{path}.iteration-iterations": {"phase": "Running", "at": (5,)},
    }
    (event,) = [event for event in watched.now({**before, **start}) if isinstance(event, LoopStarted)]
    assert (event.name, event.iterations, event.stages) == ("for-loop-1", 3, ("work",))
    assert watched.state is not None
    assert {str(state): number for state, number in watched.state.counts().items()} == {"waiting": 3, "succeeded": 1}
    items: dict[str, dict[str, Any]] = {}
    for index in range(3):
        item = f"{path}.iteration-iterations({index}:{index})"
        items |= {
            item: {"phase": "Running"},
            f"{item}.iteration-item-driver": DONE,
            f"{item}.iteration-item": {"phase": "Running"},
            **ran(f"{item}.iteration-item.work", 10, 20 + index),
        }
    assert watched.ends({**before, **start, **items}) == {
        "items": "succeeded",
        "work[0]": "succeeded",
        "work[1]": "succeeded",
        "work[2]": "succeeded",
    }


def test_a_loop_that_is_cut_short() -> None:
    watched = Watched(loops)
    path, count = "W.root.for-loop-1", {"parameters": [{"name": "iteration-count", "value": "2"}]}
    nodes = {
        **ran("W.root.items", 0, 1),
        path: {"phase": "Failed"},
        f"{path}.iteration-driver": {**DONE, "outputs": count},
        f"{path}.iteration-iterations": {"phase": "Failed", "at": (5, 9)},
    }
    history = [{"state": "CANCELING", "update_time": "2026-11-22T03:00:06Z"}]
    assert watched.ends(nodes, "FAILED", state_history=history) == {
        "items": "succeeded",
        "work[0]": "not run",
        "work[1]": "not run",
    }
    assert watched.reason("work[0]") == "was not run: the run was ended"


@pytest.mark.parametrize("hook", ["W.root.exit-handler-1.onExit", "W.root.exit-handler-1.onExit(0)"])
def test_an_exit_task_is_a_hook(hook: str) -> None:
    watched = Watched(with_exit)
    handler = "W.root.exit-handler-1"
    failed = {"phase": "Failed", "message": "main: Error (exit code 1)", "at": (10, 20)}
    nodes = {
        f"{handler}-driver": DONE,
        handler: {"phase": "Failed"},
        f"{handler}.work-2-driver": DONE,
        f"{handler}.work-2": failed,
        f"{handler}.work-2.executor": {**POD, **failed},
    }
    watched.now(nodes)
    assert states(watched.state) == {"work-2": "failed", "work": "waiting"}
    whole = {"W.root.exit-handler-1.onExit": DONE, hook: DONE, **ran(f"{hook}.work", 30, 40)}
    assert watched.ends({**nodes, **whole}, "FAILED") == {"work-2": "failed", "work": "succeeded"}


def test_an_import_has_no_pod_and_no_attempts() -> None:
    watched = Watched(imports)
    watched.now({"W.root.importer": {**POD, "phase": "Running"}})
    assert states(watched.state) == {"importer": "waiting"}
    assert watched.ends({"W.root.importer": {**POD, "phase": "Succeeded", "at": (3, 9)}}) == {"importer": "succeeded"}
    result = watched.state.result()["importer"]
    assert (result.attempts, result.pod_name, result.duration) == (0, "", 0.0)


def test_a_run_that_was_tried_again_after_a_cancellation_has_failed() -> None:
    watched = Watched(one)
    failed = {"phase": "Failed", "message": "main: OOMKilled (exit code 137)", "at": (300, 360)}
    nodes = {"W.root.work-driver": DONE, "W.root.work": failed, "W.root.work.executor": {**POD, **failed}}
    words = ["RUNNING", "CANCELING", "FAILED", "PENDING", "RUNNING", "FAILED"]
    history = [{"state": word, "update_time": f"2026-11-22T03:0{index}:00Z"} for index, word in enumerate(words)]
    assert watched.ends(nodes, "FAILED", state_history=history) == {"work": "failed"}
    assert watched.state.state is State.FAILED
    assert watched.reason("work") == "ended with exit code 137 (OOMKilled)"


def test_later_answers_than_the_last_one_tell_nothing() -> None:
    watched = Watched(one)
    watched.ends(ran("W.root.work", 7, 9))
    assert watched.now(ran("W.root.work", 7)) == []


def test_a_pipeline_that_cannot_be_read_is_a_problem_and_not_an_error() -> None:
    observer = Observer()
    run = {"run_id": "id", "display_name": "mine", "created_at": "2026-11-22T03:00:00Z", "state": "SUCCEEDED"}
    events = observer.observe({**run, "pipeline_spec": {"of": "another kind"}})
    assert [encode(event)["event"] for event in events] == ["run_started", "run_finished"]
    assert "cannot be read" in observer.problem
    assert json.dumps(encode(events[0]))
