"""A KFP host for tests, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_kfp import KfpHost
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.settings import Settings


@pytest.fixture
def kfp_host(tmp_path: Path) -> Iterator[KfpHost]:
    with KfpHost(tmp_path / "host") as running:
        yield running


@pytest.fixture
def connection(kfp_host: KfpHost, tmp_path: Path) -> Connection:
    """The connection of a user who has named the tracker base ``tmp_path / "results"``."""
    settings = Settings(host=kfp_host.url, tracker_base=str(tmp_path / "results"))
    return Connection(settings, Patience(connect=5, read=20, wait=0.001, longest_wait=0.01))
