"""Folders of this machine in containers, by default at the same path, so that a path means the same in all stages."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.safe_files import make_folder
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import decode
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_object_store
from torchx_kfp.execution.runs.journal import REQUEST_FILE

_MODES = {"ro": True, "rw": False}
# kfp.dsl.types.artifact_types
_STORES = {"gs": "gcs", "minio": "minio", "s3": "s3"}
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
    """Read a mount from ``SRC[:DST][:ro]``; DST defaults to SRC's own path.

    Raises:
        ArgumentError: it has another form, or SRC does not exist.
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
    """Return the path on this machine for a path in the container; None if the mount does not show it."""
    if path != mount.target and not _is_below(path, mount.target):
        return None
    return os.path.normpath(os.path.join(mount.source, os.path.relpath(path, mount.target)))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def contains(folder: str, path: str) -> bool:
    """Tell whether a path is the folder or inside it, with links resolved."""
    folder, path = os.path.realpath(folder), os.path.realpath(path)
    return path == folder or _is_below(path, folder)


def local_path(base: str) -> str | None:
    """Return the path of a tracker base on this machine; None if it is elsewhere.

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


def named_places(arguments: Iterable[Any]) -> list[str]:
    """Return the paths of this machine, and the URLs, among arguments of a run: the user has named them."""
    found = []
    for value in arguments:
        if isinstance(value, str) and value:
            with contextlib.suppress(ValueError):
                found.append(local_path(value) or value)
    return list(dict.fromkeys(found))


def tracker_bases(
    command: Sequence[str], inputs: Mapping[str, Any], named: Collection[str], mounts: Iterable[Mount]
) -> list[str]:
    """Return the tracker bases on this machine that a stage uses, and create those that are missing.

    Args:
        command: the stage's command.
        inputs: the stage's inputs.
        named: paths and URLs that the user has named.
        mounts: the mounts that the user has asked for.

    Raises:
        ValueError: the path of one is not absolute, or only the pipeline has named it.
        OSError: one cannot be created.
    """
    bases = [
        *decode(command).tracker_bases,
        *(
            value
            for key, value in inputs.items()
            # KFP prefixes the name of a pipeline's parameter that is used inside text.
            if (key == protocol.TRACKER_BASE_PARAMETER or key.endswith(f"--{protocol.TRACKER_BASE_PARAMETER}"))
            and isinstance(value, str)
        ),
    ]
    found = []
    for base in filter(None, dict.fromkeys(bases)):
        path = local_path(base)
        if path is None:
            is_named = base in named and "::" not in base and not base.startswith("local://")
            if not is_object_store(base) and not is_named:
                raise ValueError(
                    f"records results at {base!r}, which stages in containers cannot use. Use s3://bucket/results or, "
                    "if it is a server that you trust, name it for the run, too: --tracker-base"
                )
        elif path in named:
            os.makedirs(path, exist_ok=True)
            found.append(path)
        elif not _is_shown(path, [mount for mount in mounts if not mount.read_only]):
            raise ValueError(
                f"records results at {base!r}, a folder of this machine that only the pipeline names. Name it for the "
                f"run, too: --tracker-base {path}, or --mount {path}"
            )
    return found


def is_of_a_run(path: str, runs: str) -> bool:
    """Tell whether a path leads into a folder of a run. A run that was unpacked may have anything next to it."""
    try:
        folder = os.path.realpath(runs)
        name = os.path.relpath(os.path.realpath(path), folder).split(os.sep)[0]
    except RecursionError:  # a chain of links
        return False
    return name != os.pardir and os.path.isfile(os.path.join(folder, name, REQUEST_FILE))


def artifact_mounts(
    inputs: Mapping[str, Any], named: Collection[str], mounts: Sequence[Mount], workspace: str, runs: str
) -> list[Mount]:
    """Return mounts for the artifacts that the stage reads, unless another mount or the workspace shows them.

    A path below a folder that stages write to is never mounted by itself: a stage may have replaced it with a link.

    Args:
        inputs: the stage's inputs.
        named: paths and URLs that the user has named.
        mounts: the mounts that the user has asked for.
        workspace: the run's workspace.
        runs: the folder with the folders of runs, which have what stages have made.

    Raises:
        ValueError: an importer, the record of a run or the cache names a file of this machine that the user has not
            named: it could be any file.
    """
    found = []
    for artifact in (item for value in inputs.values() for item in artifacts_in(value)):
        place = artifact.uri.removeprefix("file://")
        uri = os.path.normpath(place)
        if artifact.imported and "://" not in place and uri not in named and not _is_shown(uri, mounts):
            raise ValueError(
                f"takes an artifact from {artifact.uri}, a place on this machine that only the pipeline names. Name it "
                f"for the run, too: --mount {uri}:ro"
            )
        path = os.path.normpath(artifact.path)
        is_shown = _is_shown(path, [Mount(workspace, workspace), *mounts])
        if artifact.is_here and os.path.isabs(artifact.path) and os.path.lexists(path) and not is_shown:
            if not artifact.imported and not is_of_a_run(path, runs):
                raise ValueError(
                    f"takes {path!r}, which is in no run's folder in {runs!r}. Give it to the container: --mount "
                    f"{path}:ro"
                )
            found.append(Mount(path, path, read_only=True))
    return found


def _is_shown(path: str, mounts: Iterable[Mount]) -> bool:
    """Tell whether containers see this path under the same name."""
    return any(source_of(path, mount) == path for mount in mounts)


def copied_mounts(copies: Mapping[str, str]) -> list[Mount]:
    """Return mounts for copies from other storage, at the paths that KFP's executor expects: ``/s3/bucket/key``."""
    return [
        Mount(path, f"/{_STORES[scheme]}/{rest}", read_only=True)
        for url, path in copies.items()
        for scheme, _, rest in [url.partition("://")]
        if scheme in _STORES
    ]


def share(path: str, root: str) -> None:
    """Let every user write to a folder beneath a root, and to everything that will be created in it.

    An image's user may have any number, and the engine's root may not be this process's user. Both must be able to
    write to the folder, and the owner of the run must be able to remove what containers have created. A default access
    list (acl(5)) passes the permission on to new files and folders; if the file system does not support it, only this
    folder is shared. A folder that belongs to another user is left as it is.
    """
    folder = make_folder(path, root)
    try:
        with contextlib.suppress(OSError):
            os.fchmod(folder, 0o777)
        with contextlib.suppress(OSError):
            os.setxattr(folder, _ACL, _OPEN)
    finally:
        os.close(folder)


def verify_private(mounts: Iterable[Mount], runs: str, workspace: str | None) -> None:
    """Raise ArgumentError if containers could write to the folder of runs: a resumed run trusts its files.

    Args:
        mounts: the mounts that the user has asked for.
        runs: the folder of runs.
        workspace: the run's workspace, if it has one.
    """
    for mount in mounts:
        if not mount.read_only and contains(mount.source, runs):
            raise ArgumentError(
                f"The mount {str(mount)!r} contains {keeps_runs(runs)}, or mount it read-only ({mount}:ro)."
            )
    if workspace is not None and contains(workspace, runs):
        raise ArgumentError(f"The workspace {workspace!r} contains {keeps_runs(runs)}.")


def keeps_runs(runs: str) -> str:
    """Describe the folder of runs, in which containers must not write, and the way out."""
    return f"the folder of runs ({runs}). Containers must not write there: keep runs elsewhere (--output-dir)"
