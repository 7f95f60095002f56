"""Mounts: local folders in containers, by default at the same path."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.safe_files import is_below
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import decode_command
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.artifacts import Artifact, artifacts_in

_MODES = {"ro": True, "rw": False}
# kfp.dsl.types.artifact_types
_STORES = {"gs": "gcs", "minio": "minio", "s3": "s3"}


@dataclass(frozen=True)
class Mount:
    """A local folder or file, and its path in the container. Both paths are absolute."""

    source: str
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def parse_mount(text: str) -> Mount:
    """Read a mount from ``SRC[:DST][:ro]``; DST defaults to SRC's own path.

    Raises:
        ArgumentError: it is malformed, or SRC does not exist.
    """
    source, *rest = text.split(":")
    read_only = _MODES[rest.pop()] if rest and rest[-1] in _MODES else False
    if not source or len(rest) > 1 or (rest and not os.path.isabs(rest[0])):
        raise ArgumentError(
            f"The mount {text!r} is not SRC[:DST][:ro]. Write, for example, ~/data:/data:ro; DST is an absolute path."
        )
    path = os.path.abspath(os.path.expanduser(source))
    if not os.path.exists(path):
        raise ArgumentError(f"The mount {text!r} needs {path!r}, which does not exist. Create it, or correct the path.")
    return Mount(path, os.path.normpath(rest[0]) if rest else path, read_only)


def source_of(path: str, mount: Mount) -> str | None:
    """Return the local path for a path in the container; None if the mount does not show it."""
    if not is_below(path, mount.target):
        return None
    return os.path.normpath(os.path.join(mount.source, os.path.relpath(path, mount.target)))


def local_path(base: str) -> str | None:
    """Return the path of a local tracker base; None if it is elsewhere.

    Raises:
        ValueError: the path is not absolute.
    """
    if base.startswith("file://"):
        base = base.removeprefix("file://")
    elif "://" in base or not base:
        return None
    if not os.path.isabs(base):
        raise ValueError(
            f"records results at {base!r}, which is another folder in a container. Give an absolute path as the "
            "tracker base"
        )
    return os.path.normpath(base)


def tracker_bases(command: Sequence[str], inputs: Mapping[str, Any]) -> list[str]:
    """Return the local tracker bases that a stage uses.

    Raises:
        ValueError: the path of one is not absolute.
    """
    values = [
        *decode_command(command).tracker_bases,
        *(
            value
            for key, value in inputs.items()
            # KFP prefixes the name of a pipeline's parameter that is used inside text.
            if (key == protocol.TRACKER_BASE_PARAMETER or key.endswith(f"--{protocol.TRACKER_BASE_PARAMETER}"))
            and isinstance(value, str)
        ),
    ]
    return list(dict.fromkeys(filter(None, map(local_path, values))))


def unseen_artifact(inputs: Mapping[str, Any], mounts: Collection[Mount]) -> Artifact | None:
    """Return a local input artifact that the container does not see, if any."""
    artifacts = [artifact for value in inputs.values() for artifact in artifacts_in(value) if artifact.is_local]
    shown = {os.path.normpath(artifact.path) for artifact in artifacts}
    unseen = {path for path in shown if all(source_of(path, mount) != path for mount in mounts)}
    return next((artifact for artifact in artifacts if os.path.normpath(artifact.path) in unseen), None)


def copied_mounts(copies: Mapping[str, str]) -> list[Mount]:
    """Return mounts that show copies where KFP's executor looks for files: ``/s3/bucket/key``, or the file's path."""
    mounts = []
    for url, path in copies.items():
        scheme, _, rest = url.removeprefix("file://").rpartition("://")
        if not scheme:
            mounts.append(Mount(path, os.path.normpath(rest)))
        elif scheme in _STORES:
            mounts.append(Mount(path, f"/{_STORES[scheme]}/{rest}"))
    return mounts


def open_to_all(top: str) -> None:
    """Let every user change a folder and its contents: an image may run as any user."""
    for folder, _, names in os.walk(top):
        for place in (folder, *(os.path.join(folder, name) for name in names)):
            with contextlib.suppress(OSError):  # it is another user's, or a link that leads nowhere
                os.chmod(place, stat.S_IMODE(os.stat(place).st_mode) | (0o777 if place == folder else 0o666))
