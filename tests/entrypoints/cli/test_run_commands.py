"""``torchx-kfp runs``, ``logs`` and ``cancel`` while runs go on. What they print is in ``tests/transcripts``, too."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp import dsl

from tests.entrypoints.cli.conftest import Call
from tests.execution.host.calling import wait_until
from tests.execution.local.components import shell
from tests.execution.report.runs import append_events, play, write_events
from tests.programs import Process, Program
from torchx_kfp.local import (
    Event,
    RunFinished,
    RunStarted,
    StageFinished,
    StageResult,
    StageStarted,
    State,
    Watch,
    run,
)


@contextlib.contextmanager
def running(project: Path, name: str, *events: Event) -> Iterator[Path]:
    """Hold the lock of a run, as its runner does; yield its folder."""
    folder = project / "local_outputs" / name
    write_events(folder, [RunStarted("p", name, folder), *events])
    (folder / "run.json").write_text(json.dumps({"run_id": name, "pipeline": "p", "created": time.time()}))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield folder


def test_runs_in_a_terminal_are_whole(call: Program, project: Path) -> None:
    long = "a-pipeline-with-quite-a-long-name-20260101-120000-123456"
    for name in ("digits-20260101-120000-123456", long):
        with running(project, name):
            pass
    wide = call.terminal(100, "runs", NO_COLOR="1").read().splitlines()
    assert [line.split()[0] for line in wide[2:4]] == [long, "digits-20260101-120000-123456"]
    narrow = call.terminal(60, "runs", NO_COLOR="1").read().splitlines()
    assert narrow[0] == long
    shown = " ".join(line.strip() for line in narrow[1:3])
    assert re.fullmatch(r"state interrupted   started \d\d-\d\d \d\d:\d\d   took [\d.]+s   done 0", shown)
    shutil.rmtree(project / "local_outputs" / long)
    heading, _, row, *_ = call.terminal(80, "runs", NO_COLOR="1").read().rstrip("\n").splitlines()
    assert heading.split() == ["run", "state", "started", "took", "done"]
    assert row.startswith("digits-20260101-120000-123456   interrupted   ")


def test_runs_of_every_state(call: Call, project: Path) -> None:
    with running(project, "run-1"):
        assert [found["state"] for found in json.loads(call("runs", "--json").stdout)] == ["running"]
    with running(project, "run-2") as folder, (folder / "events.jsonl").open("a") as file:
        file.write('{}\n{"event": "later"}\n')
    shown = call("runs")
    found = [line.split()[:2] for line in shown.stdout.splitlines()[2:]]
    assert found == [["run-2", "interrupted"], ["run-1", "interrupted"]]
    assert shown.stderr.startswith("Line 2 of local_outputs/run-2/events.jsonl is ignored: ")
    # Older runs than those that are listed are not read.
    shutil.copy(project / "local_outputs/run-2/events.jsonl", project / "local_outputs/run-1/events.jsonl")
    limited = call("runs", "--limit", "1")
    assert [line.split()[0] for line in limited.stdout.splitlines()[2:]] == ["run-2"]
    assert "1 older run in local_outputs: --limit 0" in limited.stderr
    assert "run-1" not in limited.stderr
    assert "run-1/events.jsonl is ignored" in call("runs", "--limit", "0").stderr


def test_following_a_stage_that_runs_again(project: Path, call: Program) -> None:
    """Its end before the run was retried does not count."""
    folder = project / "local_outputs" / "run-1"
    logs = [folder / "a_1" / "log.txt", folder / "a_2" / "log.txt"]
    for log, text in zip(logs, ("before\n", "again\n"), strict=True):
        log.parent.mkdir(parents=True)
        log.write_text(text)
    events = [
        StageStarted("a", "a_1", 1, "a", logs[0]),
        StageFinished(StageResult("a", "a", State.FAILED)),
        RunFinished("run-1", State.FAILED, 1.0),
        RunStarted("p", "run-1", folder, retried=True),
    ]
    with running(project, "run-1", *events), call.start("logs", "run-1/a", "--follow") as follower:
        assert follower.stdout.readline() == "before\n"
        append_events(folder, [StageStarted("a", "a_2", 2, "a", logs[1])])
        assert follower.stdout.readline() == "again\n"
        assert follower.poll() is None
        append_events(folder, [StageFinished(StageResult("a", "a", State.SUCCEEDED))])
        assert follower.wait() == 0


WAITING = """\
from kfp import dsl

@dsl.container_component
def shell(script: str):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c"], args=[script])

@dsl.pipeline(name="waiting")
def waiting():
    before = shell(script="echo before; until [ -e go ]; do sleep 0.05; done")
    task = shell(script="echo $KFP_POD_NAME; case $KFP_POD_NAME in *_1) exit 1; esac; sleep 300").after(before)
    task.set_retry(1, backoff_duration="0s")
