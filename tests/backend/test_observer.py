"""Runs on a host: the recorded answers of a backend give the events and the states that local runs have."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.answers_of_kfp import RUNS, fold, manifest, observed, pods, polls, states
from tests.backend.host import KfpHost
from tests.backend.workflows import of_2_14
from torchx_kfp.backend.observer import CANCELED_BY, Observer
from torchx_kfp.runs.events import Event, RunEnding, RunFinished, RunStarted, StageFinished, encode
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.vocabulary import State

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
#: What v2beta1 does not say: it has not reported the last steps of a loop in a run that failed.
UNREPORTED = {"failed": {"trial[1]": "not run"}}
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
        "3 queued, 2 waiting, 1 succeeded, 1 skipped",
        "1 running, 1 queued, 2 waiting, 2 succeeded, 1 skipped",
        "2 waiting, 4 succeeded, 1 skipped",
        "1 queued, 1 waiting, 4 succeeded, 1 skipped",
        "1 running, 1 waiting, 4 succeeded, 1 skipped",
        "1 queued, 5 succeeded, 1 skipped",
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
        "1 queued, 3 waiting, 2 cached, 1 skipped",
        "1 running, 1 queued, 2 waiting, 2 cached, 1 skipped",
        "1 failed, 2 waiting, 3 cached, 1 skipped",
        "1 failed, 1 queued, 1 waiting, 3 cached, 1 skipped",
        "1 failed, 2 not run, 3 cached, 1 skipped",
    ],
    "terminated": [
        "6 waiting",
        "1 queued, 5 waiting",
        "5 waiting, 1 cached",
        "2 queued, 3 waiting, 1 cached, 1 skipped",
        "2 queued, 2 waiting, 2 cached, 1 skipped",
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
    return observer, [observer.observe(answer) for answer in polls(name)]


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
    assert states(state) == ENDS[name] | UNREPORTED.get(name, {})
    assert state.state is STATES[name]


@pytest.mark.parametrize("name", RUNS)
def test_whoever_sees_only_the_end_finds_the_same(name: str) -> None:
    observer, answers = _all(name)
    whole = fold(observer, [event for events in answers for event in events])
    late = observed(polls(name)[-1])
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
def test_v1beta1_knows_the_rest(name: str) -> None:
    state = observed(polls(name)[-1], manifest(name))
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
    state = observed(polls("succeeded")[-1], manifest("succeeded"))
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
    result = observed(polls("failed")[-1], manifest("failed")).result()
    assert result["inner/sleeper"].exit_code == 1
    assert result["inner/sleeper"].reason == "ended with exit code 1 (of KFP's launcher)"
    assert result["last"].reason == "was not run: inner failed"
    assert result["never"].reason == CONDITION
    assert result.reason == ""


def test_without_v1beta1_a_stage_just_failed() -> None:
    result = observed(polls("failed")[-1]).result()
    assert (result["inner/sleeper"].exit_code, result["inner/sleeper"].reason) == (None, "failed")
    assert (result["inner/sleeper"].pod_name, result["inner/sleeper"].run_id) == ("", None)
    assert result["last"].reason == "was not run: inner failed"
    assert result["trial[1]"].reason == "was not run, as far as KFP has reported it"


@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_terminated_run_is_canceled(has_manifest: bool) -> None:
    state = observed(polls("terminated")[-1], manifest("terminated") if has_manifest else None)
    assert isinstance(state.ending, RunEnding)
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


def test_v1beta1_is_asked_once_for_all_pods_and_again_about_the_end_of_a_run_that_did_not_succeed() -> None:
    asked: dict[str, list[int]] = {}
    for name in RUNS:
        observer, events = Observer(), []
        for index, answer in enumerate(polls(name)):
            wants = observer.wants_manifest(answer)
            if wants:
                asked.setdefault(name, []).append(index)
            events += observer.observe(answer, manifest(name) if wants else None)
            assert not observer.wants_manifest(answer)
        result = fold(observer, events).result()
        assert {stage.name: str(stage.state) for stage in result.stages} == ENDS[name]
        assert all(stage.pod_name and stage.run_id for stage in result.stages if stage.attempts)
    # All stages of the cached run have no pods. The ends of runs that did not succeed are in v1beta1 only.
    assert {name: len(times) for name, times in asked.items()} == {"succeeded": 1, "failed": 2, "terminated": 2}


def test_a_manifest_with_unexpected_templates_tells_no_other_pods() -> None:
    answers = polls("succeeded")
    at = next(index for index, answer in enumerate(answers) if "first(0)" in str(answer.get("run_details")))
    content = json.loads(manifest("succeeded")["pipeline_runtime"]["workflow_manifest"])
    content["status"]["nodes"] = {}
    template = next(item for item in content["spec"]["templates"] if item["name"].endswith("-impl"))
    template["name"] = "k8s-comp-first-system-container-impl"
    observer = Observer()
    events = [*observer.observe(answers[at], content), *observer.observe(answers[-1])]
    assert not any(stage.pod_name for stage in fold(observer, events).result().stages)


@given(st.integers(0, 1 << 32), st.sampled_from(RUNS), st.floats(0.2, 1))
@settings(deadline=None)
def test_whatever_answers_lack_no_stage_goes_back(seed: int, name: str, share: float) -> None:
    rng = random.Random(seed)
    observer, state, over = Observer(), RunState(), dict[str, str]()
    seen = set()
    for answer in polls(name):
        entries = (answer.get("run_details") or {}).get("task_details") or []
        rng.shuffle(entries)
        entries[:] = [_damaged(rng, entry, share) for entry in entries if rng.random() < share]
        entries += rng.sample(entries, len(entries) // 4)
        for event in observer.observe(answer):
            content = str(encode(event))
            assert content not in seen
            seen.add(content)
            state.on_event(event)
        for stage in state.stages:
            assert over.get(stage.name, str(stage.state)) == str(stage.state)
            if stage.state.is_over:
                over[stage.name] = str(stage.state)
    assert state.state is STATES[name]
    assert all(stage.state.is_over for stage in state.stages)


def _damaged(rng: random.Random, entry: dict[str, Any], share: float) -> dict[str, Any]:
    """Return an entry of which something may be missing or unknown."""
    entry = {key: value for key, value in entry.items() if key == "display_name" or rng.random() < 0.5 + share / 2}
    if rng.random() > share:
        entry["state"] = rng.choice(["PAUSED", "", None, 7, "A_STATE_OF_2030", "CANCELED"])
    return entry


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
    for answer in (run, {**run, "pipeline_spec": spec}):
        observer = Observer()
        assert isinstance(observer.observe(answer)[0], RunStarted)
        assert observer.observe(answer) == []


def test_the_pipeline_may_come_with_any_answer() -> None:
    first, *_, last = polls("succeeded")
    observer = Observer()
    spec = last.pop("pipeline_spec")
    without = {key: value for key, value in first.items() if key != "pipeline_spec"}
    events = observer.observe(without)
    events += observer.observe({**last, "state": "RUNNING"})
    assert len(events) == 1
    events += observer.observe({**last, "pipeline_spec": spec})
    assert states(fold(observer, events)) == ENDS["succeeded"]


@pytest.mark.parametrize("name", RUNS)
def test_before_2_17_stages_end_the_same(name: str) -> None:
    run = of_2_14(name, polls(name)[-1])
    assert states(observed(run)) == ENDS[name] | UNREPORTED.get(name, {})


@pytest.mark.parametrize("version", ["2.14", "2.17"])
def test_an_answer_about_many_stages_is_read_in_time_that_grows_with_their_number(tmp_path: Path, version: str) -> None:
    """Count calls in place of seconds: they do not depend on the machine."""
    calls = {}
    with KfpHost(tmp_path, version=version) as host:
        runs = {stages: host.make_run(stages, chains=10) for stages in (50, 200)}
    for stages, run in runs.items():
        observer = Observer()
        run.advance(started=stages, ended=stages - 10)
        observer.observe(run.describe())
        run.advance(started=stages, ended=stages - 9)
        answer = run.describe()
        count = 0

        def count_call(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(count_call)
        try:
            events = observer.observe(answer)
        finally:
            sys.setprofile(None)
        assert len(events) == 1
        calls[stages] = count
    assert calls[200] < 4.5 * calls[50]
    assert calls[200] < 300 * 200
