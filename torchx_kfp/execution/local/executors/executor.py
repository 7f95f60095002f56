"""The plan of an attempt at a stage, with its container if it has one, and the interface of a started attempt."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchx_kfp.contract.command import decode_command
from torchx_kfp.contract.inputs import SEPARATOR, is_stage_input
from torchx_kfp.execution.local.executors.mounts import Mount, source_of
from torchx_kfp.execution.local.gpus import HeldGpus
from torchx_kfp.execution.local.output import Log
from torchx_kfp.execution.pipeline.artifacts import parameters_of
from torchx_kfp.execution.pipeline.placeholders import Limits, PlaceholderValues
from torchx_kfp.execution.pipeline.python_components import PythonComponent
from torchx_kfp.execution.pipeline.spec import Component
from torchx_kfp.execution.runs.journal import LOG_FILE
from torchx_kfp.execution.runs.result import StageResult, describe_exit
from torchx_kfp.execution.runs.vocabulary import State

#: The folders of an attempt with the outputs of its stage, and with its copies of artifacts.
MADE, TAKEN = "made", "inputs"
#: The exit code of a shell, and of ``env``, for a command that they do not find.
NOT_FOUND = 127
INSTALL = "Install it, add its folder to PATH, or run the stage in its image (--docker)"
NEEDS = "an image needs sh, env and mkdir, and the commands that the application calls"
#: Python's last lines if it does not find a module or a script, and the beginning of a line of a stage's own programs.
_NO_MODULE = re.compile(r"\bNo module named '?([\w.]+)'?\)?$")
_NO_SCRIPT = re.compile(r"\bcan't open file '?(.+?)'?: \[Errno 2\]")
#: The last line of dash, bash, busybox and env if they do not find a command.
_NO_COMMAND = re.compile(r"(?:^|: )'?([^\s:']+)'?: (?:(?:command )?not found|No such file or directory)$")
_OWN = "torchx-kfp: "


@dataclass(frozen=True)
class ContainerPlan:
    """The parts of a plan for containers only: mounts, and settings of the pod."""

    mounts: Sequence[Mount]
    #: Folders in memory: their paths in the container, and their sizes in bytes (None for no limit).
    memory_folders: Mapping[str, int | None]
    #: Local folders to create that any user of the container must be able to write to.
    shared_folders: Sequence[str]
    #: Files that exist only while the container runs: names and contents, by the folder's local path.
    files: Mapping[str, Mapping[str, str]]
    limits: Limits
    shared_memory: int | None

    def path_here(self, path: str) -> str | None:
        """Return the local path for a path of the container; None if no mount shows it."""
        path = os.path.normpath(path)
        shown = {mount.target: source for mount in self.mounts if (source := source_of(path, mount)) is not None}
        return shown[max(shown, key=len)] if shown else None


@dataclass(frozen=True)
class AttemptPlan:
    """An attempt to run a stage, as planned before its start."""

    stage: str
    task: str
    pod_name: str
    folder: Path
    #: The working directory of a process.
    directory: Path
    component: Component
    #: The values of all inputs, including artifacts.
    inputs: Mapping[str, Any]
    #: The values of the command's placeholders, and the command: for a container, ``command`` replaces the image's
    #: ENTRYPOINT, ``args`` its CMD.
    placeholders: PlaceholderValues
    image: str
    command: Sequence[str]
    args: Sequence[str]
    #: The variables that the pipeline sets, or the user sets for it.
    variables: Mapping[str, str]
    #: The names of those that come from secrets and config maps: nobody else is to see their values.
    secrets: Collection[str]
    #: All variables. A container's include variables of this machine only where the pipeline takes them from a secret
    #: or a config map.
    environ: Mapping[str, str]
    #: The paths of the stage's copies of files on other storage, by their URLs.
    copies: Mapping[str, str] = field(default_factory=dict)
    #: The places, besides object stores, from which files may be copied for the stage: see ``verify_source``.
    sources: Collection[str] = ()
    #: The Python component that the command runs, if it does.
    python: PythonComponent | None = None
    #: Programs that are written for it before it starts: their texts, by their paths.
    programs: Mapping[str, str] = field(default_factory=dict)
    #: The container, when it is going to be started; None for a process.
    container: ContainerPlan | None = None
    #: The numbers of GPUs that it requests (see ``gpus.asked``), and the GPUs that it has once it can start.
    asks_gpus: Mapping[str, int] = field(default_factory=dict)
    gpus: HeldGpus | None = None
    #: The command of a replay, attached to this process's terminal, instead of the stage's own.
    replaces: Sequence[str] | None = None
    #: The execution id under which a replay records; empty if the command makes it.
    recorded_as: str = ""

    @property
    def log_file(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def words(self) -> list[str]:
        return [*self.command, *self.args]

    @property
    def process_command(self) -> list[str]:
        """The command of a process. In an image, KFP's command of a Python component works unchanged."""
        if self.replaces is not None:
            return [*self.replaces]
        return self.words if self.python is None else self.python.command(next(iter(self.programs)), self.copies)

    @property
    def tracker_base(self) -> str | None:
        """The tracker base that the command of a tracked stage sets."""
        return decode_command(self.words).tracker_base

    @property
    def made(self) -> str:
        """The folder for the stage's outputs."""
        return str(self.folder / MADE)

    @property
    def taken(self) -> str:
        """The folder for copies of the artifacts that the stage takes."""
        return str(self.folder / TAKEN)

    def with_gpus(self, gpus: HeldGpus) -> AttemptPlan:
        """Return the plan of an attempt that has these GPUs."""
        environ = gpus.environ(self.asks_gpus, self.environ, in_container=self.container is not None)
        return replace(self, environ=environ, gpus=gpus)

    def result(self, exit_code: int | None = None, reason: str = "", **facts: Any) -> StageResult:
        """Return the result of the attempt; with a reason, it failed."""
        return StageResult(
            name=self.stage,
            task=self.task,
            state=State.FAILED if reason else State.SUCCEEDED,
            exit_code=exit_code,
            reason=reason,
            pod_name=self.pod_name,
            log_file=self.log_file,
            tracker_base=self.tracker_base,
            may_fail=self.component.decoded.may_fail,
            inputs=self._named_inputs(),
            **facts,
        )

    def _named_inputs(self) -> dict[str, Any]:
        """Return the parameters without the input with a tracked stage's name."""
        inputs = parameters_of(self.inputs)
        if self.tracker_base is not None:
            name = decode_command(self.words).stage
            own = [key for key in inputs if is_stage_input(key) and str(inputs[key]).split(SEPARATOR)[0] == name]
            inputs.pop(max(own, key=len, default=""), None)
        return inputs


