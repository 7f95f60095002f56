"""Ax, which is imported once: it takes five seconds. Tests need it, and skip without it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

if find_spec("ax") is not None:
    with warnings.catch_warnings():
        # Those of the libraries below Ax, such as PyTorch's, when they are imported.
        warnings.simplefilter("ignore")
        import torchx_kfp.hpo.ax  # noqa: F401 (loads Ax once)
elif os.environ.get("TORCHX_KFP_REQUIRE_AX") == "1":
    pytest.fail("TORCHX_KFP_REQUIRE_AX=1 asks for tests with Ax, and it is not installed.")


@pytest.fixture
def torchx_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TorchX's runner of a new process: it knows no local apps, and those that it has started end with the test."""
    from torchx_kfp.hpo.ax.runner import _close_runner, torchx_runner

    for name in [name for name in os.environ if name.startswith("TORCHX_")]:
        monkeypatch.delenv(name)
    torchx_runner.cache_clear()
    yield
    _close_runner()


@pytest.fixture
def scheduler_kfp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points of the distribution ``torchx-kfp-scheduler``, for this test only."""
    import tomllib  # Python 3.11, which Ax needs

    with (REPOSITORY / "packages" / "torchx-kfp-scheduler" / "pyproject.toml").open("rb") as file:
        schedulers = tomllib.load(file)["project"]["entry-points"]["torchx.schedulers"]
    info = tmp_path / "site" / "torchx_kfp_scheduler-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchx-kfp-scheduler\nVersion: 0.1.0\n")
    lines = [f"{name} = {place}" for name, place in schedulers.items()]
    (info / "entry_points.txt").write_text("\n".join(["[torchx.schedulers]", *lines, ""]))
    monkeypatch.setattr(sys, "path", [str(info.parent), *sys.path])
