"""All readers of a run agree: there is one list of events, and several commands show it."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from tests.entrypoints.cli.conftest import Call
from tests.execution.report.runs import Page, shown, write_events
from torchx_kfp.local import (
    Event,
    LoopStarted,
    PipelineRetried,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StageResult,
    StageRetried,
    StageStarted,
    StageWaiting,
    State,
)

RUN = "p-1"
FOLDER = Path("local_outputs") / RUN
#: The time at which the run began. It has lasted 9 seconds, unless a case says something else.
BEGIN = 1_700_000_000.0


@dataclass
class Case:
    """Events after the first one, and the state that results from them."""

    run: str
    stages: dict[str, str]
    events: list[Event]
    seconds: float = 9.0
    #: The tasks of the pipeline, each of which depends on the one before; none if the pipeline is not known.
    tasks: tuple[str, ...] = ("a", "b", "c")
    is_running: bool = False


def started(name: str, at: float, attempt: int = 1) -> StageStarted:
    pod = f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}_{attempt}"
    task = re.sub(r"\[.*?\]", "", name).rpartition("/")[2]
    return StageStarted(name, pod, attempt, task, FOLDER.absolute() / pod / "log.txt", time=BEGIN + at)


def ended(name: str, at: float, state: State = State.SUCCEEDED, attempts: int = 1, reason: str = "") -> StageFinished:
    task = re.sub(r"\[.*?\]", "", name).rpartition("/")[2]
    result = StageResult(name, task, state, reason=reason, attempts=attempts, duration=1.0 if attempts else 0.0)
    return StageFinished(result, time=BEGIN + at)


def not_run(name: str, at: float, reason: str = "was not run: the run was ended") -> StageFinished:
    return ended(name, at, State.NOT_RUN, 0, reason)


def finished(state: State, reason: str = "") -> RunFinished:
    return RunFinished(RUN, state, 9.0, reason=reason, time=BEGIN + 9)


EXIT = "ended with exit code 1"
INTERRUPTED = "was canceled while it waited for another attempt: the run was ended; the last one ended with exit code 1"
A = [StageWaiting("a", "a", BEGIN), started("a", 0), ended("a", 1)]
B_RETRIED = [StageWaiting("b", "b", BEGIN + 1), started("b", 1), StageRetried("b", 1, EXIT, 60.0, BEGIN + 2)]
ENDING = RunEnding("SIGINT", 10.0, BEGIN + 3)
CASES = {
    "success": Case(
        "succeeded",
        {"a": "succeeded", "b": "cached", "c": "skipped"},
        [
            *A,
            ended("b", 2, State.CACHED, 0),
            ended("c", 2, State.SKIPPED, 0, "was skipped: its condition is false"),
            finished(State.SUCCEEDED),
        ],
    ),
    "failure": Case(
        "failed",
        {"a": "succeeded", "b": "failed", "c": "not run"},
        [
            *A,
            *B_RETRIED,
            started("b", 3, 2),
            ended("b", 4, State.FAILED, 2, EXIT),
            not_run("c", 4, "was not run: b failed"),
            finished(State.FAILED),
        ],
    ),
    "the runner was killed": Case(
        "interrupted",
        {"a": "succeeded", "b": "interrupted", "c": "not run"},
        [*A, StageWaiting("b", "b", BEGIN + 1), started("b", 1)],
        seconds=1.0,
    ),
    "the run was retried": Case(
        "succeeded",
        {"a": "succeeded", "b": "succeeded", "c": "succeeded"},
        [
            *A,
            started("b", 1),
            RunStarted("p", RUN, FOLDER.absolute(), retried=True, time=BEGIN + 1000),
            started("b", 1001, 2),
            ended("b", 1002, attempts=2),
            started("c", 1002),
            ended("c", 1003),
            RunFinished(RUN, State.SUCCEEDED, 4.0, time=BEGIN + 1004),
        ],
        seconds=5.0,
    ),
    "Ctrl-C, and the end of a stage that waited for its retry was not recorded": Case(
        "canceled",
        {"a": "succeeded", "b": "canceled", "c": "not run"},
        [*A, *B_RETRIED, ENDING, not_run("c", 3), finished(State.CANCELED)],
    ),
    "fail fast, and a nested pipeline was to be tried again": Case(
        "failed",
        {"inner/fit": "canceled", "other": "failed"},
        [
            started("inner/fit", 0),
            started("other", 0),
            ended("inner/fit", 1, State.FAILED, 1, EXIT),
            PipelineRetried("inner", 1, "failed in inner/fit", 60.0, BEGIN + 1),
            StageWaiting("inner/fit", "fit", BEGIN + 2),
            ended("other", 2, State.FAILED, 1, EXIT),
            RunEnding("other failed", 10.0, BEGIN + 2),
            ended("inner/fit", 2, State.CANCELED, 1, INTERRUPTED),
            finished(State.FAILED),
        ],
        tasks=(),
    ),
    "killed while a nested pipeline waited for its retry": Case(
        "interrupted",
        {"inner/fit": "interrupted"},
        [
            started("inner/fit", 0),
            ended("inner/fit", 1, State.FAILED, 1, EXIT),
            PipelineRetried("inner", 1, "failed in inner/fit", 60.0, BEGIN + 1),
        ],
        seconds=1.0,
        tasks=(),
    ),
    "a loop": Case(
        "failed",
        {"train[0]": "succeeded", "train[1]": "failed", "train[2]": "not run", "train[10]": "cached"},
        [
            LoopStarted("for-loop-1", 4, ("train",), BEGIN),
            started("train[0]", 0),
            ended("train[0]", 1),
            ended("train[10]", 1, State.CACHED, 0),
            started("train[1]", 1),
            ended("train[1]", 2, State.FAILED, 1, EXIT),
            not_run("train[2]", 2, "was not run: train[1] failed, which ends the run"),
            finished(State.FAILED),
        ],
        tasks=(),
    ),
    "a run that goes on": Case(
        "running",
        {"a": "succeeded", "b": "retrying", "c": "waiting"},
        [*A, *B_RETRIED],
        is_running=True,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """A case, whose folder is that of the latest run."""
    monkeypatch.chdir(project)
    it = CASES[request.param]
    folder = FOLDER.absolute()
    write_events(folder, [RunStarted("p", RUN, folder, time=BEGIN), *map(here, it.events)])
    (folder / "run.json").write_text(json.dumps({"run_id": RUN, "pipeline": "p", "created": BEGIN}))
    for event in it.events:
        if isinstance(event, StageStarted):
            log = folder / event.pod_name / "log.txt"
            log.parent.mkdir(exist_ok=True)
            log.write_text(f"{event.name} {event.attempt}\n")
    if it.tasks:
        (folder / "pipeline.yaml").write_text(pipeline(it.tasks))
    with (folder / "lock").open("w") as lock:
        if it.is_running:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield it


def here(event: Event) -> Event:
    """Return the event as it would be written in this test's folder."""
    moved: dict[str, Path] = {}
    for name in ("folder", "log_file"):
        if path := getattr(event, name, None):
            moved[name] = FOLDER.absolute() / path.relative_to(CASES_FOLDER)
    return replace(event, **moved)


