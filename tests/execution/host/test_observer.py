"""Runs on a host: the recorded answers of a backend give the events and the states that local runs have."""

from __future__ import annotations

import functools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.host.answers_of_kfp import (
    RUNS,
    answer,
    course,
    fold,
    last,
    manifest,
    nodes,
    observed,
    pods,
    polls,
    states,
)
from tests.execution.host.workflows import without_attempts
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.execution.host.manifest import manifest_of, read_manifest
from torchx_kfp.execution.host.nodes import Nodes
from torchx_kfp.execution.host.observer import CANCELED_BY, Observer
from torchx_kfp.execution.runs.events import (
    Event,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePending,
    encode,
)
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import messages

STAGES = ["first", "deploy", "never", "trial[0]", "trial[1]", "inner/sleeper", "last"]
CONDITION = "was skipped: its condition is false"
ENDED = "was not run: the run was ended"
#: The states of the stages at the end, with what v1beta1 says.
ENDS = {
    "succeeded": dict.fromkeys(STAGES, "succeeded") | {"never": "skipped"},
    "cached": dict.fromkeys(STAGES, "cached") | {"never": "skipped"},
    "failed": dict.fromkeys(STAGES, "cached") | {"never": "skipped", "inner/sleeper": "failed", "last": "not run"},
    "terminated": dict.fromkeys(STAGES, "cached")
    | {"never": "skipped", "trial[1]": "not run", "inner/sleeper": "canceled", "last": "not run"},
}
STATES = {
    "succeeded": State.SUCCEEDED,
    "cached": State.SUCCEEDED,
    "failed": State.FAILED,
    "terminated": State.CANCELED,
}
#: What changes from one answer to the next: how many stages are in each state.
COURSE = {
    "succeeded": [
        "6 waiting",
        "1 queued, 5 waiting",
        "1 running, 5 waiting",
        "5 waiting, 1 succeeded",
        "2 queued, 3 waiting, 1 succeeded, 1 skipped",
        "2 running, 1 queued, 2 waiting, 1 succeeded, 1 skipped",
        "1 running, 1 queued, 2 waiting, 2 succeeded, 1 skipped",
        "2 running, 2 waiting, 2 succeeded, 1 skipped",
        "1 running, 2 waiting, 3 succeeded, 1 skipped",
        "2 waiting, 4 succeeded, 1 skipped",
        "1 queued, 1 waiting, 4 succeeded, 1 skipped",
        "1 running, 1 waiting, 4 succeeded, 1 skipped",
        "1 waiting, 5 succeeded, 1 skipped",
        "1 queued, 5 succeeded, 1 skipped",
        "1 running, 5 succeeded, 1 skipped",
        "6 succeeded, 1 skipped",
    ],
    "cached": [
        "6 waiting",
        "1 queued, 5 waiting",
        "5 waiting, 1 cached",
        "5 waiting, 1 cached, 1 skipped",
        "3 queued, 2 waiting, 1 cached, 1 skipped",
        "2 waiting, 4 cached, 1 skipped",
        "1 queued, 1 waiting, 4 cached, 1 skipped",
        "1 queued, 5 cached, 1 skipped",
        "6 cached, 1 skipped",
    ],
    "failed": [
        "6 waiting",
        "1 queued, 5 waiting",
        "5 waiting, 1 cached",
        "2 queued, 3 waiting, 1 cached, 1 skipped",
        "1 running, 3 waiting, 2 cached, 1 skipped",
        "1 running, 1 queued, 2 waiting, 2 cached, 1 skipped",
        "1 failed, 2 waiting, 3 cached, 1 skipped",
        "1 failed, 1 queued, 1 waiting, 3 cached, 1 skipped",
        "1 failed, 1 not run, 4 cached, 1 skipped",
    ],
    "terminated": [
        "6 waiting",
        "1 queued, 5 waiting",
        "5 waiting, 1 cached",
        "1 queued, 4 waiting, 1 cached, 1 skipped",
        "2 queued, 3 waiting, 1 cached, 1 skipped",
        "1 queued, 3 waiting, 2 cached, 1 skipped",
        "1 running, 1 queued, 2 waiting, 2 cached, 1 skipped",
        "1 canceled, 2 waiting, 3 cached, 1 skipped",
        "1 canceled, 2 not run, 3 cached, 1 skipped",
    ],
}


def _counts(state: RunState) -> str:
    return ", ".join(f"{number} {name}" for name, number in state.counts().items())


def _all(name: str) -> tuple[Observer, list[list[Event]]]:
    """Return the events of each answer."""
    observer = Observer("https://kfp/#/runs/details/x")
    return observer, [observer.observe(run, now) for run, now in _course(name)]


