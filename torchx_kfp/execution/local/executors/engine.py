"""The container engine: the command line of Docker or of Podman, and facts about it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.endpoints import is_of_this_machine
from torchx_kfp.execution.runs.watch import ending_signals

#: The label of all containers with the id of their run.
RUN_LABEL = "torchx-kfp.run"
#: The label with the mark of its folder: a copy of the folder has the same id.
MARK_LABEL = "torchx-kfp.folder"
# The first one that answers is used.
_PROGRAMS = ("docker", "podman")
# Seconds to wait for one answer of the engine, which is slow while many containers start.
_TIMEOUT = 120
#: Seconds between two checks for the end of a stage.
POLL = 0.1
# How the engines begin their error messages.
_BEGINNINGS = ("Error response from daemon: ", "Error: ", "docker: ")
# Without it, Podman's containers could have GPUs as well.
_NVIDIA_DEVICE = "/dev/nvidiactl"


class EngineError(Exception):
    """The engine rejected a command. The engine wrote the message."""


@dataclass(frozen=True)
class Engine:
    """A program that starts containers.

    Attributes:
        program: its path.
        version: the version of the engine.
        cpus: its number of CPUs, the limit for a container; 0 if it is unknown.
        remaps_users: whether a container's root is a different user on this machine, who needs access to the mounts.
        is_rootless: whether a container's root is this user.
        has_gpus: whether it can give NVIDIA GPUs to containers.
        is_podman: whether it is Podman, which names GPUs in its own way.
    """

    program: str
    version: str
    cpus: int
    remaps_users: bool
    is_rootless: bool
    has_gpus: bool
    is_podman: bool

    def gpu_options(self, names: Sequence[str]) -> list[str]:
        """Return the options of a container with the GPUs of these indices or UUIDs."""
        if self.is_podman:
            return [f"--device=nvidia.com/gpu={name}" for name in names]
        # A field of CSV, which would end at a comma.
        return [f'--gpus="device={",".join(names)}"']

    def other_machine(self) -> str:
        """Return the engine's address if it is on another machine, whose GPUs are not those of this one."""
        address = os.environ.get("CONTAINER_HOST" if self.is_podman else "DOCKER_HOST", "")
        if not self.is_podman and not address:
            with contextlib.suppress(EngineError):
                address = ask(self.program, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}").strip()
        is_socket = address.partition("://")[0] in ("", "unix", "npipe")
        return "" if is_socket or is_of_this_machine(address) else address

    def inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the engine's description of this image or container; None if it does not exist."""
        try:
            description = json.loads(ask(self.program, kind, "inspect", "--", name))
        except EngineError:
            return None
        return dict(description[0])

    def remove_all(self, run_id: str, mark: str) -> int:
        """Remove all containers of a run, in any folder if the mark is empty, and return their number."""
        labels = [f"{RUN_LABEL}={run_id}", *([f"{MARK_LABEL}={mark}"] if mark else [])]
        containers = ask(
            self.program, "ps", "--all", "--quiet", *(f"--filter=label={label}" for label in labels)
        ).split()
        self.remove(*containers)
        return len(containers)

    def remove(self, *containers: str) -> None:
        """Remove containers, unless they are being removed already."""
        if containers:
            with contextlib.suppress(EngineError, OSError):
                ask(self.program, "rm", "--force", "--volumes", *containers)


def ask(
    program: str,
    *words: str,
    environ: Mapping[str, str] | None = None,
    verify_wanted: Callable[[], None] | None = None,
) -> str:
    """Run a program of an engine with these words, and return its output.

    Args:
        program: its path.
        words: its words.
        environ: its variables. Default: those of this process.
        verify_wanted: raises an exception if the answer is no longer needed; replaces the time limit.

    Raises:
        EngineError: it failed, or does not answer.
        OSError: it cannot be started with these words; ValueError if one has a NUL character.
    """
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A session of its own: Ctrl-C in a terminal is for this process.
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    try:
        with ending_signals(early.append):  # until the process is known
            process = subprocess.Popen([program, *words], env=environ, start_new_session=True, **streams)
        for number in early:
            signal.raise_signal(number)
        while True:
            try:
                output, errors = process.communicate(timeout=POLL if verify_wanted else _TIMEOUT)
                break
            except subprocess.TimeoutExpired:
                if verify_wanted is None:
                    raise EngineError(f"it did not answer within {_TIMEOUT} s") from None
                verify_wanted()
    except BaseException:  # such as Ctrl-C, if this is the main thread
        if process is not None:
            with process:
                process.kill()
        raise
    if process.returncode:
        raise EngineError(_reason(errors.decode("utf-8", "replace")))
    return output.decode("utf-8", "replace")


def _reason(said: str) -> str:
    """Return the engine's own error message from its output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    message = next((line for line in lines if line.startswith(_BEGINNINGS)), lines[-1] if lines else "it failed")
    for beginning in _BEGINNINGS:
        message = message.removeprefix(beginning)
    return message.rstrip(".")


def find_engine() -> Engine:
    """Return the engine of the first program that answers. Docker's address is that of DOCKER_HOST or its context.

    Raises:
        TorchxKfpError: none answers; the message says why.
    """
    tried = []
    for name in _PROGRAMS:
        program = shutil.which(name)
        if program is None:
            tried.append(f"- {name}: there is no such program")
            continue
        try:
            info = json.loads(ask(program, "info", "--format", "{{json .}}"))
            return _engine(program, info)
        except (EngineError, OSError, ValueError) as error:
            tried.append(f"- {name}: {error}")
    raise TorchxKfpError(
        "Stages in containers need Docker or Podman, and neither answers. Tried:\n"
        + "\n".join(tried)
        + "\nStart Docker, name its address with DOCKER_HOST, or install Podman, which needs no service."
    )


def _engine(program: str, info: Mapping[str, Any]) -> Engine:
    if errors := info.get("ServerErrors"):
        raise EngineError(_reason("\n".join(map(str, errors))))
    has_device = os.path.exists(_NVIDIA_DEVICE)
    if host := info.get("host"):  # Podman, also under Docker's name
        version = str((info.get("version") or {}).get("Version"))
        is_rootless = bool((host.get("security") or {}).get("rootless"))
        return Engine(program, version, int(host.get("cpus") or 0), False, is_rootless, has_device, True)
    security = str(info.get("SecurityOptions"))
    return Engine(
        program,
        str(info.get("ServerVersion")),
        int(info.get("NCPU") or 0),
        "name=userns" in security,
        "rootless" in security,
        "nvidia" in (info.get("Runtimes") or {}) or has_device,
        False,
    )


def remove_containers(run_id: str, mark: str = "") -> int:
    """Remove the containers of this run that a killed runner left, and return their number.

    Args:
        run_id: the run's id.
        mark: the mark of its folder; empty for any folder.

    Raises:
        TorchxKfpError: no engine answers.
    """
    try:
        return find_engine().remove_all(run_id, mark)
    except EngineError as error:
        raise TorchxKfpError(f"The container engine reports: {error}.") from None
