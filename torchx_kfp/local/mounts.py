"""Folders of this machine in containers: each at its own path, so that a path means the same everywhere in a run."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from torchx_kfp import protocol
from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.artifacts import artifacts_in

_MODES = {"ro": True, "rw": False}
# kfp.dsl.types.artifact_types
_STORES = {"gs": "gcs", "minio": "minio", "s3": "s3"}
_TRACKER_BASE = "tracker_base"
# linux/posix_acl_xattr.h: version 2; then owner, group and others, each (tag, permissions, no id).
_ACL = "system.posix_acl_default"
_OPEN = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 7, 0xFFFFFFFF) for tag in (0x01, 0x04, 0x20))


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine, and where it is in the container. Both paths are absolute."""

    source: str
    target: str
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def parse_mount(text: str) -> Mount:
    """The mount that ``SRC[:DST][:ro]`` means; DST is SRC's own path where it is not given.

    Raises:
        ArgumentError: it has another form, or there is no SRC.
    """
    source, *rest = text.split(":")
    read_only = _MODES[rest.pop()] if rest and rest[-1] in _MODES else False
    if not source or len(rest) > 1 or (rest and not os.path.isabs(rest[0])):
        raise ArgumentError(
            f"The mount {text!r} is not SRC[:DST][:ro]. Write, for example, ~/data:/data:ro; DST is an absolute path."
        )
    path = os.path.abspath(os.path.expanduser(source))
    if not os.path.exists(path):
        raise ArgumentError(f"The mount {text!r} needs {path!r}, which does not exist. Make it, or mend the path.")
    return Mount(path, os.path.normpath(rest[0]) if rest else path, read_only)


def combine(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """One mount for each target, the last one's, without those that repeat what an outer one shows."""
    by_target = {mount.target: mount for mount in mounts}
    kept: list[Mount] = []
    for target in sorted(by_target):
        mount = by_target[target]
        outer = [other for other in kept if _is_below(target, other.target)]
        # The innermost of them is what the path shows without this mount.
        if outer and _shows(outer[-1], mount):
            continue
        kept.append(mount)
    return tuple(kept)


def _shows(outer: Mount, mount: Mount) -> bool:
    same_path = os.path.normpath(os.path.join(outer.source, os.path.relpath(mount.target, outer.target)))
    return same_path == mount.source and outer.read_only == mount.read_only


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def local_path(base: str) -> str | None:
    """The path of a tracker base on this machine; None if it is elsewhere.

    Raises:
        ValueError: the path is not absolute.
    """
    if base.startswith("file://"):
        base = unquote(base.removeprefix("file://"))
    elif "://" in base or not base:
        return None
    if not os.path.isabs(base):
        raise ValueError(
            f"records results at {base!r}, which is another folder in a container. Give an absolute path as the "
            "tracker base"
        )
    return os.path.normpath(base)


def tracker_bases(command: Sequence[str], inputs: Mapping[str, Any]) -> list[str]:
    """The tracker bases on this machine that the stage is told; they are made where they are missing.

    Raises:
        ValueError: the path of one is not absolute.
        OSError: one cannot be made.
    """
    name = f"{protocol.TRACKER_BASE}="
    told = [word.removeprefix(name) for word in command if word.startswith(name)]
    told += [
        value
        for key, value in inputs.items()
        # The second is what KFP's compiler makes of a pipeline's parameter inside of text.
        if (key == _TRACKER_BASE or key.endswith(f"--{_TRACKER_BASE}")) and isinstance(value, str)
    ]
    found = [path for base in dict.fromkeys(told) if (path := local_path(base)) is not None]
    for path in found:
        os.makedirs(path, exist_ok=True)
    return found


def artifact_mounts(inputs: Mapping[str, Any], run_folder: str) -> list[Mount]:
    """What is read from outside of the run's folder: artifacts that were imported, or made by an earlier run."""
    artifacts = [item for value in inputs.values() for item in artifacts_in(value)]
    return [
        Mount(artifact.path, artifact.path, read_only=True)
        for artifact in artifacts
        if artifact.is_here
        and os.path.isabs(artifact.path)
        and os.path.exists(artifact.path)
        and not _is_below(os.path.normpath(artifact.path), run_folder)
    ]


def copied_mounts(copies: Mapping[str, str]) -> list[Mount]:
    """Copies from other storage, where KFP's executor looks for them in an image: ``/s3/bucket/key``."""
    return [
        Mount(path, f"/{_STORES[scheme]}/{rest}", read_only=True)
        for url, path in copies.items()
        for scheme, _, rest in [url.partition("://")]
        if scheme in _STORES
    ]


def share(folder: str) -> None:
    """Makes a folder one that every user may write to, with all that will be made in it.

    The user of an image is any number, and the engine's root is not this process's user: each shall be able to
    write beside the other, and the owner of the run to remove what containers have made. A default access list
    (acl(5)) passes the permission on to what is made inside; where the file system has none, this folder alone is
    shared. A folder of somebody else is left as it is.
    """
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o777)
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(folder, _ACL, _OPEN)
