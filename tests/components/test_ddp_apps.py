"""The applications of the DDP pipeline, started by hand; ``tests/pipelines/test_ddp_run.py`` trains in processes."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
from torchx import specs

from components.ddp import component as apps
from tests.components.stages import run_app
from tests.modules import needs
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = needs("sklearn", "the training needs the extra `ddp`")


@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
def test_a_process_trains_by_itself(tmp_path: Path) -> None:
    role = specs.Role("train", image="", entrypoint="python", args=["-m", "components.ddp.train", "--epochs=1"])
    done = run_app(specs.AppDef("train", roles=[role]), tracker_base=tmp_path / "tracker")
    assert (done.returncode, done.stderr) == (0, "")
    results = FsspecResultTracker(tmp_path / "tracker")["run/train/1"]
    shown = f"loss {results['loss']:.6f}, accuracy {results['accuracy']:.4f}"
    assert done.stdout == f"Epoch 0: {shown}\nTrained in 1 processes: {shown}\n"
    assert (results["world_size"], results["epochs"]) == (1, 1)
    assert 0.5 < results["accuracy"] < 1
    # Another attempt of the stage has another run id, but finds the checkpoint.
    folder = tmp_path / "tracker-artifacts" / "run" / "train"
    assert [path.name for path in folder.iterdir()] == ["rate-0.1-seed-0.pt"]


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
