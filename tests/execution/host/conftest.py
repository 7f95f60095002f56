"""A KFP host for tests, and a user of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_kfp import KfpHost
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
