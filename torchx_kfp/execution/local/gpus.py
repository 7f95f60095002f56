"""The local NVIDIA GPUs: how many each stage needs, and which it has.

A GPU is held by a socket whose abstract name has the GPU in it, so that all runs and users of the machine share them.
The name is freed by the last process with the socket: the runner, and the stage's processes, which inherit it. So a GPU
stays taken while something runs on it, even if the runner is killed, and no file can be left behind, removed or made
inaccessible.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import counted, shown
from torchx_kfp.contract.command import decode_command
from torchx_kfp.contract.protocol import LOCAL_GPUS, LOCAL_RUN, REPLICA_GPUS
from torchx_kfp.contract.specification import RoleSpec
from torchx_kfp.errors import explain
from torchx_kfp.execution.pipeline.placeholders import is_gpu, parse_quantity, read_limits
from torchx_kfp.execution.pipeline.spec import Component

#: Seconds between two checks for GPUs released by other runs.
POLL = 0.5
#: CUDA's variable with the GPUs that a process sees, and the one that gives them the numbers of nvidia-smi and Docker.
VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
#: Seconds to wait for nvidia-smi, which loads the driver.
_PATIENCE = 20.0
#: The forms of an entry of CUDA's variable, and the lines of ``nvidia-smi -L``.
_ENTRY = re.compile(r"\d{1,4}|GPU-[0-9a-fA-F-]{1,36}|MIG-[\w/-]{1,60}")
_LINE = re.compile(r"(?:GPU (\d+)|  MIG .*):.* \(UUID: ((?:GPU|MIG)-[\w/-]{1,60})\)\s*")


@dataclass(frozen=True)
class Gpu:
    """A GPU or a part of one (MIG), with its names for CUDA and Docker and for all runs."""

    name: str
    key: str


@dataclass(frozen=True)
class HeldGpus:
    """The GPUs of one attempt, until it releases them."""

    gpus: Sequence[Gpu]
    #: The file descriptors that the processes of the stage inherit.
    locks: Sequence[socket.socket]

    @property
    def names(self) -> list[str]:
        """Their names for CUDA and Docker."""
        return [gpu.name for gpu in self.gpus]

    def environ(self, asks: Mapping[str, int], environ: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
        """Return the variables of a stage with those that give it its GPUs.

        Args:
            asks: the requested numbers: see ``asked``.
            environ: its other variables.
            in_container: whether it runs in a container, which numbers its GPUs itself and sees no others.
        """
        names = self.names
        if in_container:
            numbered = all(name.isdigit() for name in names)
            names = [str(index) if numbered else gpu.key for index, gpu in enumerate(self.gpus)]
        left = iter(names)
        shares = {replica: ",".join(itertools.islice(left, number)) for replica, number in asks.items()}
        of_replicas = {} if "" in shares else {REPLICA_GPUS: json.dumps(shares)}
        if in_container:
            return {**environ, **of_replicas}
        # A run inside this stage shares out the stage's GPUs among its own stages.
        own = {VISIBLE: ",".join(names), LOCAL_GPUS: environ.get(LOCAL_RUN, "")}
        return {**environ, _ORDER: "PCI_BUS_ID", **own, **of_replicas}

    def release(self) -> None:
        """Release them; others can take them once all processes of the stage have ended."""
        for lock in self.locks:
            lock.close()


@dataclass(frozen=True)
class Gpus:
    """The GPUs that the stages of a run share with those of other runs. If there are none, ``lacks`` says why."""

    known: Sequence[Gpu] = ()
    lacks: str = "there are no GPUs"
    #: The stage that contains this run, if it has GPUs: the run's stages share them.
    holder: str = ""

    def take(self, asks: Mapping[str, int]) -> HeldGpus | None:
        """Acquire the GPUs that a stage needs, or none if too few are free."""
        number = sum(asks.values())
        gpus: list[Gpu] = []
        with contextlib.ExitStack() as taken:
            locks: list[socket.socket] = []
            for gpu in self.known:
                if len(gpus) < number and (lock := _lock(f"{self.holder}{gpu.key}")) is not None:
                    gpus.append(gpu)
                    locks.append(taken.enter_context(lock))
            if len(gpus) < number:
                return None
            taken.pop_all()
            return HeldGpus(gpus, locks)

    def wait(self, asks: Mapping[str, int], say: Callable[[str], object]) -> HeldGpus:
        """Wait until enough are free, and take them; ``say`` receives a message if this takes time."""
        told = False
        while (held := self.take(asks)) is None:
            if not told:
                say(f"It {self.waits(asks)}.")
            told = True
            time.sleep(POLL)
        return held

    def waits(self, asks: Mapping[str, int]) -> str:
        """Return why a stage waits."""
        return f"waits for {sum(asks.values())} of this machine's {counted(len(self.known), 'GPU')}"

    def too_many(self, asks: Mapping[str, int]) -> str:
        """Return why a stage needs too many, as a clause, or ""."""
        number = sum(asks.values())
        if not self.known or number <= len(self.known):
            return ""
        visible = os.environ.get(VISIBLE)
        seen = "" if visible is None else f" ({VISIBLE}={visible})"
        return f"requests {counted(number, 'GPU')}, but this machine has {len(self.known)}{seen}. Request fewer"


def asked(component: Component, words: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of GPUs of a stage, by the names of its replicas; without replicas, the name is empty.

    Args:
        component: its component.
        words: its command.
        inputs: the values of its parameters.

    Raises:
        ValueError: a limit is not known yet, or is not a quantity.
    """
    own = read_limits(component.container.resources, inputs).gpus if component.container is not None else 0
    roles = decode_command(words).replica_roles
    if not roles:
        return {"": own} if own else {}
    # Settings on the task of a distributed stage apply to each replica.
    each = {
        role.name: own or sum(int(parse_quantity(str(one))) for kind, one in _limits(role).items() if is_gpu(kind))
        for role in roles
    }
    shares = {f"{role.name}/{index}": each[role.name] for role in roles for index in range(_replicas(role))}
    return shares if any(shares.values()) else {}


