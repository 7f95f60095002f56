"""The command line in this process, in an empty folder: for tests of what ``gc`` and ``import`` do to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import inside

__all__ = ["inside"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path
