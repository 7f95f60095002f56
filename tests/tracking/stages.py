"""Stages for tests: the environment that one has, its run, and an application in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_kfp.contract import protocol
from torchx_kfp.tracking import Run, current_run

if TYPE_CHECKING:
    from torchx.tracker.api import TrackerBase

Parents = Mapping[str, protocol.RunIds]


def environ(
    base: object, run_id: str = "p1/train/e1", parents: Parents | None = None, trackers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables that a compiled stage gives to its application."""
    return protocol.encode_context(protocol.StageContext(str(base), run_id, parents or {}, trackers or {}))


def stage(base: object, run_id: str = "p1/train/e1", parents: Parents | None = None, patience: float = 60.0) -> Run:
    """Return the run of a stage in this process."""
    return current_run(environ(base, run_id, parents), patience=patience)


def application(
    code: str, variables: Mapping[str, str], *words: str, cwd: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a stage's application: without other variables of the protocol."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    done = subprocess.run(
        command, env={**clean, **variables}, cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def started(code: str, *words: object, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a Python program with pipes, and return when it has printed its first line, ``ready``."""
    command = [sys.executable, "-c", code, *map(str, words)]
    environment = {**os.environ, **(variables or {})}
    process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def backend(config: object) -> TrackerBase:
    """Return the tracker as TorchX makes it for an application, by the name of its entry point."""
    from torchx.tracker.api import build_trackers

    [made] = build_trackers({"torchx_kfp": str(config)})
    return made
