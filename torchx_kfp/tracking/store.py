"""Stores: where the files of a tracker are. One tracker base is one store."""

from __future__ import annotations

import errno
import inspect
import os
import re
from collections.abc import Callable
from typing import Any, Protocol

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from torchx_kfp.errors import KeyRefusedError, TrackerError
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.keys import PRIVATE, shown

#: Protocols of stores that know objects with names, and no folders.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2", "tos", "obs"}
#: Bytes of UTF-8 that the name of an object may have on S3 and Google Cloud Storage.
_MAX_OBJECT_NAME = 1024
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

    def keys(self, prefix: str | None) -> list[str]: ...

    def names(self) -> list[str]: ...


def open_store(tracker_base: str | os.PathLike[str]) -> Store:
    """The store of this tracker base. Object stores get no request yet.

    Raises:
        TrackerError: the base is empty, of an unknown protocol, or needs a package that is not installed.
    """
    base = check_tracker_base(tracker_base)
    try:
        filesystem, path = url_to_fs(base)
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
        return DiskStore(base, path)
    return FsspecStore(base, filesystem, path)


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


class FsspecStore:
    """One file or object for each key, on any file system of fsspec.

    The base is resolved once; keys are joined to its path and never read as part of a URL.
    """

    def __init__(self, base: str, filesystem: Any, path: str) -> None:
        self.base = base
        self._opened = filesystem
        self._pid = os.getpid()
        self._root = path.rstrip("/")
        protocols = _protocols(filesystem)
        self._objects = bool(protocols & _OBJECT_STORES)
        self._memory = "memory" in protocols
        if self._objects and not self._root:
            raise TrackerError(f"The tracker base {base!r} names no bucket. Use one such as s3://bucket/results.")
        # s3fs asks for the size before it reads, in order to read large files in pieces; results are small.
        reader = getattr(filesystem, "_cat_file", filesystem.cat_file)
        self._read_options = {"max_concurrency": 1} if "max_concurrency" in inspect.signature(reader).parameters else {}

    @property
    def _fs(self) -> Any:
        # Clients of object stores do not survive a fork. Nor does the event loop of older fsspec, which then says so.
        if self._pid != os.getpid() and survives_fork():
            self._opened, self._pid = url_to_fs(self.base)[0], os.getpid()
        return self._opened

    def location(self, key: str) -> str:
        """The URL of the key's file."""
        return str(self._fs.unstrip_protocol(f"{self._root}/{key}"))

    def read(self, key: str) -> bytes | None:
        """The content of the key's file; None where there is none."""
        path = self._path(key)
        try:
            return bytes(self._fs.cat_file(path, **self._read_options))
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self._problem("read", key, error) from error
            self._refuse_beside(key, path)
            return None
        except Exception as error:  # the clients of stores raise errors of their own
            raise self._problem("read", key, error) from error

    def write(self, key: str, content: bytes) -> None:
        """Make this the content of the key's file."""
        path = self._path(key)
        self._refuse_beside(key, path)
        try:
            try:
                self._fs.pipe_file(path, content)
            except FileNotFoundError:
                if self._objects:  # the bucket is missing: none is made by the way
                    raise
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, content)
        except Exception as error:
            raise self._problem("write", key, error) from error

    def keys(self, prefix: str | None) -> list[str]:
        """The keys that are, or lie below, the prefix; all keys without one."""
        path = self._root if prefix is None else self._path(prefix)
        found = self._list(lambda: self._fs.find(path))
        if prefix is not None and self._objects and path not in found and self.read(prefix) is not None:
            found.append(path)  # an object may be beside others below its name
        keys = self._below(found)
        start = len(prefix or "")
        return [key for key in keys if not key.endswith("/") and PRIVATE not in key[start:].split("/")]

    def names(self) -> list[str]:
        """What is directly below the base, sorted: keys, and folders of keys with a slash behind."""
        self._fs.invalidate_cache(self._root)
        found = self._list(lambda: self._fs.ls(self._root or self._fs.root_marker, detail=True))
        there = self._below([entry["name"] + "/" * (entry["type"] == "directory") for entry in found])
        return [name for name in there if name != f"{PRIVATE}/"]

    def _list(self, action: Callable[[], list[Any]]) -> list[Any]:
        try:
            return action()
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self._problem("list", "", error) from error
            return []
        except Exception as error:
            raise self._problem("list", "", error) from error

    def _below(self, names: list[str]) -> list[str]:
        root = f"{self._root}/"
        return sorted(name[len(root) :] for name in names if name.startswith(root) and name != root)

    def _path(self, key: str) -> str:
        path = f"{self._root}/{key}"
        if self._objects:
            name = path.partition("/")[2]
            size = len(name.encode())
            if size > _MAX_OBJECT_NAME:
                raise KeyRefusedError(
                    f"The key {shown(key)} is too long for the tracker base {self.base!r}: the object's name would "
                    f"have {size:,} bytes in UTF-8, and object stores take {_MAX_OBJECT_NAME:,}. Shorten it."
                )
        understood = self._fs._strip_protocol(path)
        if understood == path and hasattr(self._fs, "split_path"):
            bucket, name = self._fs.split_path(path)[:2]
            understood = f"{bucket}/{name}"
        if understood != path:  # for example '?versionId=', which s3fs takes off
            raise KeyRefusedError(
                f"The key {shown(key)} means something else to the tracker base {self.base!r}, which reads "
                f"{shown(understood)} from {shown(path)}. Use another key."
            )
        return path

    def _refuse_beside(self, key: str, path: str) -> None:
        """Refuse on memory:// what file systems refuse, which tests with it should show."""
        if not self._memory:
            return
        if self._fs.isfile(self._root):
            raise TrackerError(f"The tracker base {self.base!r} is a file. Name a directory.")
        if self._fs.isdir(path):
            raise KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys below the tracker base {self.base!r}: use a key of "
                f"its own, for example {shown(key + '/results')}."
            )
        names = key.split("/")
        for end in range(1, len(names)):
            above = "/".join(names[:end])
            if self._fs.isfile(f"{self._root}/{above}"):
                raise KeyRefusedError(
                    f"The key {shown(key)} lies below the key {shown(above)}, which holds results itself. "
                    "Use a key that is not below another one."
                )

    def _problem(self, action: str, key: str, error: Exception) -> TrackerError:
        where = self.location(key) if key else self.base
        said = f"{type(error).__name__}: {error}"
        if self._pid != os.getpid():
            return TrackerError(
                f"Cannot {action} {where} ({said}): this process was forked, and the installed fsspec cannot reach "
                "object stores in one. Install a newer fsspec, or start the process anew (multiprocessing's 'spawn')."
            )
        if _bucket_is_missing(error):
            return TrackerError(
                f"Cannot {action} {where}: the bucket of the tracker base {self.base!r} does not exist. "
                "Make it, or name another one; the tracker makes none."
            )
        if isinstance(error, PermissionError):
            return TrackerError(
                f"No permission to {action} {where} ({said}). Check the credentials, and that they may read, write and "
                "list there: S3 answers so for missing objects too where it may not be listed."
            )
        if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
            return KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys of the tracker base {self.base!r}, or lies below one "
                f"that holds results itself ({said}). Use another key."
            )
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return KeyRefusedError(
                f"The key {shown(key)} is too long for the tracker base {self.base!r} ({said}). Shorten it."
            )
        return TrackerError(
            f"Cannot {action} {where} ({said}). Check the tracker base {self.base!r}, the credentials for it, and that "
            "it can be reached from here."
        )


def survives_fork() -> bool:
    """Whether the installed fsspec makes a new event loop in a forked process."""
    from fsspec import asyn

    return hasattr(asyn, "reset_after_fork")


def _protocols(filesystem: Any) -> set[str]:
    """The protocols of a file system and of those that it wraps."""
    found: set[str] = set()
    while filesystem is not None:
        protocol = filesystem.protocol
        found.update([protocol] if isinstance(protocol, str) else protocol)
        filesystem = vars(filesystem).get("fs")
    return found


def _bucket_is_missing(error: Exception) -> bool:
    response = getattr(error.__cause__, "response", None)  # botocore's
    if isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket":
        return True
    return re.search(r"NoSuchBucket|bucket does not exist", str(error)) is not None


def _install(base: str, error: ImportError) -> str:
    for protocol in re.findall(r"(\w+)://", base):
        if protocol in _EXTRAS:
            return f'pip install "torchx-kfp[{_EXTRAS[protocol]}]"'
    return f"{error}."
