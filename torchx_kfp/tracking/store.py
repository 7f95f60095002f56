"""Stores of a tracker's files: their interface and their keys.

A key is a path of names below the tracker base. Only ``/``, the separator, has a meaning for stores.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from torchx_kfp.common.text import shown
from torchx_kfp.contract.carried.storage import PRIVATE
from torchx_kfp.errors import CorruptResultError, RefusedError, TrackerError

T = TypeVar("T")
R = TypeVar("R")

#: Seconds for which drivers of object stores retry while a user waits for a command, a page, or the next stage of a
#: local run. Stages have ``storage.PATIENCE``.
SHORT_PATIENCE = 5.0
#: The largest file of results or records, in bytes. Normal ones have kilobytes.
LARGEST_RECORD = 64 << 20
#: The number of files that are read together.
_READ_AHEAD = 1000

Key = int | str | uuid.UUID

#: TorchX's own runner sets TORCHX_JOB_ID to an app handle, ``local_cwd://session/app``, which has an empty name.
_APP_HANDLE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*://")

_last = 0


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and its modification time in seconds since 1970.

    If the store does not know the time, it is infinite: the file never looks old.
    """

    key: str
    size: int
    modified: float


def key_text(key: Key) -> str:
    """Validate a key, and return it as text. An int or a UUID is the same key as its text.

    Raises:
        RefusedError: the key has another type, is empty or absolute, would leave the tracker base, or would not be the
            same text on every store.
    """
    if isinstance(key, uuid.UUID):
        key = str(key)
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise RefusedError(f"A key is a str, an int or a UUID. Got {type(key).__name__}: {shown(key)}.")
    try:
        # For a member of an enum of str or int, these methods return its value, not its name.
        text = str.__str__(key) if isinstance(key, str) else int.__repr__(key)
    except ValueError:
        raise RefusedError("The key is an int of thousands of digits, which no store can hold. Shorten it.") from None
    problem = _problem(text)
    if problem:
        raise RefusedError(f"The key {shown(text)} {problem}.")
    return text


def is_key(text: str) -> bool:
    """Return whether text can be a key. The name of an external source need not be one."""
    return _problem(text) is None


def new_entry_name() -> str:
    """Return a name that sorts by time. Names of one process are increasing even if the clock is set back.

    It takes no lock, which could block a signal handler or a forked process forever. Entries that threads record
    concurrently are not ordered.
    """
    global _last
    _last = number = max(time.time_ns(), _last + 1)
    return f"{number:019}-{os.urandom(4).hex()}"


def run_id_parts(key: str) -> tuple[str, str, str] | None:
    """Split an execution id into pipeline run, stage and execution; return None for any other key."""
    parts = key.split("/")
    # In a folder, the two slashes of an app handle become one: local_cwd://session/app.
    return None if len(parts) != 3 or not all(parts) or parts[0].endswith(":") else (parts[0], parts[1], parts[2])


def pipeline_run(key: str) -> str:
    """Return the pipeline run of an execution id: the first part of a key, or all of an app handle."""
    return key if ":/" in key else key.partition("/")[0]


def _problem(text: str) -> str | None:
    if not text:
        return "is empty. Name the owner of the results, such as an execution id"
    if text.startswith("/"):
        return "is absolute. Keys are paths below the tracker base, without a leading '/'"
    if "\0" in text:
        return "contains a NUL character, which stores cannot keep in a name"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half of a surrogate pair, which cannot be written as UTF-8"
    handle = _APP_HANDLE.match(text)
    for name in text[handle.end() :].split("/") if handle else text.split("/"):
        if name == "..":
            return "would leave the tracker base: '..' cannot be a part of a key"
        if name == ".":
            return "has the part '.', which stores read differently. Leave it out"
        if not name:
            return "has an empty part. Separate the names with single slashes, without one at the end"
        if name.startswith(PRIVATE):
            return f"has a part that begins with {PRIVATE!r}, which is reserved for the tracker's files"
    return None


