"""The distribution ``torchx-kfp-scheduler``, installed for the processes of these tests only, and TorchX's program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from torchx.runner import Runner

from tests.entrypoints.scheduler import program
from tests.entrypoints.scheduler.program import TorchX
from tests.fake_kfp import KfpHost
from tests.programs import imported

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the distribution, really built, from a copy: building leaves files in its source."""
    folder = tmp_path_factory.mktemp("scheduler")
    shutil.copytree(
        REPOSITORY / "packages" / "torchx-kfp-scheduler",
        folder / "source",
        ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"),
    )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    built = subprocess.run(
        [*command, "-w", folder, folder / "source"], capture_output=True, text=True, check=False, timeout=240
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path) -> Path:
    """A folder for PYTHONPATH with the distribution, as pip installs it: the entry points of other tests stay."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def torchx_server(installed: Path) -> Iterator[str]:
    """The socket of a process that has imported TorchX's program."""
    environment = {**os.environ, "PYTHONPATH": f"{installed}:{REPOSITORY}"}
    with imported(program.ENTRY, program.MODULES, program=program.PROGRAM, environ=environment) as path:
        yield path


@pytest.fixture
def torchx(installed: Path, tmp_path: Path, torchx_server: str) -> TorchX:
    """TorchX's program of a user without settings, in an empty folder."""
    (tmp_path / "empty").mkdir()
    known = {"HOME": str(tmp_path / "home"), "PYTHONPATH": f"{installed}:{REPOSITORY}"}
    return TorchX(torchx_server, tmp_path / "empty", known)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KfpHost]:
    """A KFP host without runs."""
    with KfpHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def new_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Runner]:
    """TorchX's runner with the scheduler that the distribution registers, without settings, in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("TORCHX_PARENT_RUN_ID", "TORCHX_TRACKERS", "TORCHX_KFP_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    [place] = re.findall(
        '^kfp = "(.+)"$', (REPOSITORY / "packages/torchx-kfp-scheduler/pyproject.toml").read_text(), re.MULTILINE
    )
    return lambda: Runner("torchx", {"kfp": EntryPoint("kfp", place, "torchx.schedulers").load()})


@pytest.fixture
def runner(new_runner: Callable[[], Runner]) -> Runner:
    """Such a runner."""
    return new_runner()
