"""``torchx-kfp runs``, ``logs`` and ``cancel`` as a user calls them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.entrypoints.cli.conftest import Call
from tests.execution.local.components import shell
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.execution.runs.history import find_runs
from torchx_kfp.execution.runs.journal import Journal
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, StageStarted, State, Watch, run

Start = Callable[..., subprocess.Popen[str]]


@dsl.pipeline(name="mixed")
def mixed(go: bool = False) -> None:
    """A pipeline with stages that are retried, in a loop, failed, not run, or skipped."""
    first = shell(script="printf 'one\\ntwo \\377\\033[2J\\nend'")
    with dsl.ParallelFor([1, 2]) as number:
        shell(script=f"echo number {number}").after(first)
    again = shell(script="echo try $KFP_POD_NAME; case $KFP_POD_NAME in *-1) ;; *) exit 1; esac").after(first)
    again.set_retry(1, backoff_duration="0s")
    failed = shell(script="exit 3")
    shell(script="echo never").after(failed)
    with dsl.If(go == True):  # noqa: E712 - KFP's condition
        shell(script="echo never")


@pytest.fixture(scope="module")
def mixed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    run(mixed, output_dir=folder / "local_outputs", watch=Watch(), parallelism=1)
    return folder / "local_outputs"


@pytest.fixture
def run_id(mixed_runs: Path, project: Path) -> str:
    """A run that has ended, in the project's folder."""
    (project / "local_outputs").symlink_to(mixed_runs)
    (folder,) = find_runs(mixed_runs)
    return folder.name


def journal(project: Path, name: str) -> Journal:
    """Return the journal of a run that this process seems to run."""
    folder = project / "local_outputs" / name
    folder.mkdir(parents=True)
    return Journal.create(
        folder, run_id=name, pipeline="p", text="", arguments={}, options={}, warn=lambda text: pytest.fail(text)
    )


def test_the_table_of_a_run_has_attempts_if_there_were_retries(inside: Call, run_id: str) -> None:
    heading, _, *rows = inside("watch", run_id).stdout.splitlines()
    cells = {row.split()[0]: row.split()[1:3] for row in rows}
    assert cells["shell-3"] == ["succeeded", "2"], rows
    assert cells["shell"] == ["succeeded", "1"]
    assert heading.split()[:4] == ["stage", "state", "attempts", "seconds"]


def test_runs(inside: Call, project: Path, run_id: str) -> None:
    shown = inside("runs")
    assert shown.returncode == 0
    assert re.fullmatch(r"local_outputs takes [\d.]+ kB\. To remove old runs: torchx-kfp gc .*\n", shown.stderr)
    heading, _, row = shown.stdout.splitlines()
    assert heading.split() == ["run", "state", "started", "took", "done"]
    assert re.fullmatch(rf"{run_id} +failed +\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +[\d.]+s +4, 1 failed", row.strip()), (
        shown.stdout
    )
    (found,) = json.loads(inside("runs", "--format", "json").stdout)
    assert {name: found[name] for name in ("run", "pipeline", "state", "done", "failed", "running", "folder")} == {
        "run": run_id,
        "pipeline": "mixed",
        "state": "failed",
        "done": 4,
        "failed": 1,
        "running": [],
        "folder": str(project / "local_outputs" / run_id),
    }


def test_runs_in_a_terminal_are_whole(terminal: Callable[..., str], project: Path) -> None:
    long = "a-pipeline-with-quite-a-long-name-20260101-120000-123456"
    for name in ("digits-20260101-120000-123456", long):
        with journal(project, name):
            pass
    wide = terminal(100, "runs", NO_COLOR="1").splitlines()
    assert [line.split()[0] for line in wide[2:4]] == [long, "digits-20260101-120000-123456"]
    narrow = terminal(60, "runs", NO_COLOR="1").splitlines()
    assert narrow[0] == long
    assert re.fullmatch(r"    state interrupted   started \d\d-\d\d \d\d:\d\d   took [\d.]+s", narrow[1])
    assert narrow[2] == "    done 0"
    shutil.rmtree(project / "local_outputs" / long)
    heading, _, row, _ = terminal(80, "runs", NO_COLOR="1").rstrip("\n").splitlines()
    assert heading.split() == ["run", "state", "started", "took", "done"]
    assert row.startswith("digits-20260101-120000-123456   interrupted   ")


