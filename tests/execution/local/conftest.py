"""Fixtures of the local runner's tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchx_kfp.execution.local import agenda, dag_scheduler
from torchx_kfp.local import RunResult, Watch, run


@pytest.fixture(autouse=True)
def _in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stage overtake another that is slow to prepare because the machine is busy."""
    monkeypatch.setattr(dag_scheduler, "_PATIENCE", 60.0)


@pytest.fixture
def execute(tmp_path: Path) -> Callable[..., RunResult]:
    """Run a pipeline in a folder of the test; a failed stage is an error."""

    def function(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        result = attempt(tmp_path, pipeline, arguments, **options)
        result.raise_for_failure()
        return result

    return function


@pytest.fixture
def execute_failing(tmp_path: Path) -> Callable[..., RunResult]:
    """Run a pipeline in which a stage fails."""

    def function(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        result = attempt(tmp_path, pipeline, arguments, **options)
        assert result.state == "failed"
        return result

    return function


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass for time limits of runs and stages: a limit ends what has begun, however busy the machine is."""
    passed = [0.0]
    monkeypatch.setattr(agenda, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed)))
    return passed.append


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the environments of Python components, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchx-kfp" / "venvs"


def attempt(folder: Path, pipeline: Any, arguments: dict[str, Any] | None, **options: Any) -> RunResult:
    options.setdefault("watch", Watch())
    options.setdefault("cache", False)
    return run(pipeline, arguments, output_dir=folder / "runs", **options)