def accelerators(component: Component) -> set[str]:
    """Return the types of accelerators that a stage may need."""
    resources = component.container.resources if component.container is not None else {}
    accelerator = resources.get("accelerator") or {}
    own = {str(accelerator.get("resourceType") or accelerator.get("type") or "")} if accelerator else set()
    return own.union(*map(_limits, component.decoded.replica_roles))


def visible_gpus(environ: Mapping[str, str] = os.environ) -> Gpus:
    """Return the GPUs of CUDA_VISIBLE_DEVICES or, without it, those that ``nvidia-smi -L`` lists.

    CUDA ignores entries from the first invalid one. Without nvidia-smi, entries are not verified.
    """
    holder = environ.get(LOCAL_GPUS, "")
    holder = holder and f"{hashlib.sha256(holder.encode()).hexdigest()[:12]}-"
    lacks, listed = _list_gpus(environ)
    visible = environ.get(VISIBLE)
    found: dict[str, Gpu] = {}
    if visible is not None:
        lacks = f"{VISIBLE} is {shown(visible)}"
        for entry in map(str.strip, visible.split(",")):
            gpu = _find(entry, listed)
            if gpu is None or gpu.key in found:
                break
            found[gpu.key] = gpu
        return Gpus([*found.values()], lacks, holder)
    for index, key in listed:
        whole = next(reversed(found.values()), None)
        if not index and whole is not None and whole.name.isdigit():
            del found[whole.key]  # CUDA runs on its parts only
        found[key] = Gpu(index or key, key)
    return Gpus([*found.values()], lacks, holder)


def _find(entry: str, listed: Sequence[tuple[str, str]]) -> Gpu | None:
    """Return the GPU that an entry of CUDA's variable names; None if it names none, or several."""
    if not _ENTRY.fullmatch(entry):
        return None
    if not listed:
        return Gpu(entry, entry)
    keys = [key for index, key in listed if (index == str(int(entry)) if entry.isdigit() else key.startswith(entry))]
    return Gpu(entry, keys[0]) if len(keys) == 1 else None


def _list_gpus(environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the numbers and UUIDs of GPUs (parts of a GPU have no number, and follow it), or why nvidia-smi lists
    none."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return "there is no nvidia-smi", []
    try:
        with subprocess.Popen(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=_PATIENCE)
            except BaseException:  # such as Ctrl-C
                os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {_PATIENCE:g} s", []
    except OSError as error:
        return f"nvidia-smi cannot be started: {explain(error)}", []
    if process.returncode:
        return f"nvidia-smi fails with exit code {process.returncode}", []
    lines = map(_LINE.fullmatch, output.decode(errors="replace").splitlines())
    return "nvidia-smi lists no GPUs", [(line[1] or "", line[2]) for line in lines if line]


def _lock(name: str) -> socket.socket | None:
    """Acquire the name; return None if it is taken."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0torchx-kfp-gpu-{name}")
        return lock
    except OSError:
        lock.close()
        return None


def _limits(role: RoleSpec[str]) -> dict[str, Any]:
    """Return a replica's limits, except those of cpu and memory."""
    limits = role.container.get("resources", {}).get("limits", {})
    return {name: number for name, number in limits.items() if name not in ("cpu", "memory")}


def _replicas(role: RoleSpec[str]) -> int:
    """Return the number of a role's replicas, or its minimum if the number is unknown."""
    if not role.count:
        return role.most
    with contextlib.suppress(ValueError, OverflowError):
        return min(int(float(role.count)), role.most)
    return role.fewest