@functools.cache
def _course(name: str) -> list[tuple[dict[str, Any], Nodes]]:
    return list(course(name))


@pytest.mark.parametrize("name", RUNS)
def test_each_answer_moves_the_run_on(name: str) -> None:
    observer, answers = _all(name)
    state = fold(observer, [])
    course = []
    for events in answers:
        assert events == sorted(events, key=lambda event: event.time), "in the order of their times"
        for event in events:
            state.on_event(event)
        course.append(_counts(state))
    assert [now for before, now in zip(["", *course], course, strict=False) if now != before] == COURSE[name]
    assert states(state) == ENDS[name]
    assert state.state is STATES[name]


@pytest.mark.parametrize("name", RUNS)
def test_whoever_sees_only_the_end_finds_the_same(name: str) -> None:
    observer, answers = _all(name)
    whole = fold(observer, [event for events in answers for event in events])
    late = observed(last(name), nodes(name))
    assert states(late) == states(whole)
    for one, other in zip(late.stages, whole.stages, strict=True):
        assert (one.result, one.reason, one.started_at, len(one.attempts)) == (
            other.result,
            other.reason,
            other.started_at,
            len(other.attempts),
        )
    assert late.duration() == whole.duration()


@pytest.mark.parametrize("name", RUNS)
def test_every_stage_ends_once(name: str) -> None:
    _, answers = _all(name)
    events = [event for events in answers for event in events]
    ends = Counter(event.result.name for event in events if isinstance(event, StageFinished))
    assert ends == dict.fromkeys(STAGES, 1)
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert len({str(encode(event)) for event in events}) == len(events)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_pods_and_run_ids(name: str) -> None:
    state = observed(last(name), nodes(name))
    assert states(state) == ENDS[name]
    assert state.state is STATES[name]
    result = state.result()
    tracked = {stage.name: stage for stage in result.stages if stage.attempts}
    if name in ("succeeded", "failed"):
        assert {stage.name: stage.pod_name for stage in tracked.values()} == {
            stage: pod for stage, pod in pods(name).items() if pod
        }
    for stage in tracked.values():
        assert stage.run_id == f"{result.run_id}/{stage.task}/{stage.pod_name}"
        assert stage.tracker_base == "/mnt/results"
        assert stage.pod_name.startswith("recorded-")


def test_times_are_those_of_the_pods() -> None:
    started = 1795316146.0  # 2026-11-22T02:55:46Z
    state = observed(last("succeeded"), nodes("succeeded"))
    assert state.first is not None
    assert state.first.time == started
    assert state.duration() == 278.0
    assert {stage.name: (stage.started_at or 0) - started for stage in state.stages if stage.attempts} == {
        "first": 43.0,
        "deploy": 140.0,
        "trial[0]": 161.0,
        "trial[1]": 213.0,
        "inner/sleeper": 140.0,
        "last": 268.0,
    }
    assert {stage.name: stage.duration for stage in state.result().stages if stage.attempts} == {
        "first": 46.0,
        "deploy": 15.0,
        "trial[0]": 14.0,
        "trial[1]": 24.0,
        "inner/sleeper": 27.0,
        "last": 7.0,
    }


def test_a_failed_stage_has_its_exit_code_and_what_follows_is_not_run() -> None:
    result = observed(last("failed"), nodes("failed")).result()
    assert result["inner/sleeper"].exit_code == 1
    assert result["inner/sleeper"].reason == "ended with exit code 1 (of KFP's launcher)"
    assert result["last"].reason == "was not run: inner failed"
    assert result["never"].reason == CONDITION
    assert result.reason == ""


def test_a_failed_importer_has_a_pod_whose_log_says_why() -> None:
    failed = observed(last("import-failed"), nodes("import-failed")).result()["kept-double-model"]
    assert failed.pod_name == "l4-dump-vcslw-system-importer-834526667"
    assert failed.reason == "ended with exit code 2 (of KFP's launcher)"


def test_the_record_of_a_run_that_an_earlier_version_resumed_is_read() -> None:
    ends = observed(last("imported"), nodes("imported")).result().stages
    kept = {end.name for end in ends if end.cached_from}
    assert kept == {"double", "one", "use", "looped[0]", "looped[1]", "long", "rep"}


@pytest.mark.parametrize("name", RUNS)
def test_without_nodes_only_the_run_has_a_state(name: str) -> None:
    events = Observer().observe(last(name))
    kinds = [encode(event)["event"] for event in events]
    assert kinds == ["run_started", *(["run_ending"] if name == "terminated" else []), "run_finished"]
    assert observed(last(name)).state is STATES[name]


