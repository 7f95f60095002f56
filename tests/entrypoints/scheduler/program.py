"""TorchX's program as users start it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import Done, Program

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
class TorchX(Program):
    """Calls of ``torchx`` in a folder, whose output is without colours."""

    program: str = PROGRAM

    def __call__(self, *words: str, **options: Any) -> Done:
        done = super().__call__(*words, **options)
        texts = (_COLOURS.sub("", text) for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def handle_of(done: Done) -> str:
    """Return the app handle that was printed."""
    found = HANDLE.search(done.stdout)
    assert found, done
    return found[0]
