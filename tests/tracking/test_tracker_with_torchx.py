"""Results pass between this tracker and TorchX's own, in both directions; and ``torchx.tracker`` finds its backend."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker

from torchx_kfp.contract import protocol
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.backends.stage import create

pytestmark = pytest.mark.versions

RESULTS: dict[str, Any] = {
    "accuracy": 0.93,
    "epochs": 3,
    "done": True,
    "note": 'größer 🔑 "quoted" \\ \n',
    "l2norm/mean": 1.2,
    "inf": math.inf,
}


@pytest.fixture(params=["local", "file", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "local":
        return str(tmp_path)
    return f"file://{tmp_path}/new" if kind == "file" else str(request.getfixturevalue(f"{kind}_base"))


@pytest.mark.parametrize(
    "key",
    [
        *("run/train/0a1b", "größe", "a%20b"),
        *(pytest.param(key, marks=pytest.mark.usual) for key in ("1", "two words", "a:b", "a#b")),
    ],
)
def test_both_read_what_the_other_wrote(base: str, key: str) -> None:
    ours, theirs = FsspecResultTracker(base), TorchxTracker(base)
    ours[key] = RESULTS
    assert theirs[key] == RESULTS
    ours.put(key, x=1)
    assert theirs.get(key) == {"x": 1}
    theirs[key] = RESULTS
    assert ours[key] == RESULTS
    ours.put(key, x=1)
    assert theirs.get(key) == {"x": 1}


def test_both_write_the_same_bytes(tmp_path: Path) -> None:
    FsspecResultTracker(tmp_path / "ours")["a/b"] = RESULTS
    TorchxTracker(str(tmp_path / "theirs"))["a/b"] = RESULTS
    assert (tmp_path / "ours/a/b").read_bytes() == (tmp_path / "theirs/a/b").read_bytes()


def test_app_handles_of_torchx_are_keys(tmp_path: Path) -> None:
    TorchxTracker(str(tmp_path))["local_cwd://torchx/train-x1"] = RESULTS
    ours = FsspecResultTracker(tmp_path)
    assert ours["local_cwd://torchx/train-x1"] == RESULTS
    ours["local_cwd://torchx/train-x2"] = RESULTS
    assert TorchxTracker(str(tmp_path))["local_cwd://torchx/train-x2"] == RESULTS


def test_both_have_the_same_interface(tmp_path: Path) -> None:
    theirs = {name for name in dir(TorchxTracker) if not name.startswith("_")}
    assert theirs <= set(dir(FsspecResultTracker))
    assert TorchxTracker(str(tmp_path))["missing"] == FsspecResultTracker(tmp_path)["missing"] == {}


APP_RUN = """
from torchx.tracker.api import AppRun
run = AppRun.run_from_env()
run.add_metadata(epochs=3)
run.add_artifact("model", "s3://models/1", {"size": 7})
[source] = run.sources()
[backend] = run.backends
print(run.job_id(), source.parent.job_id(), backend.metadata(run.id), backend.artifacts(run.id)["model"].path)
"""


def test_an_application_of_torchx_tracker_is_a_stage_as_it_is(tmp_path: Path) -> None:
    context = protocol.StageContext(str(tmp_path / "base"), "run/train/1", {"prepare": "run/prepare/1"})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", APP_RUN],
        env={**os.environ, **protocol.encode(context)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "run/train/1 run/prepare/1 {'epochs': 3} s3://models/1\n", done.stderr
    # Its files are not among the results, and do not affect them.
    tracker = FsspecResultTracker(tmp_path / "base")
    assert tracker.keys() == tracker.names() == []
    tracker["top"] = {"a": 1}
    tracker["top"] = {"a": 2}
    assert tracker.keys() == ["top"]
    assert create(str(tmp_path / "base")).metadata("run/train/1") == {"epochs": 3}


def test_the_backend_of_torchx_tracker_on_every_store(base: str) -> None:
    for number in range(2):
        backend = create(base)
        backend.add_metadata(f"run/train/{number}", number=number)
    assert sorted(backend.run_ids()) == ["run/train/0", "run/train/1"]
    assert backend.metadata("run/train/1") == {"number": 1}
    assert FsspecResultTracker(base).keys() == []
