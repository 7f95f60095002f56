"""Stores: where the files of a tracker are. One tracker base is one store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from fsspec.implementations.local import LocalFileSystem

from torchx_kfp.errors import TrackerError
from torchx_kfp.extras import install_line
from torchx_kfp.text import shown
from torchx_kfp.tracking.stores.disk import DiskStore
from torchx_kfp.tracking.stores.files import File
from torchx_kfp.tracking.stores.objects import FsspecStore, open_filesystem
from torchx_kfp.tracking.stores.retry import PATIENCE

T = TypeVar("T")
R = TypeVar("R")

#: Protocol -> the extra of this package that brings it.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
#: ``s3:/bucket``: a slip that fsspec takes for a relative directory.
_ONE_SLASH = re.compile(r"(?!file:|local:)[a-z][a-z0-9+]+:/(?!/)")


class Store(Protocol):
    """What a tracker needs of its base: whole files, by key."""

    base: str

    def location(self, key: str) -> str: ...

    def read(self, key: str) -> bytes | None: ...

    def write(self, key: str, content: bytes) -> None: ...

    def remove(self, key: str) -> None: ...

    def remove_old(self, file: File) -> bool: ...

    def keys(self, prefix: str | None) -> list[str]: ...

    def names(self, prefix: str | None = None) -> list[str]: ...

    def files(self) -> list[File]: ...

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]: ...

    def for_this_thread(self) -> Store: ...


def open_store(tracker_base: str | os.PathLike[str], patience: float = PATIENCE) -> Store:
    """The store of this tracker base. Object stores get no request yet.

    Args:
        tracker_base: fsspec URL or local directory.
        patience: seconds for which what fails for a moment is tried again.

    Raises:
        TrackerError: the base is empty, of an unknown protocol, or needs a package that is not installed.
    """
    base = check_tracker_base(tracker_base)
    if base.startswith("~") and os.path.expanduser(base) == base:
        raise TrackerError(
            f"The tracker base {base!r} begins with '~', and no home folder of that user is known here. Write the "
            f"whole path, or './{base}' if a directory of that name is meant."
        )
    if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience >= 0:
        raise ValueError(f"patience is a number of seconds, 0 or more. Got: {patience!r}.")
    try:
        filesystem, path = open_filesystem(base)
    except ImportError as error:
        raise TrackerError(
            f"The tracker base {base!r} needs a package that is missing: {_install(base, error)}"
        ) from error
    except Exception as error:  # each implementation has its own
        raise TrackerError(
            f"The tracker base {base!r} cannot be used: {error or type(error).__name__}. Use a local directory, or an "
            "fsspec URL such as s3://bucket/results, gs://bucket/results or file:///mnt/results."
        ) from error
    if isinstance(filesystem, LocalFileSystem):
        return DiskStore(base, path, patience)
    return FsspecStore(base, filesystem, path, patience)


def check_tracker_base(tracker_base: object) -> str:
    """The tracker base as text, if it can be one: what it stands for is not looked at.

    Raises:
        TrackerError: it is no text or path, is empty, or has a slip that would make it another place.
    """
    if not isinstance(tracker_base, (str, os.PathLike)):
        raise TrackerError(
            f"A tracker base is an fsspec URL or a local directory. Got {type(tracker_base).__name__}: "
            f"{shown(tracker_base)}."
        )
    base = os.fspath(tracker_base)
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise TrackerError(
            f"The tracker base {shown(base)} is no fsspec URL or local directory. "
            "Use one such as /tmp/results or s3://bucket/results."
        )
    if _ONE_SLASH.match(base):
        raise TrackerError(
            f"The tracker base {base!r} has one slash behind its protocol, so it would be a directory here. "
            f"Write {base.replace(':/', '://', 1)!r}, or './{base}' if a directory is meant."
        )
    return base


def _install(base: str, error: ImportError) -> str:
    for protocol in re.findall(r"(\w+)://", base):
        if protocol in _EXTRAS:
            return install_line(_EXTRAS[protocol])
    return f"{error}."
