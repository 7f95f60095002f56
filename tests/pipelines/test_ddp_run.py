"""The pipeline ddp on this machine: real processes of torchrun, one of them killed while it saves a checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines import regenerate
from torchx_kfp import local
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker, Run

pytestmark = pytest.mark.torch

EPOCH = re.compile(r"\bEpoch (\d+): (loss [\d.]+, accuracy [\d.]+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(regenerate.REPOSITORY))


@contextlib.contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program outside of a pipeline; it is killed at the end of the block, with the processes below it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes below this one: those of torchrun are in other sessions."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(descendant for child in children for descendant in descendants(child))]


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
    while not new.exists() or not new.samefile(pipe):
        with contextlib.suppress(FileExistsError):
            new.hardlink_to(pipe)
    select.select([descriptor], [], [])
    for pid in descendants(training.pid):
        os.kill(pid, signal.SIGKILL)
    printed += training.stdout.read()
    pipe.unlink()
    new.unlink()
    new.write_bytes(os.read(descriptor, 4096))
    os.close(descriptor)
    return printed


def test_replicas_continue_a_training_that_was_killed_with_the_same_result(torchrun: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint = folder / "rate-0.1-seed-0.pt"

    # Two processes of one torchrun, outside of a pipeline.
    words = ["-m", "components.ddp.train", "--epochs=1000000", f"--checkpoints={folder}"]
    with started(torchrun, "--nproc-per-node=2", *words) as training:
        before = EPOCH.findall(kill_while_it_saves(training, checkpoint, epoch=1))
        assert training.wait() == 1
    assert [int(epoch) for epoch, _ in before] == list(range(len(before)))

    # Two replicas of a stage, with one process each.
    pipeline = regenerate.load_pipeline(regenerate.REPOSITORY / "pipelines" / "ddp.py")
    epochs = len(before) + 2
    arguments = {"tracker_base": str(tmp_path / "tracker"), "epochs": epochs, "checkpoints": str(folder), "bound": 0.5}
    done = local.run(pipeline, arguments, output_dir=tmp_path / "logs", watch=Watch())
    done.raise_for_failure()
    train, report = done.stages
    assert train.log_file is not None
    # Not the last lines: torchrun complains about its rendezvous if the replica that has it is the first to end.
    lines = train.log_file.read_text().splitlines()
    assert f"train/0 | [0]:Continuing after epoch {len(before) - 2}, from {checkpoint}" in lines
    after = EPOCH.findall("\n".join(lines))
    # The epoch whose state was not saved is repeated, with the same result.
    assert after[0] == before[-1]
    assert [int(epoch) for epoch, _ in after] == list(range(len(before) - 1, epochs))
    assert [path.name for path in folder.iterdir()] == [checkpoint.name]

    tracker = FsspecResultTracker(tmp_path / "tracker")
    results = tracker[str(train.execution_id)]
    assert after[-1][1] == "loss {loss:.6f}, accuracy {accuracy:.4f}".format(**results)
    assert (results["world_size"], results["epochs"]) == (2, epochs)
    assert 0 < results["loss"] < 0.5
    assert 0.9 < results["accuracy"] <= 1
    # One process has logged, so each step is there once.
    curve = Run(str(train.execution_id), tracker).history()["loss"]
    assert [str(point.step) for point in curve.points] == [epoch for epoch, _ in after]
    assert curve.last.value == results["loss"]

    assert {name: train.outputs[name] for name in ("loss", "accuracy")} == {
        name: results[name] for name in ("loss", "accuracy")
    }
    assert report.last_lines() == [
        f"Loss {results['loss']:.4f}, accuracy {results['accuracy']:.4f} after {epochs} epochs in 2 processes"
    ]
