"""The DDP training: real processes of torchrun, started by hand as the replicas of a stage."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from torchx import specs

pytest.importorskip("sklearn", reason="the training needs the extra `ddp`")

from components.ddp import component as apps
from tests.components.stages import REPOSITORY, run_app
from torchx_kfp import protocol
from torchx_kfp.tracking import FsspecResultTracker, Run

#: The programs of the environment, as in an image: torchrun and python.
PROGRAMS = Path(sys.executable).parent
CHECKPOINT = "rate-0.1-seed-0.pt"
EPOCH = re.compile(r"\bEpoch (\d+): (loss [\d.]+, accuracy [\d.]+)$", re.MULTILINE)
END = re.compile(r"\bTrained in (\d) processes: (loss [\d.]+, accuracy [\d.]+)$", re.MULTILINE)

#: Starts a process, which is killed when the test ends.
Start = Callable[[Sequence[str], Mapping[str, str]], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    if not (PROGRAMS / "torchrun").exists():
        if os.environ.get("TORCHX_KFP_REQUIRE_TORCH") == "1":
            pytest.fail("TORCHX_KFP_REQUIRE_TORCH=1 asks for tests that train, and torch is not installed.")
        pytest.skip("needs torch, which `make test-torch` installs")

    def function(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
        environ |= {"PATH": f"{PROGRAMS}:{environ['PATH']}", **variables}
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.callback(kill, process)
        return process

    with ExitStack() as started:
        yield function


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the process and those that it has started: torchrun starts its own in other sessions."""
    with process:
        if process.poll() is None:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(descendant for child in children for descendant in descendants(child))]


def start_replicas(app: specs.AppDef, context: protocol.StageContext, start: Start) -> list[subprocess.Popen[str]]:
    """Start the replicas of the app on this machine, as the launcher of a stage does."""
    (role,) = app.roles
    replicas = []
    for number in range(role.num_replicas):
        replica = specs.macros.Values(
            img_root="", app_id="train", replica_id=str(number), rank0_env="TORCHX_RANK0_HOST"
        ).apply(role)
        variables = {
            **replica.env,
            **protocol.encode(context),
            "TORCHX_RANK0_HOST": "localhost",
            "TORCHX_REPLICA_ID": str(number),
            "TORCHX_NUM_REPLICAS": str(role.num_replicas),
        }
        replicas.append(start([replica.entrypoint, *replica.args], variables))
    return replicas


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_while_it_saves(training: subprocess.Popen[str], checkpoint: Path, epoch: int) -> str:
    """Kill the processes of torchrun in the middle of writing the checkpoint after this epoch, or a later one.

    They write a new file, which then replaces the checkpoint. Here, the new file becomes a pipe that is soon full.

    Returns:
        The lines that the training has printed.
    """
    assert training.stdout is not None
    printed = ""
    for line in training.stdout:
        printed += line
        found = EPOCH.search(line)
        if found and int(found[1]) >= epoch:
            break
    pipe, new = checkpoint.with_name("pipe"), checkpoint.with_name(f"{checkpoint.name}.new")
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    assert fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096) == 4096
    while True:
        with contextlib.suppress(FileExistsError):
            new.hardlink_to(pipe)
            break
    select.select([descriptor], [], [])
    for pid in descendants(training.pid):
        os.kill(pid, signal.SIGKILL)
    printed += training.stdout.read()
    pipe.unlink()
    new.unlink()
    new.write_bytes(os.read(descriptor, 4096))
    os.close(descriptor)
    return printed


@pytest.mark.torch
def test_a_training_that_is_killed_continues_with_the_same_result(start: Start, tmp_path: Path) -> None:
    base = tmp_path / "tracker"
    checkpoint = tmp_path / "tracker-artifacts" / "run" / "train" / CHECKPOINT

    # Two processes of one torchrun, outside of a pipeline.
    options = ["--epochs=1000000", f"--checkpoints={checkpoint.parent}"]
    killed = start(["torchrun", "--nproc-per-node=2", "-m", "components.ddp.train", *options], {})
    before = EPOCH.findall(kill_while_it_saves(killed, checkpoint, epoch=1))
    assert killed.wait() == 1
    assert [int(epoch) for epoch, _ in before] == list(range(len(before)))

    # Two replicas of a stage, whose checkpoints are in the same folder by default.
    epochs = len(before) + 2
    app = apps.train(epochs, j="2x1", rdzv_port=free_port())
    replicas = start_replicas(app, protocol.StageContext(str(base), "run/train/2"), start)
    first, second = (replica.communicate()[0] for replica in replicas)
    assert [replica.returncode for replica in replicas] == [0, 0], first + second
    assert f"Continuing after epoch {len(before) - 2}, from {checkpoint}\n" in first
    after = EPOCH.findall(first)
    # The epoch whose state was not saved is repeated, with the same result.
    assert after[0] == before[-1]
    assert [int(epoch) for epoch, _ in after] == list(range(len(before) - 1, epochs))
    assert not EPOCH.findall(second)
    assert [path.name for path in checkpoint.parent.iterdir()] == [CHECKPOINT]

    results = FsspecResultTracker(base)["run/train/2"]
    assert END.findall(first) == [("2", after[-1][1])]
    assert after[-1][1] == "loss {loss:.6f}, accuracy {accuracy:.4f}".format(**results)
    assert (results["world_size"], results["epochs"]) == (2, epochs)
    assert 0 < results["loss"] < 0.3
    assert 0.9 < results["accuracy"] <= 1
    # One process has logged, so each step is there once.
    curve = Run("run/train/2", FsspecResultTracker(base)).history()["loss"]
    assert [str(point.step) for point in curve.points] == [epoch for epoch, _ in after]
    assert curve.last.value == results["loss"]


@pytest.mark.torch
def test_a_process_trains_by_itself(start: Start, tmp_path: Path) -> None:
    alone = start(["python", "-m", "components.ddp.train", "--epochs=1", f"--checkpoints={tmp_path}/new"], {})
    printed, _ = alone.communicate()
    assert alone.returncode == 0, printed
    [(epoch, result)] = EPOCH.findall(printed)
    assert printed == f"Epoch {epoch}: {result}\nTrained in 1 processes: {result}\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CHECKPOINT]


def report(loss: float, tracker_base: Path) -> subprocess.CompletedProcess[str]:
    trained = {"loss": loss, "accuracy": 0.97, "epochs": 20, "world_size": 2}
    FsspecResultTracker(tracker_base)["run/train/1"] = trained
    return run_app(apps.report(0.2), tracker_base=tracker_base, parents={"train": "run/train/1"})


def test_report_reads_the_loss_of_the_training(tmp_path: Path) -> None:
    done = report(0.1, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Loss 0.1000, accuracy 0.9700 after 20 epochs in 2 processes\n"
    assert FsspecResultTracker(tmp_path)["run/report/1"] == {"loss": 0.1, "bound": 0.2}


@pytest.mark.parametrize("loss", [0.2, math.inf, math.nan])
def test_report_fails_unless_the_loss_is_below_the_bound(loss: float, tmp_path: Path) -> None:
    done = report(loss, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"The loss of run/train/1 is {loss}, which is not below 0.2.\n"
    assert FsspecResultTracker(tmp_path)["run/report/1"] == {}
