"""The check-up as a user without settings calls it, in this process, and the host of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.entrypoints.cli.conftest import call as call
from tests.entrypoints.cli.conftest import inside as inside
from tests.entrypoints.cli.conftest import project as project
from tests.execution.host.conftest import kfp_host as kfp_host
from tests.fake_kfp import KfpHost
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.settings import Settings

_SETTINGS = ("TORCHX_KFP_HOST", "KF_PIPELINES_ENDPOINT", "KUBERNETES_SERVICE_HOST", "TORCHX_KFP_TRACKER_BASE")


class Check(NamedTuple):
    """What is found, and the way out."""

    level: str
    said: str


Doctor = Callable[..., dict[str, Check]]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def doctor(inside: Call) -> Doctor:
    """The checks by their subjects; each is one line."""

    def run(*words: str) -> dict[str, Check]:
        done = inside("doctor", *words, "--json")
        checks = json.loads(done.stdout)["checks"]
        found = {it["subject"]: Check(it["level"], f"{it['found']} {it['way_out']}") for it in checks}
        assert len(found) == len(checks)
        assert not [name for name, it in found.items() if "\n" in it.said and name != "run"]
        assert "Traceback" not in done.stderr
        assert done.returncode == any(it.level == "missing" for it in found.values())
        return found

    return run


@pytest.fixture
def connection(kfp_host: KfpHost, tmp_path: Path) -> Connection:
    """The connection of a user who has named the tracker base ``tmp_path / "results"``."""
    settings = Settings(host=kfp_host.url, tracker_base=str(tmp_path / "results"))
    return Connection(settings, Patience(connect=5, read=20, wait=0.001, longest_wait=0.01))
