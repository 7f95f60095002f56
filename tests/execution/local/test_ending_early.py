"""Runs that end before their stages do: time limits, the first failure, and the messages about other stages."""

import dataclasses
import os
import signal

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.execution.local.components import python, scripts, shell, shell_out, states
from tests.watching import Heard
from torchx_kfp import task_from_app
from torchx_kfp.local import (
    RunEnding,
    StageFinished,
    StageRetried,
    StageStarted,
    load_pipeline,
    run,
)

SLEEP = "print('ready', flush=True); import time; time.sleep(300)"


def test_the_time_limit_of_a_stage_counts_for_each_attempt(execute_failing, pass_time):
    """A stage that heeds no signal is killed after the grace."""

    @dsl.pipeline
    def pipeline():
        kubernetes.set_timeout(python(code=SLEEP), 1000)
        kubernetes.set_timeout(shell(script="trap '' TERM; echo ready; while :; do sleep 0.2; done"), 1000)
        once = shell(script="test -e tried || { touch tried; echo ready; exec sleep 300; }")
        kubernetes.set_timeout(once.set_retry(1, backoff_duration="0s"), 1000)
        kubernetes.set_timeout(shell(script=":"), 9000)

    ready = []

    def hear(stage, line):
        ready.append(stage)
        if len(ready) == 3:
            pass_time(1000)

    result = execute_failing(pipeline, grace=0.5, parallelism=4, watch=Heard(on_line=hear))
    over = "was ended: its time limit of 1000 s was exceeded"
    assert {stage.name: (str(stage.state), stage.reason) for stage in result.stages} == {
        "python": ("failed", over),
        "shell": ("failed", over),
        "shell-2": ("succeeded", ""),
        "shell-3": ("succeeded", ""),
    }
    assert (result["shell"].exit_code, result["shell-2"].attempts) == (-9, 2)


def test_what_an_application_leaves_behind_is_asked_to_end(execute_failing, pass_time):
    child = "trap 'echo child asked; exit' TERM; echo ready; sleep 300 & wait"
    script = f"trap 'echo asked; exit 3' TERM; sh -c \"{child}\" & wait"

    @dsl.pipeline
    def pipeline():
        role = Role("trainer", "image:1", entrypoint="sh", args=["-c", script], max_retries=1)
        kubernetes.set_timeout(task_from_app(AppDef("train", [role])), 1000)

    def hear(_, line):
        if line == "ready":
            pass_time(1000)

    stage = execute_failing(pipeline, grace=60, watch=Heard(on_line=hear))["train"]
    assert (stage.exit_code, stage.last_lines()) == (3, ["ready", "asked", "child asked"])


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@dsl.pipeline
def three():
    first = python(code=SLEEP)
    shell(script=":").after(first)
    with dsl.ParallelFor([1, 2], parallelism=1):
        shell(script="sleep 300")


@pytest.mark.parametrize("own", [False, True])
def test_the_time_limit_of_a_run(execute_failing, pass_time, own):
    loaded = load_pipeline(three)
    if own:
        loaded = dataclasses.replace(loaded, platform={"activeDeadlineSeconds": "1000"})
    events = []

    def hear(event):
        events.append(event)
        if isinstance(event, StageStarted) and sum(isinstance(event, StageStarted) for event in events) == 2:
            pass_time(1000)

    options = {} if own else {"timeout": 1000.0}
    result = execute_failing(loaded, watch=Heard(on_event=hear), parallelism=2, **options)
    assert states(result) == {
        "python": "canceled",
        "shell": "not run",
        "shell-2[0]": "canceled",
        "shell-2[1]": "not run",
    }
    assert result["python"].reason == "was ended with the run: the time limit of 1000 s was exceeded"
    assert result["shell"].reason == "was not run: the run was ended"
    assert [event.reason for event in events if isinstance(event, RunEnding)] == [
        "The time limit of 1000 s was exceeded"
    ]


def test_a_signal_leaves_no_stage_out_and_lists_none_twice(tmp_path):
    @dsl.pipeline
    def inner():
        after = python(code=SLEEP)
        with dsl.ParallelFor(["a", "b"]):
            shell(script=":").after(after)

    @dsl.pipeline
    def outer():
        inner()
        with dsl.ParallelFor(["a", "b"]):
            last = python(code=SLEEP)
        with dsl.ParallelFor([1, 2], parallelism=1):
            shell(script="sleep 300")
        shell(script=":").after(last)

    events = []

    def hear(event):
        events.append(event)
        if isinstance(event, StageStarted) and sum(isinstance(event, StageStarted) for event in events) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(outer, output_dir=tmp_path, watch=Heard(on_event=hear), grace=0.1, parallelism=4)
    ended = [(event.result.name, str(event.result.state)) for event in events if isinstance(event, StageFinished)]
    assert sorted(ended) == [
        ("inner/python", "canceled"),
        ("inner/shell", "not run"),
        ("python[0]", "canceled"),
        ("python[1]", "canceled"),
        ("shell-2", "not run"),
        ("shell[0]", "canceled"),
        ("shell[1]", "not run"),
    ]


