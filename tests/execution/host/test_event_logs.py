"""Recorded and made-up runs of a host give the events that are kept in ``recorded/kfp/events``: see ``event_logs``."""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import RUNS, last, pods
from tests.execution.host.event_logs import (
    FOLDER,
    answers,
    file_of,
    is_seen_in_progress,
    log,
    names,
    replaying,
    trees,
)
from tests.fake_kfp import KfpHost
from torchx_kfp.host import attach
from torchx_kfp.local import (
    Event,
    PipelineRetried,
    RunFinished,
    RunResult,
    RunStarted,
    StageFinished,
    StageStarted,
    State,
)

#: Runs of which more than the end is known.
IN_PROGRESS = [name for name in names() if is_seen_in_progress(name)]


@dataclass
class Seen:
    """All that is seen of a run: the new events of each answer, the log of them, and the end."""

    batches: list[tuple[Event, ...]]
    log: str
    end: Any
    duration: float

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for batch in self.batches for event in batch)


@functools.cache
def seen(name: str, *, late: bool = False) -> Seen:
    """Read a run from a host that gives all answers, or only the last one."""
    with replaying(name) as replayed:
        batches = [replayed.see(*each) for each in answers(name)[-1 if late else 0 :]]
        assert replayed.see(*answers(name)[-1]) == (), "nothing is told twice"
        run = replayed.run.read().run
        events = tuple(event for batch in batches for event in batch)
        return Seen(batches, log(replayed, events), ends_of(run.result()), run.duration())


def ends_of(result: RunResult) -> Any:
    """Return how a run and its stages have ended; the attempts before a retry are known only to who has seen them."""
    stages = [(it.name, it.state, it.exit_code, it.reason, it.pod_name, it.started_at) for it in result.stages]
    return result.state, result.reason, stages


@pytest.mark.parametrize("name", names())
def test_a_run_gives_its_events(name: str) -> None:
    """``python -m tests.execution.host.event_logs`` rewrites them: review the difference."""
    found = seen(name)
    assert found.log == (FOLDER / file_of(name)).read_text(encoding="utf-8")
    verify(found.events)
    for new in found.batches:
        assert all(one.time <= other.time for one, other in pairwise(new)), "in the order of their times"


def test_no_log_is_left_of_a_run_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(name) for name in names()}


def verify(events: tuple[Event, ...]) -> None:
    """Check what holds for all runs: each stage ends once, in each time that the run and what is around it runs."""
    assert isinstance(events[0], RunStarted)
    assert len(set(map(repr, events))) == len(events)
    ended: Counter[str] = Counter()
    for event in events:
        if isinstance(event, RunStarted | PipelineRetried):
            ended.clear()
        elif isinstance(event, StageFinished):
            ended[event.result.name] += 1
        elif isinstance(event, StageStarted):
            assert not ended[event.name], f"{event.name} starts after its end"
    assert set(ended.values()) <= {1}
    assert isinstance(events[-1], RunFinished) or not any(isinstance(event, RunFinished) for event in events[-2:])
    began = [number for number, event in enumerate(events) if isinstance(event, RunStarted)]
    over = [number for number, event in enumerate(events) if isinstance(event, RunFinished)]
    assert all(end == start - 1 for end, start in zip(over, began[1:], strict=False)), "nothing is between two periods"


@pytest.mark.parametrize("name", IN_PROGRESS)
def test_whoever_comes_late_finds_the_same(name: str) -> None:
    early, late = seen(name), seen(name, late=True)
    assert early.end == late.end
    # Who comes after a retry of the run does not know when it had ended before.
    assert abs(early.duration - late.duration) <= (2 if name == "retried" else 0)


@pytest.mark.parametrize("name", [name for name in trees() if name in IN_PROGRESS])
def test_answers_from_before_the_end_tell_nothing_after_it(name: str) -> None:
    with replaying(name) as replayed:
        replayed.see(*answers(name)[-1])
        assert replayed.see(*answers(name)[0]) == ()


@pytest.mark.parametrize("name", RUNS)
def test_nodes_that_are_older_than_the_ones_before_take_nothing_back(name: str) -> None:
    rng, course = random.Random(1), answers(name)
    over = dict[str, State]()
    with replaying(name) as replayed:
        events: tuple[Event, ...] = ()
        for index, (run, _) in enumerate(course):
            is_last = index + 1 == len(course)
            events += replayed.see(run, course[index if is_last else rng.randrange(index + 1)][1])
            for stage in replayed.run.read().run.stages:
                assert over.get(stage.name, stage.state) is stage.state
                if stage.state.is_over:
                    over[stage.name] = stage.state
        assert ends_of(replayed.run.read().run.result()) == seen(name).end
    verify(events)


@pytest.mark.parametrize("name", ["succeeded", "failed"])
def test_pods_are_those_that_ml_metadata_has(name: str) -> None:
    started = {event.name: event.pod_name for event in seen(name).events if isinstance(event, StageStarted)}
    assert started == {stage: pod for stage, pod in pods(name).items() if pod}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"state": None, "state_history": {}, "run_details": []},
        {"state": "RUNNING", "run_details": {"task_details": "none"}, "pipeline_spec": []},
        {"state": "FAILED", "state_history": [None, {"state": "FAILED"}], "runtime_config": {"parameters": 3}},
    ],
)
def test_answers_that_say_next_to_nothing(run: dict[str, Any]) -> None:
    whole = answers("failed")[0][0]
    for more in ({}, {"pipeline_spec": whole["pipeline_spec"]}):
        with replaying("failed") as replayed:
            given = {**run, **more, "run_id": whole["run_id"]}
            assert isinstance(replayed.see(given, {})[0], RunStarted)
            assert replayed.see(given, {}) == ()


def test_a_run_tells_its_name() -> None:
    with replaying("failed") as replayed:
        replayed.see(*answers("failed")[-1])
        record = replayed.run.read()
        assert (record.name, record.pipeline, record.load().name) == (
            last("failed")["display_name"],
            "recorded",
            "recorded",
        )
        assert repr(replayed.run) == f"<HostRun {record.run_id} on {replayed.server.url}>"


def test_an_answer_about_many_stages_is_read_in_time_that_grows_with_their_number(tmp_path: Path) -> None:
    """Count calls in place of seconds: they do not depend on the machine."""
    calls = {}
    for stages in (50, 200):
        with KfpHost(tmp_path / str(stages)) as host:
            made = host.make_run(stages, chains=10)
            made.advance(started=stages, ended=stages - 10)
            run = attach(made.record.run_id, host=host.url)
            before = len(run.read().events)
            made.advance(started=stages, ended=stages - 9)
            count = 0

            def count_call(frame: object, event: str, argument: object) -> None:
                nonlocal count
                count += event == "call"

            sys.setprofile(count_call)
            try:
                record = run.read()
            finally:
                sys.setprofile(None)
            assert len(record.events) == before + 1
            calls[stages] = count
    assert calls[200] < 4.5 * calls[50]
    assert calls[200] < 300 * 200
