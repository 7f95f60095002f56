"""Results pass between this tracker and TorchX's own, in both directions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker

from torchx_kfp.tracking import FsspecResultTracker

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


@pytest.mark.parametrize("key", ["1", "run/train/0a1b", "größe", "two words", "a:b", "a%20b", "a#b"])
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