@dsl.pipeline
def mixed(folder: str):
    """A pipeline in which one stage fails while another one runs, and an exit task cleans up."""
    with dsl.ExitHandler(shell(script=f"touch {folder}/cleaned")):
        long = python(code=SLEEP)
        shell(script=":").after(long)
        with dsl.ParallelFor([1, 2, 3], parallelism=1):
            shell(script="exit 3")


def test_the_first_failure_ends_the_run(execute_failing, tmp_path):
    events = []
    result = execute_failing(
        mixed,
        {"folder": str(tmp_path)},
        fail_fast=True,
        watch=Heard(on_event=events.append),
        parallelism=2,
    )
    assert states(result) == {
        "python": "canceled",
        "shell-2": "not run",
        "shell-3[0]": "failed",
        "shell-3[1]": "not run",
        "shell-3[2]": "not run",
        "shell": "succeeded",
    }
    assert result["python"].reason == "was ended: shell-3[0] failed"
    assert result["shell-3[1]"].reason == "was not run: shell-3[0] failed, which ends the run"
    assert (tmp_path / "cleaned").exists()
    assert [event.reason for event in events if isinstance(event, RunEnding)] == ["shell-3[0] failed"]


def test_what_waits_for_its_turn_does_not_start_after_a_failure(execute_failing):
    result = execute_failing(scripts(*["exit 3"] * 3), fail_fast=True, parallelism=1)
    assert sorted(states(result).values()) == ["failed", "not run", "not run"]


def test_what_may_be_tried_again_has_not_failed_yet(execute, tmp_path):
    @dsl.pipeline
    def pipeline():
        shell(script=f"echo x >>{tmp_path}/tries; test $(wc -l <{tmp_path}/tries) = 2").set_retry(1)

    assert states(execute(pipeline, fail_fast=True)) == {"shell": "succeeded"}


def waits_for(path):
    """Return a script that goes on when the file exists."""
    return f"while ! test -e {path}; do sleep 0.02; done"


@dsl.pipeline
def retried_stage(folder: str):
    shell(script="exit 7").set_retry(1, backoff_duration="300s")
    shell_out(script=f"{waits_for(f'{folder}/go')}; exit 3")


@dsl.pipeline
def queued_stage(folder: str):
    shell(script="exit 7").set_retry(1)
    # Both share one place: this one starts after the first attempt and before the second.
    shell_out(script=f"{waits_for(f'{folder}/go')}; exit 3")


#: A pipeline, and the event after which the run is ended: its stage is then waiting for another attempt.
WAITING = {
    "it is not time yet": (retried_stage, lambda event: isinstance(event, StageRetried)),
    "it has no room yet": (queued_stage, lambda event: isinstance(event, StageStarted) and event.name == "shell-out"),
}


@pytest.mark.parametrize("how", ["fail fast", "signal"])
@pytest.mark.parametrize("case", WAITING)
def test_a_stage_that_waits_for_another_attempt_is_canceled(case, how, tmp_path):
    (pipeline, is_time), name = WAITING[case], "shell"
    events = []

    def hear(event):
        events.append(event)
        if is_time(event):
            if how == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                (tmp_path / "go").touch()

    def start():
        options = {"parallelism": 1} if case == "it has no room yet" else {}
        return run(
            pipeline,
            {"folder": str(tmp_path)},
            output_dir=tmp_path / "runs",
            fail_fast=True,
            cache=False,
            watch=Heard(on_event=hear),
            grace=0.1,
            **options,
        )

    if how == "signal":
        with pytest.raises(KeyboardInterrupt):
            start()
        why = "the run was ended"
    else:
        result = start()
        assert states(result)["shell-out"] == "failed"
        assert result[name].state == "canceled"
        why = "shell-out failed"
    last = [event for event in events if name == stage_of(event)][-1]
    assert isinstance(last, StageFinished)
    assert (last.result.state, last.result.attempts, last.result.exit_code) == ("canceled", 1, None)
    assert last.result.log_file is not None
    assert why in last.result.reason
    assert "ended with exit code 7" in last.result.reason


def stage_of(event):
    return event.result.name if isinstance(event, StageFinished) else getattr(event, "name", "")