CASES_FOLDER = FOLDER.absolute()


def pipeline(tasks: tuple[str, ...]) -> str:
    """Return a compiled pipeline in which the tasks run one after the other."""
    compiled = {
        name: {
            "taskInfo": {"name": name},
            "componentRef": {"name": "comp"},
            "dependentTasks": list(tasks[number - 1 : number]) if number else [],
        }
        for number, name in enumerate(tasks)
    }
    spec = {
        "pipelineInfo": {"name": "p"},
        "root": {"dag": {"tasks": compiled}},
        "components": {"comp": {"executorLabel": "exec"}},
        "deploymentSpec": {"executors": {"exec": {"container": {"image": "busybox", "command": ["true"]}}}},
        "schemaVersion": "2.1.0",
    }
    return yaml.safe_dump(spec)


def test_runs(case: Case, call: Call) -> None:
    done = call("runs", "--json")
    [run] = json.loads(done.stdout)
    states = list(case.stages.values())
    assert run["state"] == case.run
    assert run["done"] == sum(state in ("succeeded", "cached") for state in states)
    assert run["failed"] == states.count("failed")
    assert run["running"] == [name for name, state in case.stages.items() if state in ("running", "retrying")]
    if not case.is_running:
        assert run["seconds"] == case.seconds


def test_show(case: Case, call: Call) -> None:
    """A stage that goes on has the seconds since its start; nobody saw the end of one that was killed."""
    for stage in json.loads(call("show", "latest", "--json").stdout)["stages"]:
        assert (stage["seconds"] > 1000) == (stage["state"] in ("running", "retrying"))
    table = call("show", "latest").stdout
    assert not re.search(r" (interrupted|running|retrying) .* 0\.0", table)


def test_report(case: Case, call: Call) -> None:
    assert call("report", "latest").returncode == 0
    page = Page((FOLDER / "report.html").read_text())
    assert shown(page.of("title")[0]) == f"p: {case.run} · {RUN}"
    assert page.states == case.stages
    if not case.is_running:
        assert f"Duration{case.seconds:.1f}s" in shown(page.of("section.facts")[0])


def test_logs(case: Case, call: Call) -> None:
    attempts = {event.name: event for event in case.events if isinstance(event, StageStarted)}
    for name, state in case.stages.items():
        if name not in attempts and state == "waiting":
            continue
        done = call("logs", f"latest/{name}")
        if name in attempts:
            assert done.stdout == f"{name} {attempts[name].attempt}\n"
        else:
            assert done.returncode == 2
            assert re.search(r"not run|has not started|skipped|taken from the cache", done.stderr)
    if case.run != "running":
        assert call("logs", "latest", "--follow").returncode == 0, "and it does not wait"


def test_watch(case: Case, call: Call) -> None:
    """The table of stages, and the events, which say the same when they are read again."""
    if case.is_running:
        return  # it would go on
    rows = [line for line in call("watch", "latest").stdout.splitlines()[2:] if line]
    # Of a run that was killed, the stages that had not begun are on the page only.
    begun = {name: state for name, state in case.stages.items() if (case.run, state) != ("interrupted", "not run")}
    for row, (name, state) in zip(rows, begun.items(), strict=True):
        assert re.match(rf"{re.escape(name)} +{state}\b", row)
    lines = call("watch", "latest", "--json").stdout.splitlines()
    (FOLDER / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert call("report", "latest").returncode == 0
    found = Page((FOLDER / "report.html").read_text())
    assert (found.states, f"p: {case.run} · {RUN}" in shown(found.of("title")[0])) == (case.stages, True)