def test_runs_of_every_state(inside: Call, project: Path) -> None:
    with journal(project, "run-1"):
        assert [found["state"] for found in json.loads(inside("runs", "--format", "json").stdout)] == ["running"]
    with journal(project, "run-2"), (project / "local_outputs/run-2/events.jsonl").open("a") as file:
        file.write('{}\n{"event": "later"}\n')
    shown = inside("runs")
    assert [line.split()[:2] for line in shown.stdout.splitlines()[2:]] == [
        ["run-2", "interrupted"],
        ["run-1", "interrupted"],
    ]
    assert shown.stderr.startswith("Line 1 of local_outputs/run-2/events.jsonl is ignored: ")
    # Older runs than those that are listed are not read.
    shutil.copy(project / "local_outputs/run-2/events.jsonl", project / "local_outputs/run-1/events.jsonl")
    limited = inside("runs", "--limit", "1")
    assert [line.split()[0] for line in limited.stdout.splitlines()[2:]] == ["run-2"]
    assert "1 older run in local_outputs: --all" in limited.stderr
    assert "run-1" not in limited.stderr
    assert "run-1/events.jsonl is ignored" in inside("runs", "--limit", "1", "--all").stderr


def test_no_runs(inside: Call, project: Path) -> None:
    shown = inside("runs")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("Error: There are no runs in 'local_outputs': No such file or directory. Give the ")
    (project / "empty").mkdir()
    assert inside("runs", "--output-dir", "empty").stderr == "There are no runs in 'empty'.\n"
    assert inside("runs", "--output-dir", "empty", "--format", "json").stdout == "[]\n"


def test_logs_of_all_stages(inside: Call, run_id: str) -> None:
    shown = inside("logs", "latest")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert sorted(shown.stdout.splitlines()) == [
        "shell | end",
        "shell | one",
        "shell | two \ufffd\ufffd[2J",
        "shell-2[0] | number 1",
        "shell-2[1] | number 2",
        "shell-3 | try shell-3-1",
    ]


def test_the_log_of_one_stage_has_the_very_bytes(call: Call, project: Path, run_id: str) -> None:
    command = [sys.executable, "-m", "torchx_kfp", "logs", run_id, "shell"]
    done = subprocess.run(command, cwd=project, capture_output=True, check=True)
    assert done.stdout == b"one\ntwo \xff\x1b[2J\nend"


def test_a_terminal_is_spared_control_characters(terminal: Callable[..., str], run_id: str) -> None:
    assert terminal(80, "logs", "latest", "shell") == "one\ntwo \ufffd\ufffd[2J\nend\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["shell-2[1]"], "number 2\n"),
        (["shell-2-1-0"], "number 2\n"),
        (["shell-2"], "shell-2[0] | number 1\nshell-2[1] | number 2\n"),
        (["shell-3"], "try shell-3-1\n"),
        (["shell-3-0"], "try shell-3-0\n"),
        (["shell-3", "--attempt", "1"], "try shell-3-0\n"),
        (["shell-3", "--follow"], "try shell-3-1\n"),
    ],
)
def test_ways_to_name_a_stage(inside: Call, run_id: str, words: list[str], text: str) -> None:
    shown = inside("logs", "mixed", *words)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, text, "")


def test_a_stage_that_has_printed_nothing(inside: Call, run_id: str) -> None:
    shown = inside("logs", "mixed", "shell-4")
    assert (shown.returncode, shown.stdout, shown.stderr) == (
        0,
        "",
        "The stage 'shell-4' has printed nothing.\nshell-4 ended with exit code 3.\n",
    )