def test_a_terminated_run_is_canceled() -> None:
    state = observed(last("terminated"), nodes("terminated"))
    assert isinstance(state.ending, RunEnding)
    (message,) = messages(state.ending)
    assert re.match(says("Canceled on KFP", "1 s"), message)
    result = state.result()
    assert result.reason == CANCELED_BY
    assert (result["inner/sleeper"].state, result["inner/sleeper"].reason) == (
        State.CANCELED,
        "was ended with the run",
    )
    assert result["inner/sleeper"].exit_code is None
    assert result["trial[1]"].reason == result["last"].reason == ENDED


def test_the_run_has_a_link_and_its_arguments() -> None:
    observer, answers = _all("failed")
    first = answers[0][0]
    assert isinstance(first, RunStarted)
    assert first.link == "https://kfp/#/runs/details/x"
    assert first.folder is None
    assert first.run_id == "c14c3bc2-ec22-455e-89d1-57dbeaef7640"
    assert first.arguments == {"accuracy": 0.900745, "code": 3, "tracker_base": "/mnt/results", "wait": 2.0}
    assert observer.pipeline is not None
    assert first.pipeline == observer.pipeline.name == "recorded"


@given(st.integers(0, 1 << 32), st.sampled_from(RUNS))
@settings(deadline=None, max_examples=20)
def test_nodes_that_are_older_than_the_ones_before_take_nothing_back(seed: int, name: str) -> None:
    rng = random.Random(seed)
    observer, state, over = Observer(), RunState(), dict[str, str]()
    answers, seen = _course(name), set()
    for index, (run, now) in enumerate(answers):
        is_last = index + 1 == len(answers)
        for event in observer.observe(run, now if is_last else answers[rng.randrange(index + 1)][1]):
            content = str(encode(event))
            assert content not in seen
            seen.add(content)
            state.on_event(event)
        for stage in state.stages:
            assert over.get(stage.name, str(stage.state)) == str(stage.state)
            if stage.state.is_over:
                over[stage.name] = str(stage.state)
    assert state.state is STATES[name]
    assert {stage.name: str(stage.state) for stage in state.stages} == ENDS[name]


# Retries of the run


def _seen(*answers: tuple[str, str]) -> tuple[RunState, list[Event]]:
    """Return what is seen of answers, given the names of v2beta1's and v1beta1's."""
    observer, events = Observer(), list[Event]()
    for run, of_nodes in answers:
        events += observer.observe(answer(run), nodes(of_nodes))
    return fold(observer, events), events


FIRST = ("retried-failed-v2beta1", "retried-failed")
#: A second after the retry: v1beta1 may still have the nodes of the failed attempt.
STALE = ("retried-poll-0", "retried-failed")
END = ("retried-v2beta1", "retried")


@pytest.mark.parametrize("answers", [[END], [STALE, END], [FIRST, END], [FIRST, STALE, STALE, END]])
def test_a_run_that_was_over_may_run_again(answers: list[tuple[str, str]]) -> None:
    state, events = _seen(*answers)
    assert states(state) == {"first": "succeeded", "second": "succeeded", "third": "succeeded"}
    assert state.state is State.SUCCEEDED
    assert [(event.resumed, event.time - 1795412580.0) for event in events if isinstance(event, RunStarted)] == [
        (False, 0.0),
        (True, 255.0),
    ]
    assert [str(event.state) for event in events if isinstance(event, RunFinished)] == ["failed", "succeeded"]
    assert state.duration() < 410
    kept = [event.result.name for event in events if isinstance(event, StageFinished) and event.kept]
    assert kept == ["first"]
    result = state.result()
    assert result["second"].exit_code == 0
    assert result["second"].started_at == 1795412835.0
    assert [len(state.attempts[name]) for name in ("first", "second", "third")] == [
        1,
        (len(answers[:-1]) and 2) or 1,
        1,
    ]


def test_a_retry_is_said() -> None:
    _, events = _seen(FIRST, STALE)
    (retry,) = [event for event in events if isinstance(event, RunStarted) and event.resumed]
    assert re.match(says("retried", "runs again"), messages(retry)[0])


def test_after_a_retry_stages_wait_until_something_is_known_of_them() -> None:
    state, _ = _seen(FIRST, STALE)
    assert states(state) == {"first": "succeeded", "second": "waiting", "third": "waiting"}
    assert state.state is State.RUNNING


# Stages that cannot start


