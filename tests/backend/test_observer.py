"""Runs on a host: the recorded answers of a backend give the events and the states that local runs have."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.backend.answers_of_kfp import RUNS, fold, manifest, observed, pods, polls, states
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
