"""The interface of stores, and the choice of the store for a tracker base."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from torchx_kfp.errors import TrackerBaseError
from torchx_kfp.extras import install_line
from torchx_kfp.text import shown
from torchx_kfp.tracking.stores.calls import PATIENCE
from torchx_kfp.tracking.stores.disk import DiskStore
from torchx_kfp.tracking.stores.keys import File

T = TypeVar("T")
R = TypeVar("R")

#: The extra of this package that supports a protocol.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
#: ``s3:/bucket``: a typo that fsspec takes for a relative directory.
_ONE_SLASH = re.compile(r"(?!file:|local:)[a-z][a-z0-9+]+:/(?!/)")


class Store(Protocol):
    """Whole files below one tracker base, by key."""

    base: str

    def location(self, key: str) -> str:
        """Return the path or URL of the key's file, for messages."""

    def read(self, key: str) -> bytes | None:
        """Return the content of the key's file, or None if it does not exist."""

    def write(self, key: str, content: bytes) -> None:
        """Write the key's file. Readers see the old content or the new one."""

    def remove(self, key: str) -> None:
        """Remove the key's file, if it exists."""

    def remove_old(self, file: File) -> bool:
        """Remove a file unless it was written since it was listed, and return whether it is gone."""

    def keys(self, prefix: str | None) -> list[str]:
        """Return the prefix and the keys below it, if they exist, or all keys. Both lists are sorted."""

    def names(self, prefix: str | None = None) -> list[str]:
        """Return the names directly below the prefix or the base, sorted. Names of folders end with a slash."""

    def files(self, prefix: str = "") -> list[File]:
        """Return all files below the base, or a folder in it, including the tracker's own files."""

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call the function for each item, several at once if the store allows it, and yield the values in order."""

    def for_this_thread(self) -> Store:
        """Return the store for a thread other than the one that opened it."""


def open_store(tracker_base: str | os.PathLike[str], patience: float = PATIENCE) -> Store:
    """Open the store of a tracker base. No request is sent to an object store yet.

    Args:
        tracker_base: an fsspec URL or a local directory.
        patience: seconds for which a call that fails for a moment is tried again.

    Raises:
        TrackerBaseError: the base is empty, has an unknown protocol, or needs a package that is not installed.
    """
    base = check_tracker_base(tracker_base)
    if base.startswith("~") and os.path.expanduser(base) == base:
        raise TrackerBaseError(
            f"The tracker base {base!r} begins with '~', but the home folder of that user is not known here. Write "
            f"the whole path, or './{base}' if you mean a directory of that name."
        )
    if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience >= 0:
        raise ValueError(f"patience must be a number of seconds, 0 or more. Got: {patience!r}.")
    folder = _local_folder(base)
    if folder is not None:
        return DiskStore(base, folder, patience)
    # Most of the time that an application takes to start would be the import of fsspec.
    from fsspec.implementations.local import LocalFileSystem

    from torchx_kfp.tracking.stores.objects import FsspecStore, open_filesystem

    try:
        filesystem, path = open_filesystem(base)
    except ImportError as error:
        raise TrackerBaseError(
            f"The tracker base {base!r} needs a package that is missing: {_install(base, error)}"
        ) from error
    except Exception as error:  # each implementation raises its own
        raise TrackerBaseError(
            f"The tracker base {base!r} cannot be used: {error or type(error).__name__}. Use a local directory, or an "
            "fsspec URL such as s3://bucket/results, gs://bucket/results or file:///mnt/results."
        ) from error
    if isinstance(filesystem, LocalFileSystem):
        return DiskStore(base, path, patience)
    return FsspecStore(base, filesystem, path, patience)


def _local_folder(base: str) -> str | None:
    """Return the absolute path of a directory, as fsspec has it, or None for a URL other than ``file:///...``."""
    path = base[len("file://") :] if base.startswith("file:///") else base
    if ":" in path:
        return None
    if path.startswith("~"):
        return os.path.expanduser(path)
    return path if path.startswith("/") else f"{os.getcwd()}/{'' if path == '.' else path.removeprefix('./')}"


def check_tracker_base(tracker_base: str | os.PathLike[str]) -> str:
    """Return the tracker base as text if its form is right. Whether the place exists is not checked.

    Raises:
        TrackerBaseError: it is not a str or path, is empty, or has a typo that would make it another place.
    """
    if not isinstance(tracker_base, (str, os.PathLike)):
        raise TrackerBaseError(
            f"A tracker base is an fsspec URL or a local directory. Got {type(tracker_base).__name__}: "
            f"{shown(tracker_base)}."
        )
    base = os.fspath(tracker_base)
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise TrackerBaseError(
            f"The tracker base {shown(base)} is not an fsspec URL or a local directory. "
            "Use one such as /tmp/results or s3://bucket/results."
        )
    if _ONE_SLASH.match(base):
        raise TrackerBaseError(
            f"The tracker base {base!r} has only one slash after its protocol, so it would be a local directory. "
            f"Write {base.replace(':/', '://', 1)!r}, or './{base}' if you mean a directory."
        )
    return base


def _install(base: str, error: ImportError) -> str:
    for protocol in re.findall(r"(\w+)://", base):
        if protocol in _EXTRAS:
            return install_line(_EXTRAS[protocol])
    return f"{error}."
