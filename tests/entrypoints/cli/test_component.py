"""TorchX components as targets: `torchx-kfp run FILE.py:component -- ARGUMENTS`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.fake_kfp import KfpHost

COMPONENTS = '''\
from torchx.specs import AppDef, Role

RECORD = """
import sys
from torchx_kfp.tracking import current_run
current_run().put(loss=float(sys.argv[1]), name=sys.argv[2])
"""


def train(lr: float, *words: str, name: str = "plain") -> AppDef:
    """Train a model.

    Args:
        lr: the learning rate
        words: what to say
        name: the model
    """
    return AppDef("train", [Role("r", image="i", entrypoint="python3", args=["-c", RECORD, f"{lr}", name, *words])])
'''


@pytest.fixture
def project(project: Path) -> Path:
    (project / "comp.py").write_text(COMPONENTS)
    return project


def test_a_component_runs_with_its_own_arguments(project: Path, call: Call) -> None:
    done = call("run", "comp.py:train", "--tracker-base", "base", "--", "--lr", "0.5", "--name", "large")
    assert done.returncode == 0, done.stderr
    assert "loss=0.5  name=large" in done.stdout
    (run,) = (project / "base").glob("train-*")
    assert [path.name for path in run.iterdir()] == ["train"]


def test_a_component_of_torchx(call: Call) -> None:
    done = call("run", "utils.echo", "--", "--msg", "a b")
    assert (done.returncode, "echo | a b" in done.stderr) == (0, True), done.stderr


def test_the_help_of_a_component(call: Call) -> None:
    done = call("run", "comp.py:train", "--", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ")
    assert "torchx-kfp run comp.py:train -- " in done.stdout
    assert "--lr float  the learning rate (required)" in done.stdout
    assert "torchx run" not in done.stdout


@pytest.mark.s3
def test_a_component_on_a_host(project: Path, call: Call, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", s3_base)
    with KfpHost(project / "host") as host:
        words = ["--host", host.url, "--watch", "--"]
        done = call("submit", "comp.py:train", *words, "--lr", "0.25")
    assert done.returncode == 0, done.stderr
    assert ",0.25," in call("results", "--tracker-base", s3_base, "--csv").stdout