"""


@pytest.fixture
def waiting(project: Path, call: Program) -> Iterator[Process]:
    """A run that has begun. Its second stage waits for a file ``go``, is retried, and then runs for long."""
    (project / "waiting.py").write_text(WAITING)
    with call.start("run", "waiting.py", "-q") as process:
        wait_until(lambda: any(path.read_text() for path in project.glob("local_outputs/*/*/log.txt")))
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_following_and_canceling(project: Path, call: Program, waiting: Process) -> None:
    [name] = [path.name for path in (project / "local_outputs").glob("waiting-*")]
    followed = (name, f"{name}/shell-2", f"{name}/shell")
    with contextlib.ExitStack() as stack:
        everything, second, first = (stack.enter_context(call.start("logs", each, "--follow")) for each in followed)
        assert everything.stdout.readline() == "shell | before\n"
        (project / "go").touch()
        assert first.communicate() == ("before\n", "")
        assert first.returncode == 0
        # If the command was ready before the stage started, it has waited, and shows both attempts.
        assert {*iter(second.stdout.readline, "shell-2_2\n")} <= {"shell-2_1\n"}
        assert everything.stdout.readline() == "shell-2 | shell-2_1\n"
        second.send_signal(signal.SIGINT)
        assert second.communicate()[1] == "Interrupted.\n"
        assert second.returncode == 130

        done = call("cancel", "waiting")
        assert (done.returncode, done.stdout) == (0, "")
        assert re.fullmatch(
            r"Canceling (waiting-\S+): waiting for shell-2, for up to 10 s\.\nThe run \1 is canceled\.\n", done.stderr
        )
        assert waiting.wait() == 128 + signal.SIGTERM
        # The commands with --follow notice it, and have not missed anything.
        assert everything.stdout.read() == "shell-2 | shell-2_2\n"
        assert everything.communicate() == ("", "")
        assert everything.returncode == 0
    (found,) = json.loads(call("runs", "--json").stdout)
    assert (found["state"], found["done"], found["failed"]) == ("canceled", 1, 0)
    done = call("cancel", "waiting")
    assert done.returncode == 2
    assert "has already ended (canceled): there is nothing to cancel." in done.stderr


def test_another_process_is_never_signaled(call: Call, project: Path) -> None:
    """The lock file contains its id, but it does not hold the lock."""
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        lock = project / "local_outputs" / "run-1" / "lock"
        with running(project, "run-1"):
            for text, why in (
                (f"{bystander.pid}\n", f"process {bystander.pid} is not its runner"),
                ("", "its process is not recorded"),
                ("-1\n", "its process is not recorded"),
                ("0\n", "its process is not recorded"),
            ):
                lock.write_text(text)
                shown = call("cancel", "run-1")
                assert shown.returncode == 2
                assert shown.stderr == (
                    f"Error: The run run-1 is running, but its process cannot be found ({why}): it is on "
                    "another machine, in another container, or another user's. Cancel it there.\n"
                )
            lock.write_text(f"{bystander.pid}\n")
        shown = call("cancel", "run-1")
        assert shown.stderr == "The runner of run-1 was killed earlier; its remaining processes have been ended.\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_log_of_a_cached_stage_whose_run_is_gone(call: Call, project: Path) -> None:
    @dsl.pipeline
    def pipeline() -> None:
        shell(script="echo said")
        shell(script="echo here").set_caching_options(False)

    first, newest = (run(pipeline, output_dir=project / "local_outputs", watch=Watch()) for _ in range(2))
    assert call("logs", f"{newest.run_id}/shell").stdout == "said\n"
    shutil.rmtree(first.folder)
    done = call("logs", f"{newest.run_id}/shell")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"has no log: it was taken from the run {first.run_id}, whose folder is gone.\n")
    # Only the stages that have a log are shown.
    done = call("logs", newest.run_id)
    assert (done.returncode, done.stdout) == (0, "shell-2 | here\n")


def test_a_task_of_a_nested_pipeline_names_the_logs_of_its_loop(call: Call, project: Path) -> None:
    folder = project / "local_outputs" / "nested-1"
    play(folder, ["inner/fit[0]", "inner/fit[1]", "fit"])
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"inner/fit"', '"fit"'))  # the name of the task
    for pod in ("inner-fit-0_1", "inner-fit-1_1", "fit_1"):
        (folder / pod).mkdir()
        (folder / pod / "log.txt").write_text(f"{pod}\n")
    both = "inner/fit[0] | inner-fit-0_1\ninner/fit[1] | inner-fit-1_1\n"
    assert call("logs", "nested-1/inner/fit").stdout == both
    assert call("logs", "nested-1/fit").stdout == "fit_1\n"
