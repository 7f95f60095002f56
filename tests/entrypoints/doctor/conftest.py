"""The check-up as a user without settings calls it, in this process, and the host of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.entrypoints.cli.conftest import invoke
from tests.execution.host.conftest import kfp_host as kfp_host

_SETTINGS = ("TORCHX_KFP_HOST", "KF_PIPELINES_ENDPOINT", "KUBERNETES_SERVICE_HOST", "TORCHX_KFP_TRACKER_BASE")


class Check(NamedTuple):
    """What is found, with the way out."""

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
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """The checks by their subjects; each is one line."""

    def run(*words: str) -> dict[str, Check]:
        monkeypatch.chdir(tmp_path)
        done = invoke("doctor", *words, "--json")
        checks = json.loads(done.stdout)["checks"]
        found = {it["subject"]: Check(it["level"], it["found"]) for it in checks}
        assert len(found) == len(checks)
        assert not [name for name, it in found.items() if "\n" in it.said]
        assert "Traceback" not in done.stderr
        assert done.returncode == any(it.level == "missing" for it in found.values())
        return found

    return run