REFUSED = {
    ("logs", "mixde"): "There is no run 'mixde' in 'local_outputs'. Did you mean 'RUN'? Its runs, the",
    ("logs", "latest", "shel-3"): "There is no stage 'shel-3' in the run RUN. Did you mean 'shell-",
    ("logs", "latest", "zzz"): "There is no stage 'zzz' in the run RUN. Its stages: ",
    ("logs", "latest", "shell-2[7]"): "There is no stage 'shell-2[7]' in the run RUN. Did you mean 'shell-2[",
    ("logs", "latest", "shell-5"): "The stage 'shell-5' of the run RUN has no log: it was not run: shell-4 failed.",
    ("logs", "latest", "shell-6"): "The stage 'shell-6' of the run RUN has no log: it was skipped: its condition is f",
    ("logs", "latest", "shell-3", "--attempt", "3"): "There is no attempt 3 at 'shell-3' in the run RUN, but 2.",
    ("logs", "latest", "--attempt", "1"): "--attempt needs a STAGE.",
    ("cancel", "latest"): "The run RUN has already ended (failed): there is nothing to cancel.",
    ("logs", "lates"): "There is no run 'lates' in 'local_outputs'. Did you mean 'latest'? Its runs",
    ("cancel", "none"): "There is no run 'none' in 'local_outputs'. Its runs",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refused(inside: Call, run_id: str, words: tuple[str, ...]) -> None:
    shown = inside(*words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"Error: {REFUSED[words].replace('RUN', run_id)}")


def test_a_run_that_has_not_come_far(inside: Call, project: Path, run_id: str) -> None:
    text = (project / "local_outputs" / run_id / "pipeline.yaml").read_text()
    with journal(project, "young"):
        (project / "local_outputs" / "young" / "pipeline.yaml").write_text(text)
        for stage in ("shell", "shell-2[7]"):
            shown = inside("logs", "young", stage)
            assert (
                shown.stderr
                == f"Error: The stage {stage!r} of the run young has no log: it was not started (running).\n"
            )
        shown = inside("logs", "young", "zzz")
        assert shown.stderr == "Error: There is no stage 'zzz' in the run young. Its stages: none yet.\n"
    shown = inside("logs", "young")
    assert shown.stderr == "Error: No stage of the run young has a log: no stage was started.\n"
    shutil.rmtree(project / "local_outputs" / "young")


@pytest.mark.timeout(90)
def test_following_a_stage_that_runs_again(project: Path, start: Start) -> None:
    """Its end before the run was resumed does not count."""
    folder = project / "local_outputs" / "run-1"
    logs = [folder / "a-0" / "log.txt", folder / "a-1" / "log.txt"]
    with journal(project, "run-1") as written:
        for log, text in zip(logs, ("before\n", "again\n"), strict=True):
            log.parent.mkdir()
            log.write_text(text)
        written.write(RunStarted("p", "run-1", folder))
        written.write(StageStarted("a", "a-0", 1, "a", logs[0]))
        written.write(StageFinished(StageResult("a", "a", State.FAILED)))
        written.write(RunFinished("run-1", State.FAILED, 1.0))
        written.write(RunStarted("p", "run-1", folder, resumed=True))
        with start("logs", "run-1", "a", "--follow") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "before\n"
            written.write(StageStarted("a", "a-1", 2, "a", logs[1]))
            assert follower.stdout.readline() == "again\n"
            assert follower.poll() is None
            written.write(StageFinished(StageResult("a", "a", State.SUCCEEDED)))
            assert follower.wait(timeout=60) == 0


WAITING = """\
from kfp import dsl

@dsl.container_component
def shell(script: str):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c"], args=[script])

@dsl.pipeline(name="waiting")
def waiting():
    before = shell(script="echo before; until [ -e go ]; do sleep 0.05; done")
    task = shell(script="echo $KFP_POD_NAME; case $KFP_POD_NAME in *-0) exit 1; esac; sleep 300").after(before)
    task.set_retry(1, backoff_duration="0s")
"""


@pytest.fixture
def waiting(project: Path, start: Start) -> Iterator[subprocess.Popen[str]]:
    """A run that has begun. Its second stage waits for a file ``go``, is retried, and then runs for long."""
    (project / "waiting.py").write_text(WAITING)
    with start("run", "waiting.py", "-q") as process:
        deadline = time.monotonic() + 60
        while not any(path.read_text() for path in project.glob("local_outputs/*/*/log.txt")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.timeout(90)
def test_following_and_canceling(project: Path, start: Start, call: Call, waiting: subprocess.Popen[str]) -> None:
    everything = start("logs", "latest", "-f")
    second = start("logs", "latest", "shell-2", "--follow")
    first = start("logs", "latest", "shell", "--follow")
    assert everything.stdout is not None
    assert second.stdout is not None
    assert everything.stdout.readline() == "shell | before\n"
    (project / "go").touch()
    assert first.communicate(timeout=60) == ("before\n", "")
    assert first.returncode == 0
    # If the command was ready before the stage started, it has waited, and shows both attempts.
    assert {*iter(second.stdout.readline, "shell-2-1\n")} <= {"shell-2-0\n"}
    assert everything.stdout.readline() == "shell-2 | shell-2-0\n"
    second.send_signal(signal.SIGINT)
    assert second.communicate(timeout=60)[1] == "Interrupted.\n"
    assert second.returncode == 130

    done = call("cancel", "waiting")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(
        r"Canceling (waiting-\S+): waiting for shell-2, for up to 10 s\.\nThe run \1 is canceled\.\n", done.stderr
    )
    assert waiting.wait(timeout=30) == 128 + signal.SIGTERM
    # The commands with --follow notice it, and have not missed anything.
    assert everything.stdout.read() == "shell-2 | shell-2-1\n"
    assert everything.communicate(timeout=60) == ("", "")
    assert everything.returncode == 0
    (found,) = json.loads(call("runs", "--format", "json").stdout)
    assert (found["state"], found["done"], found["failed"]) == ("canceled", 1, 0)
    done = call("cancel", "waiting")
    assert done.returncode == 2
    assert "has already ended (canceled): there is nothing to cancel." in done.stderr


def test_another_process_is_never_signaled(inside: Call, project: Path) -> None:
    """The lock file contains its id, but it does not hold the lock."""
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        lock = project / "local_outputs" / "run-1" / "lock"
        with journal(project, "run-1"):
            assert lock.read_text() == f"{os.getpid()}\n"
            for text, why in (
                (f"{bystander.pid}\n", f"process {bystander.pid} is not its runner"),
                ("", "its process is not recorded"),
                ("-1\n", "its process is not recorded"),
                ("0\n", "its process is not recorded"),
            ):
                lock.write_text(text)
                shown = inside("cancel", "run-1")
                assert shown.returncode == 2
                assert shown.stderr == (
                    f"Error: The run run-1 is running, but its process cannot be seen from here ({why}): it is on "
                    "another machine, in another container, or belongs to another user. Cancel it there.\n"
                )
            lock.write_text(f"{bystander.pid}\n")
        shown = inside("cancel", "run-1")
        assert shown.stderr == "The runner of run-1 was killed before; processes that it left running are ended now.\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_lines_of_one_replica(inside: Call, call: Call, terminal: Callable[..., str], project: Path) -> None:
    @dsl.pipeline(name="distributed")
    def pipeline() -> None:
        end = "sleep 1; printf '\\033[2J\\r | end'; exit 3"
        args = ["-c", f"echo $TORCHX_REPLICA_ID; [ $TORCHX_REPLICA_ID = 1 ] || exit 0; {end}"]
        app = AppDef("app", roles=[Role("trainer", image="image", entrypoint="sh", args=args, num_replicas=12)])
        task_from_app(app, name="train", engine="job")
        task_from_app(app, name="other", engine="job")

    run(pipeline, output_dir=project / "local_outputs", watch=Watch(), cache=False)
    logs = ("logs", "latest", "train")
    # The carriage return is read as the end of a line.
    assert call(*logs, "--replica", "trainer/1").stdout == "1\n\x1b[2J\n | end\n"
    assert call(*logs, "--replica", "trainer/11").stdout == "11\n"
    assert terminal(80, *logs, "--replica", "trainer/1", NO_COLOR="1").splitlines() == ["1", " | end"]
    assert "trainer/1 | 1\n" in inside("logs", "latest", "train").stdout
    for words, message in (
        ((*logs, "--replica", "trainer/12"), says("'trainer/12'", "'train'. Replicas", "trainer/1, trainer/2")),
        (
            ("logs", "latest", "trainer/1"),
            says(" STAGE --replica trainer/1", "Its stages: other, train"),
        ),
        ((*logs, "--replica", "1"), says("'1'", "Did you mean 'trainer/1'?")),
        ((*logs, "--replica", "trainr/1"), says("'trainr/1'", "Did you mean 'trainer/1'?")),
        (("logs", "latest", "--replica", "trainer/1"), says("--replica", "STAGE")),
    ):
        shown = inside(*words)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert re.search(message, shown.stderr)


def test_the_log_of_a_cached_stage_whose_run_is_gone(inside: Call, project: Path) -> None:
    @dsl.pipeline
    def pipeline() -> None:
        shell(script="echo said")
        shell(script="echo here").set_caching_options(False)

    first, newest = (run(pipeline, output_dir=project / "local_outputs", watch=Watch()) for _ in range(2))
    assert inside("logs", newest.run_id, "shell").stdout == "said\n"
    shutil.rmtree(first.folder)
    done = inside("logs", newest.run_id, "shell")
    gone = "The log of 'shell' is gone: the stage was taken from the cache, and the folder of the run "
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {gone}{first.run_id}, which has the log, was removed.\n"
    # Only the stages that have a log are shown.
    done = inside("logs", newest.run_id)
    assert (done.returncode, done.stdout) == (0, "shell-2 | here\n")
    assert done.stderr.startswith(gone)
