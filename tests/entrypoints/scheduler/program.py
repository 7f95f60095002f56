"""TorchX's program as users start it."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.entrypoints.cli.ready import Ready

#: The path of the installed program.
PROGRAM = str(Path(sys.executable).with_name("torchx"))
ENTRY = "tests.entrypoints.scheduler.program:main"
#: The modules that its commands import sooner or later, with the scheduler.
MODULES = (
    "kfp.client",
    "torchx.cli.main",
    "torchx.components.dist",
    "torchx.components.utils",
    "torchx.schedulers.kubernetes_scheduler",
    "torchx.specs.finder",
    "torchx.workspace.docker_workspace",
    "torchx_kfp.authoring.*",
    "torchx_kfp.execution.host.*",
    "torchx_kfp.entrypoints.scheduler.*",
)
#: An app handle of the scheduler.
HANDLE = re.compile(r"kfp://torchx/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def main() -> None:
    """Do what the program does, in a fork of a process that has imported it."""
    from torchx.cli.main import main

    # When these are imported, they take the arguments, and the folders for the configuration.
    importlib.reload(sys.modules["torchx.runner.config"])
    main(sys.argv[1:])


@dataclass(frozen=True)
class Said:
    """The program's output, without colours, and its exit code."""

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

    #: A process that has imported it, for calls that need no new process.
    ready: Ready

    def __call__(self, *words: str, **variables: str) -> Said:
        """Run it to its end, in a fork."""
        done = self.ready.call(words, self.folder, {**self.environment, **variables})
        return _said(done.stdout, done.stderr, done.returncode)

    def anew(self, *words: str) -> Said:
        """Run it to its end, as users do."""
        process = self.start(*words)
        stdout, stderr = process.communicate(timeout=120)
        return _said(stdout, stderr, process.returncode)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it, as users do."""
        return subprocess.Popen(
            [PROGRAM, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, line: str) -> Said:
        """Run a line that only calls the program, as a shell does."""
        words = shlex.split(line)
        assert words[0] == "torchx"
        assert not re.search(r"[<>|$*;&~]", re.sub("'[^']*'", "", line)), line
        return self(*words[1:])

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


def _said(stdout: str, stderr: str, code: int) -> Said:
    return Said(_COLOURS.sub("", stdout), _COLOURS.sub("", stderr), code)
