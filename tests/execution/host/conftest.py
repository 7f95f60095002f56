"""A KFP host for tests, and a user of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.execution.host.commands import write_pipelines
from tests.fake_kfp import KfpHost
from tests.programs import Program
from torchx_kfp.host import Host, connect


@pytest.fixture
def kfp_host(tmp_path: Path) -> Iterator[KfpHost]:
    with KfpHost(tmp_path / "host") as running:
        yield running


@pytest.fixture
def host(kfp_host: KfpHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The host as a user finds it who has named the tracker base ``tmp_path / "results"``."""
    monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", str(tmp_path / "results"))
    return connect(host=kfp_host.url)


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compiled pipelines, and the tracker base ``base`` of their pods."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "base").mkdir()
    write_pipelines(folder, folder / "base")
    return folder


@pytest.fixture
def program(call: Program, pipelines: Path, tmp_path: Path) -> Program:
    """The command line in a folder of its own, with the compiled pipelines, of a user who names their base."""
    for file in pipelines.glob("*.*"):
        shutil.copy(file, tmp_path)
    return replace(call, variables={"TORCHX_KFP_TRACKER_BASE": str(pipelines / "base")})
