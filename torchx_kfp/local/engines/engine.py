"""The interface of engines, and the plan of an attempt at a stage that an engine is given."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torchx_kfp.contract.command import decode
from torchx_kfp.local.engines.containers import MADE, ContainerPlan
from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.runs.journal import LOG_FILE

_NO_MODULE = re.compile(r"\bNo module named '?([\w.]+)'?\)?$")


@dataclass(frozen=True)
class AttemptPlan:
    """An attempt at a stage that is ready to be started."""

    stage: str
    pod_name: str
    folder: Path
    #: The working directory.
    directory: Path
    command: Sequence[str]
    environ: Mapping[str, str]
    #: Output parameters: their types, and the files that the stage writes them to.
    output_types: Mapping[str, str]
    output_files: Mapping[str, str]
    #: Output artifacts as described to the stage, and the file in which it may report changes to them.
    artifacts: Mapping[str, Artifact]
    report: str
    #: Input parameters, as events show them.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: For a Python component: its function, the file for its source and the source itself, and its pip commands.
    function: str = ""
    source: tuple[str, str] | None = None
    #: The paths of the stage's copies of files on other storage, by their URLs.
    copies: Mapping[str, str] = field(default_factory=dict)
    #: The folder of the run that all stages share.
    workspace: str = ""
    installs: Sequence[Sequence[str]] = ()
    #: The container; None for a process.
    container: ContainerPlan | None = None
    #: The seconds after which the attempt is ended.
    time_limit: float | None = None
    #: Whether its program runs replicas.
    is_distributed: bool = False

    @property
    def log_file(self) -> Path:
        return self.folder / LOG_FILE

    def copies_root(self, path: str) -> str:
        """Return the folder that must contain a copy: the attempt's own, or the workspace."""
        own = str(self.folder)
        return own if path.startswith(os.path.join(own, "")) else self.workspace

    @property
    def tracker_base(self) -> str | None:
        """The tracker base that the command of a tracked stage sets."""
        return decode(self.command).tracker_base

    @property
    def made(self) -> str:
        """The folder for the stage's outputs, which is the only one that a container may write to."""
        return str(self.folder / MADE)

    @property
    def root(self) -> str | None:
        """The folder that must contain all files of the stage; None if it runs with the runner's own rights."""
        return self.made if self.container is not None else None


class StartError(Exception):
    """An attempt could not be started, or was lost; ``exit_code`` is the one that a shell would report, if any."""

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class RunningStage(Protocol):
    """An attempt that was started. Its output is read from ``pipe``, which the reader closes."""

    pipe: int

    def wait(self, output_closed: threading.Event) -> int:
        """Wait for its end, and return its exit code, negative for a signal.

        Args:
            output_closed: an event that is set when the output has been read to its end.

        Raises:
            StartError: it could not be started after all, or was lost.
        """

    def terminate(self, grace: float) -> None:
        """Ask it to end within ``grace`` seconds, and return at once."""

    def kill(self) -> None:
        """Kill it, and return at once."""

    def describe(self, code: int, last_line: str) -> str:
        """Describe how an attempt with this exit code, and this last line of its log, ended."""


def missing_module(last_line: str) -> str | None:
    """Return the Python module that a program did not find, if the last line of its log says so."""
    found = _NO_MODULE.search(last_line)
    return found[1] if found else None


class TimeLimit:
    """A time limit for an attempt: it is asked to end, and killed ``grace`` seconds later."""

    def __init__(self, running: RunningStage, seconds: float | None, grace: float) -> None:
        """Prepare the limit; ``seconds`` is None if there is none."""
        self.is_over = False
        self._running = running
        self._grace = grace
        self._timer = None if seconds is None else _timer(seconds, self._end)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._timer = _timer(self._grace, self._running.kill)
        self._timer.start()
        self._running.terminate(self._grace)


def _timer(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), action)
    timer.daemon = True
    return timer


class Engine(Protocol):
    """A way to run attempts. Its methods are called from many threads."""

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Start an attempt and return at once: slow work belongs in ``RunningStage.wait``.

        Raises:
            StartError: it cannot be started.
        """

    def image_id(self, image: str) -> str:
        """Return an id of the image as it is now; empty if it is missing, or images are not used."""
