"""TorchX's program as users start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: An app handle of the scheduler.
HANDLE = re.compile(r"kfp://torchx/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class Said:
    """What the program has printed, without colours, and its exit code."""

    stdout: str
    stderr: str
    code: int

    @property
    def handle(self) -> str:
        """The app handle that it has printed."""
        found = HANDLE.search(self.stdout)
        assert found, self
        return found[0]


@dataclass(frozen=True)
class Program:
    """Calls of ``torchx`` in a folder."""

    folder: Path
    environment: Mapping[str, str]

    def __call__(self, *words: str, **variables: str) -> Said:
        """Run it to its end."""
        process = self.start(*words, **variables)
        stdout, stderr = process.communicate(timeout=120)
        return Said(_COLOURS.sub("", stdout), _COLOURS.sub("", stderr), process.returncode)

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            [Path(sys.executable).with_name("torchx"), *words],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, line: str) -> Said:
        """Run a line of a shell in which the program is on the PATH."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{self.environment['PATH']}"
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env={**self.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Said(_COLOURS.sub("", done.stdout), _COLOURS.sub("", done.stderr), done.returncode)

    def python(self, code: str) -> Said:
        """Run a program of Python in the same environment."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Said(done.stdout, done.stderr, done.returncode)
