"""A tracker base on each kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx_kfp.tracking import run


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else str(request.getfixturevalue(f"{request.param}_base"))


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own to what a process says once; memory's tracker base is the same for all."""
    monkeypatch.setattr(run, "_said", set())
