"""The command line in this process, whose stores a test of ``gc`` can break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call, invoke


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return invoke
