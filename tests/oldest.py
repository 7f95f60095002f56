"""The oldest Python that images need for what commands carry, where this machine has it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

VERSION = "3.8"


@functools.cache
def oldest_python() -> str | None:
    """Return the path of a Python of this version: on the PATH, or one that pyenv has installed."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{VERSION}.*/bin/python{VERSION}"))
    for candidate in (shutil.which(f"python{VERSION}"), *map(str, installed)):
        # pyenv has shims also for versions that are not chosen.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


#: `tests/conftest.py` skips them where there is none.
needs_oldest = pytest.mark.oldest
