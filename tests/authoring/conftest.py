"""Fixtures that the tests of authoring share."""

import shutil
from pathlib import Path

import pytest

SHELLS = ("dash", "bash", "busybox")


@pytest.fixture(scope="session", params=SHELLS)
def shells(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``sh`` is a particular shell."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "sh").symlink_to(program)
    return folder