class AttemptError(Exception):
    """An attempt failed outside its program: the program or its files were missing, or it was lost.

    ``exit_code`` is pip's, or the one that a shell would report.
    """

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class RunningStage(ABC):
    """An attempt that was started. Its output comes from ``pipe``, which its starter closes.

    The streams of an attached one are those of this process, and its pipe is empty.
    """

    def __init__(self, words: Sequence[str], *, attached: bool, **options: Any) -> None:
        """Start the command, in its own session unless it is attached.

        Raises:
            OSError: it cannot be started; ValueError if one of its words contains a NUL character.
        """
        self.pipe, write_end = os.pipe()
        if attached:
            sys.stdout.flush()
        else:
            options |= {
                "stdin": subprocess.DEVNULL,
                "stdout": write_end,
                "stderr": write_end,
                "start_new_session": True,
            }
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(words, **options)
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(write_end)

    @abstractmethod
    def wait(self, log: Log) -> int:
        """Copy its output to the log until its end, and return its exit code, negative for a signal.

        Raises:
            AttemptError: it did not start, or was lost.
        """

    def terminate(self, grace: float) -> None:
        """Ask it to end within ``grace`` seconds, and return at once."""
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, and return at once."""
        self.send(signal.SIGKILL)

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and return at once."""

    def describe(self, code: int, last_line: str) -> str:
        """Describe the end of an attempt, given its exit code and last line."""
        return describe_end(code, last_line, is_process=True)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream of this process is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def describe_end(code: int, last_line: str, *, is_process: bool) -> str:
    """Describe the end of a stage, and a remedy if its exit code or the last line of its log suggests one.

    Args:
        code: its exit code, negative for a signal.
        last_line: the last line of its log.
        is_process: whether it was a local process rather than a container.
    """
    why = ""
    if code == NOT_FOUND:
        named = _NO_COMMAND.search(last_line)
        what = f"the command {named[1]!r}" if named else "a command"
        package = " (it comes with torch)" if named and named[1] == "torchrun" else ""
        lacks = f"this machine lacks {what} that it calls{package}. {INSTALL}"
        why = lacks if is_process else f"its image lacks a command; {NEEDS}"
    elif module := _NO_MODULE.search(last_line):
        way_out = "Install it, start the run where it is (--directory), or run the stage in its image (--docker)"
        lacks = f"the Python module {module[1]!r} is missing. {way_out}"
        why = lacks if is_process else f"its image has no Python module {module[1]!r}"
    elif is_process and (script := _NO_SCRIPT.search(last_line)):
        why = f"there is no {script[1]!r}; --directory names another folder to run stages in"
    elif last_line.startswith(_OWN):
        why = last_line.removeprefix(_OWN).removesuffix(".")  # the sentence around it has its own
    return f"{describe_exit(code)}{why and ': '}{why}"
