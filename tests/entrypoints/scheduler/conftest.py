"""The distribution ``torchx-kfp-scheduler``, installed for the processes of these tests only, and TorchX's program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from torchx.runner import Runner

from tests.entrypoints.cli.ready import Ready, ready
from tests.entrypoints.scheduler import program
from tests.entrypoints.scheduler.program import Program
from tests.fake_kfp import KfpHost

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


def _environment(installed: Path, home: Path) -> Mapping[str, str]:
    """Return the environment of a user who has no settings."""
    ours = ("TORCHX", "KF_PIPELINES", "KUBE")
    given = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    home.mkdir()
    path = os.pathsep.join([str(installed), str(REPOSITORY)])
    return {**given, "HOME": str(home), "PYTHONPATH": path, "XDG_CONFIG_HOME": str(home / "config")}


@pytest.fixture(scope="session")
def ready_torchx(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    """TorchX's program, without the time that imports take."""
    environment = _environment(installed, tmp_path_factory.mktemp("ready") / "home")
    with ready(program.ENTRY, program.MODULES, program=program.PROGRAM, environ=environment) as process:
        yield process


@pytest.fixture
def environment(installed: Path, tmp_path: Path) -> Mapping[str, str]:
    """The environment of a user who has no settings."""
    return _environment(installed, tmp_path / "home")


@pytest.fixture
def torchx(environment: Mapping[str, str], tmp_path: Path, ready_torchx: Ready) -> Program:
    """TorchX's program, in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return Program(folder, environment, ready_torchx)


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