def test_pods_are_refused() -> None:
    state = observed(last("no-service-account"), nodes("no-service-account"))
    assert re.match(says("KFP's driver failed: ", 'serviceaccount "nobody" not found'), state.result().reason)
    assert states(state) == {"tick": "not run"}


def test_a_pending_driver_names_stages_that_there_are() -> None:
    observer, pending = Observer(), list[str]()
    events: list[Event] = []
    for run, now in course("nested-loop", pending=True):
        new = observer.observe(run, now)
        pending += (event.name for event in new if isinstance(event, StagePending))
        events += new
    assert pending[0] == "pair[0,0]", "that waits for the driver of the pipeline"
    pairs = {f"pair[{first},{second}]": "succeeded" for first in (0, 1) for second in (0, 1)}
    assert states(fold(observer, events)) == {**pairs, "join": "succeeded"}


def test_what_a_pod_waits_for_is_told_once_and_whenever_it_changes() -> None:
    observer, events = Observer(), list[Event]()
    found = json.loads(manifest_of(manifest("stuck")))
    pod = next(node for node in found["status"]["nodes"].values() if "Unschedulable" in node.get("message", ""))
    for message in (pod["message"], pod["message"], "Unschedulable: 0/2 nodes are available", "PodInitializing", ""):
        pod["message"] = message
        events += observer.observe(last("stuck"), read_manifest(json.dumps(found)))
    told = [event for event in events if isinstance(event, StagePending)]
    assert [event.reason for event in told if event.name == "too-large"] == [
        "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu",
        "Unschedulable: 0/2 nodes are available",
        "",
    ]
    (missing,) = [event for event in told if event.name == "no-image"]
    # Whether the kubelet tries or waits for its next try is the same to a reader.
    assert missing.reason.startswith('ErrImagePull: failed to pull and unpack image "example.com/missing:1": ')
    state = fold(observer, events)
    assert states(state) == {"no-image": "queued", "too-large": "queued"}
    assert [stage.is_stuck for stage in state.stages] == [True, False]
    assert messages(missing)[0].startswith("no-image cannot start: ErrImagePull: ")


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"state": None, "run_id": 3, "state_history": {}, "run_details": []},
        {"state": "RUNNING", "run_details": {"task_details": "none"}, "pipeline_spec": []},
        {"state": "FAILED", "state_history": [None, {"state": "FAILED"}], "runtime_config": {"parameters": 3}},
        {"state": "SUCCEEDED", "run_details": {"task_details": [None, 3, {}, {"display_name": "x", "child_tasks": 3}]}},
    ],
)
def test_answers_that_say_next_to_nothing(run: dict[str, Any]) -> None:
    spec = polls("failed")[0]["pipeline_spec"]
    for given_run in (run, {**run, "pipeline_spec": spec}):
        observer = Observer()
        assert isinstance(observer.observe(given_run)[0], RunStarted)
        assert observer.observe(given_run) == []


def test_the_pipeline_may_come_with_any_answer() -> None:
    end = last("succeeded")
    without = {key: value for key, value in end.items() if key != "pipeline_spec"}
    observer = Observer()
    events = observer.observe({**without, "state": "RUNNING"}, nodes("succeeded"))
    assert len(events) == 1
    events += observer.observe(end)
    assert states(fold(observer, events)) == ENDS["succeeded"]


@pytest.mark.parametrize("name", RUNS)
def test_before_2_17_stages_end_the_same(name: str) -> None:
    old = read_manifest(json.dumps(without_attempts(name)))
    assert states(observed(last(name), old)) == ENDS[name]


@pytest.mark.parametrize("version", ["2.14", "2.17"])
def test_an_answer_about_many_stages_is_read_in_time_that_grows_with_their_number(tmp_path: Path, version: str) -> None:
    """Count calls in place of seconds: they do not depend on the machine."""
    calls = {}
    with KfpHost(tmp_path, version=version) as host:
        runs = {stages: host.make_run(stages, chains=10) for stages in (50, 200)}
    for stages, run in runs.items():
        observer = Observer()
        run.advance(started=stages, ended=stages - 10)
        before = read_manifest(manifest_of(run.describe_v1()))
        observer.observe(run.describe(), before)
        run.advance(started=stages, ended=stages - 9)
        now, manifest = run.describe(), manifest_of(run.describe_v1())
        count = 0

        def count_call(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(count_call)
        try:
            events = observer.observe(now, read_manifest(manifest, before))
        finally:
            sys.setprofile(None)
        assert len(events) == 1
        calls[stages] = count
    assert calls[200] < 4.5 * calls[50]
    assert calls[200] < 300 * 200