class Store(abc.ABC):
    """Whole files below one tracker base, by key.

    Args:
        base: the tracker base as given by the user.
        threads: the number of concurrent calls.
    """

    def __init__(self, base: str, threads: int) -> None:
        self.base = base
        self._threads = threads

    @abc.abstractmethod
    def location(self, key: str) -> str:
        """Return the path or URL of the key's file, for messages."""

    def read(self, key: str, most: int = LARGEST_RECORD + 1) -> bytes | None:
        """Return the first ``most`` bytes of the key's file; None if it does not exist.

        Raises:
            CorruptResultError: the key is not that of a file.
        """
        [content] = self._read_many([key], most)
        if isinstance(content, CorruptResultError):
            raise content
        return content

    def read_files(self, keys: Sequence[str]) -> Iterator[bytes | CorruptResultError | None]:
        """Yield the content of each file of results or records, or None if it does not exist. Many are read
        concurrently.

        Keys that are not files, or whose files are too large, yield an error: others may write to the base.
        """
        for start in range(0, len(keys), _READ_AHEAD):
            batch = keys[start : start + _READ_AHEAD]
            for key, content in zip(batch, self._read_many(batch, LARGEST_RECORD + 1), strict=True):
                if isinstance(content, bytes) and len(content) > LARGEST_RECORD:
                    yield CorruptResultError(
                        f"{self.location(key)} is larger than {LARGEST_RECORD >> 20} MiB, so it does not hold results "
                        "or records. Another program wrote it. Remove it."
                    )
                else:
                    yield content

    @abc.abstractmethod
    def _read_many(self, keys: Sequence[str], most: int) -> Iterator[bytes | CorruptResultError | None]:
        """Yield the result of ``read`` for each key, or its error. Many are read concurrently."""

    @abc.abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Write the key's file. Readers see the old content or the new one."""

    def locked(self, key: str) -> contextlib.AbstractContextManager[object]:
        """Return a context manager that serializes updates of the key, if the store supports locks."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def put_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        """Copy local files to the store: {key: (path, size)}. Readers see a complete file or none."""

    @abc.abstractmethod
    def get_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        """Copy files of the store to local paths: {key: (path, size)}.

        Raises:
            FileNotFoundError: a file does not exist.
            OSError: a local file cannot be written.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file, if it exists."""

    @abc.abstractmethod
    def list_files(self, prefix: str = "", *, private: bool = True) -> list[File]:
        """Return the file with this key and those below it, sorted by key; without a prefix, all files.

        Args:
            prefix: a key. Both ``a`` and ``a/b`` can be files of an object store.
            private: whether to include the tracker's own files below the prefix, and links.
        """

    def problem(self, action: str, key: str, error: BaseException) -> TrackerError:
        """Return the error for a failed call about a key or, if it is empty, the tracker base."""
        where = self.location(key) if key else self.base
        code = error.errno if isinstance(error, OSError) else None
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        if isinstance(error, PermissionError) or code == errno.EROFS:
            return TrackerError(
                f"No permission to {action} {where} ({said}). Check that user id {os.geteuid()}, or the credentials, "
                "can read, write and list there: without permission to list, S3 reports missing objects likewise."
            )
        if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
            return RefusedError(
                f"The key {shown(key)} is a folder of other keys of the tracker base {self.base!r}, or lies below one "
                f"that has results ({said}). Use another key."
            )
        if code == errno.ENAMETOOLONG:
            return RefusedError(
                f"The key {shown(key)} is too long for the tracker base {self.base!r} ({said}). Shorten it."
            )
        return TrackerError(
            f"Cannot {action} {where} ({said}). Check the tracker base {self.base!r}, its credentials, and the "
            "connection to it."
        )

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call the function for each item, concurrently if the store allows it, and yield the values in order.

        Raises:
            Exception: the function raised it for the next item. Calls that have not started are cancelled.
        """
        items = list(items)
        if self._threads == 1 or len(items) < 2:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(min(self._threads, len(items)), "torchx-kfp")
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
