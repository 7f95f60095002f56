"""The store in a local directory. It does without fsspec: fsspec cannot write a file atomically and durably."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerError
from torchx_kfp.text import shown
from torchx_kfp.tracking.stores.atomic import remove_file, write_file
from torchx_kfp.tracking.stores.each import Concurrency, each
from torchx_kfp.tracking.stores.files import File, special_kind
from torchx_kfp.tracking.stores.keys import PRIVATE
from torchx_kfp.tracking.stores.retry import retried

T = TypeVar("T")
R = TypeVar("R")

#: Bytes that Linux's file systems take for one name.
_MAX_NAME = 255
#: For network file systems; a local one answers before a thread has been switched to, so that each does a few.
_CONCURRENCY = Concurrency(threads=8, batch=16)


class DiskStore:
    """One file for each key below a directory. Links below it are followed, wherever they lead.

    Args:
        base: the tracker base as the user gave it.
        folder: the absolute path that it stands for.
        patience: seconds for which what fails for a moment is tried again, as network file systems do.
    """

    def __init__(self, base: str, folder: str, patience: float) -> None:
        self.base = base
        self._patience = patience
        self._folder = folder.rstrip("/")
        # Names are UTF-8 on disk, whatever the locale of the process says.
        self._prefix = os.fsencode(self._folder) + b"/"

    @property
    def folder(self) -> str:
        """The directory, as an absolute path."""
        return self._folder or "/"

    def location(self, key: str) -> str:
        """The path of the key's file."""
        return f"{self._folder}/{key}"

    def read(self, key: str) -> bytes | None:
        """The content of the key's file; None where there is none."""
        try:
            return self._tried("read", key, lambda: _read(self._prefix + key.encode()))
        except FileNotFoundError:
            if any(len(name.encode()) > _MAX_NAME for name in key.split("/")):
                raise self._too_long(key) from None
            return None
        except OSError as error:
            raise self._problem("read", key, error) from error

    def write(self, key: str, content: bytes) -> None:
        """Make this the content of the key's file, atomically and durably."""
        try:
            self._tried("write", key, lambda: write_file(self._prefix + key.encode(), content))
        except OSError as error:
            raise self._problem("write", key, error) from error

    def remove(self, key: str) -> None:
        """Remove the key's file, if there is one, and the folders that are empty then."""
        path = self._prefix + key.encode()
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._problem("remove", key, error) from error
        self._remove_folders(path)

    def remove_old(self, file: File) -> bool:
        """Remove the file and the folders that are empty then, unless it was written since; whether it is gone."""
        path = self._prefix + file.key.encode()
        try:
            if not remove_file(path, file.size, file.modified):
                return False
        except OSError as error:
            raise self._problem("remove", file.key, error) from error
        self._remove_folders(path)
        return True

    def _remove_folders(self, path: bytes) -> None:
        """Remove the folders above that are empty, below the base."""
        while len(path := os.path.dirname(path)) > len(self._prefix):
            try:
                os.rmdir(path)
            except OSError:  # not empty, or somebody else was faster
                return

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The function's value for each item, in order, for some at once."""
        return each(function, items, _CONCURRENCY)

    def for_this_thread(self) -> DiskStore:
        """The store for a thread other than the one that has opened it: itself."""
        return self

    def keys(self, prefix: str | None) -> list[str]:
        """The keys that are, or lie below, the prefix; all keys without one."""
        try:
            return sorted(_walk(self._prefix, b"" if prefix is None else prefix.encode(), {PRIVATE.encode()}))
        except OSError as error:
            raise self._problem("list", prefix or "", error) from error

    def names(self, prefix: str | None = None) -> list[str]:
        """What is directly below the prefix or the base, sorted: keys, and folders of keys with a slash behind."""
        try:
            with os.scandir(self._prefix + (prefix or "").encode()) as entries:
                there = [entry for entry in entries if entry.name != PRIVATE.encode()]
                return sorted(os.fsdecode(entry.name) + "/" * entry.is_dir() for entry in there)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._problem("list", prefix or "", error) from error

    def files(self) -> list[File]:
        """All files below the base, the tracker's own included."""
        found = []
        try:
            for key in sorted(_walk(self._prefix, b"", set())):
                try:
                    state = os.stat(self._prefix + key.encode())
                except FileNotFoundError:  # removed since, or a temporary file
                    continue
                found.append(File(key, state.st_size, state.st_mtime))
        except OSError as error:
            raise self._problem("list", "", error) from error
        return found

    def _tried(self, action: str, key: str, function: Callable[[], T]) -> T:
        return retried(function, self._patience, lambda: f"{action} {self.location(key)}")

    def _problem(self, action: str, key: str, error: OSError) -> TrackerError:
        if error.errno == errno.ENAMETOOLONG:
            return self._too_long(key)
        if error.errno == errno.EISDIR:
            return KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys: {self.location(key)} is a directory. "
                "A file system cannot hold results beside it: use a key of its own, "
                f"for example {shown(key + '/results')}."
            )
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return self._below_a_file(action, key, error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return TrackerError(
                f"No permission to {action} {self.location(key)} ({error.strerror}). Make the tracker base "
                f"{self.base!r} accessible to user id {os.geteuid()}, or use another one."
            )
        return TrackerError(
            f"Cannot {action} {self.location(key)}: {error.strerror or error}. "
            f"Check the tracker base {self.base!r} and the file system that it is on."
        )

    def _too_long(self, key: str) -> KeyRefusedError:
        part = max(len(name.encode()) for name in key.split("/"))
        whole = len(self._prefix + key.encode())
        return KeyRefusedError(
            f"The key {shown(key)} is too long for the tracker base {self.base!r}: its longest part has {part:,} "
            f"bytes in UTF-8, the whole path {whole:,}; local file systems take {_MAX_NAME} and 4,095. Shorten it."
        )

    def _below_a_file(self, action: str, key: str, error: OSError) -> TrackerError:
        if not os.path.isdir(self._prefix):
            return TrackerError(
                f"Cannot {action} {self.location(key)}: the tracker base {self.base!r} is not a directory, "
                "or lies below a file. Name a directory, or one that can be made."
            )
        names = key.split("/")
        for end in range(1, len(names)):
            above = "/".join(names[:end])
            if not os.path.isdir(self._prefix + above.encode()):
                return KeyRefusedError(
                    f"The key {shown(key)} lies below the key {shown(above)}, which holds results itself: "
                    f"{self.location(above)} is a file. Use a key that is not below another one."
                )
        return TrackerError(f"Cannot {action} {self.location(key)}: {error.strerror or error}.")


def _read(path: bytes) -> bytes:
    try:
        # A FIFO without a writer would be opened never.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            _refuse_special(path, os.stat(path).st_mode)
        raise
    with open(descriptor, "rb", buffering=0) as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        _refuse_special(path, mode)
        return file.read()


def _refuse_special(path: bytes, mode: int) -> None:
    if kind := special_kind(mode):
        raise CorruptResultError(
            f"{os.fsdecode(path)} is a {kind}, not a file. Something else made it: remove it, or use another tracker "
            "base."
        )


def _walk(folder: bytes, prefix: bytes, left_out: Container[bytes]) -> Iterator[str]:
    waiting = [prefix]  # no recursion: a key may have more parts than Python's stack
    while waiting:
        key = waiting.pop()
        try:
            with os.scandir(folder + key) as entries:
                found = list(entries)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            if not key:
                raise
            if os.path.isfile(folder + key):
                yield key.decode()
            continue
        for entry in found:
            try:
                entry.name.decode()
            except UnicodeDecodeError:
                continue  # no key of a tracker
            below = key + b"/" + entry.name if key else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in left_out:
                    waiting.append(below)
            elif os.path.isfile(entry.path):  # a link may lead nowhere, or to itself
                yield below.decode()
