"""Stores keep the files of a tracker, by key: their interface, their keys, and calls to them.

A key is a path of names below the tracker base. Its only character with a meaning for stores is ``/``, which separates
the names.
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

#: Seconds for which the drivers of object stores keep trying while a user waits: at a command line, for a page, or for
#: the next stage of a run on this machine. Stages have ``storage.PATIENCE``.
SHORT_PATIENCE = 5.0
#: The bytes of a file of results or records, at most. They have kilobytes; curves are bounded.
LARGEST_RECORD = 64 << 20
#: How many records are read together.
_READ_AHEAD = 1000

Key = int | str | uuid.UUID

#: TorchX's own runner sets TORCHX_JOB_ID to an app handle, ``local_cwd://session/app``, which has an empty name.
_APP_HANDLE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*://")

_last = 0


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and its time of change in seconds since 1970.

    If the store does not tell the time, it is infinite: the file is never old.
    """

    key: str
    size: int
    modified: float


def key_text(key: Key) -> str:
    """Return the key as text. An int or a UUID is the same as its string.

    Raises:
        RefusedError: the key is not a str or int, is empty or absolute, would leave the tracker base, or cannot be
            the same text on every store.
    """
    if isinstance(key, uuid.UUID):
        key = str(key)
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise RefusedError(f"A key is a str, an int or a UUID. Got {type(key).__name__}: {shown(key)}.")
    try:
        # For a member of an enum of str or int, the base classes' methods return its value rather than its name.
        text = str.__str__(key) if isinstance(key, str) else int.__repr__(key)
    except ValueError:
        raise RefusedError("The key is an int of thousands of digits, which no store can hold. Shorten it.") from None
    problem = _problem(text)
    if problem:
        raise RefusedError(f"The key {shown(text)} {problem}.")
    return text


def is_key(text: str) -> bool:
    """Tell whether text can be a key; the name of an external source of a run need not be one."""
    return _problem(text) is None


def new_entry_name() -> str:
    """Return a name that sorts by time. Later names of a process sort last, even if the clock is set back.

    There is no lock: a signal handler or a forked process could wait for it forever. What threads record at the same
    time has no order.
    """
    global _last
    _last = number = max(time.time_ns(), _last + 1)
    return f"{number:019}-{os.urandom(4).hex()}"


def run_id_parts(key: str) -> tuple[str, str, str] | None:
    """Return the pipeline run, stage and execution in the run id of a stage, or None for any other key."""
    parts = key.split("/")
    # In a folder, the two slashes of an app handle become one: local_cwd://session/app.
    return None if len(parts) != 3 or not all(parts) or parts[0].endswith(":") else (parts[0], parts[1], parts[2])


def pipeline_run(key: str) -> str:
    """Return the pipeline run in a run id; for another key, its first part, and for an app handle, all of it."""
    return key if ":/" in key else key.partition("/")[0]


def _problem(text: str) -> str | None:
    if not text:
        return "is empty. Name what the results belong to, for example a run id"
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
            return f"has a part that begins with {PRIVATE!r}, as the names of the tracker's own files do"
    return None


class Store(abc.ABC):
    """Whole files below one tracker base, by key.

    Args:
        base: the tracker base as the user gave it.
        threads: how many calls may be made at once.
    """

    def __init__(self, base: str, threads: int) -> None:
        self.base = base
        self._threads = threads

    @abc.abstractmethod
    def location(self, key: str) -> str:
        """Return the path or URL of the key's file, for messages."""

    def read(self, key: str, most: int = LARGEST_RECORD + 1) -> bytes | None:
        """Return at most this many of the first bytes of the key's file; None if it does not exist.

        Raises:
            CorruptResultError: something other than a file is there.
        """
        [content] = self._read_many([key], most)
        if isinstance(content, CorruptResultError):
            raise content
        return content

    def read_records(self, keys: Sequence[str]) -> Iterator[bytes | CorruptResultError | None]:
        """Yield the content of each file of results or records, None if it does not exist; many are read at once.

        It is an error if it is not a file, or too large to be one. The base may be somebody else's.
        """
        for start in range(0, len(keys), _READ_AHEAD):
            batch = keys[start : start + _READ_AHEAD]
            for key, content in zip(batch, self._read_many(batch, LARGEST_RECORD + 1), strict=True):
                if isinstance(content, bytes) and len(content) > LARGEST_RECORD:
                    yield CorruptResultError(
                        f"{self.location(key)} is larger than {LARGEST_RECORD >> 20} MiB, so it does not hold results "
                        "or records. Something else wrote it. Remove it."
                    )
                else:
                    yield content

    @abc.abstractmethod
    def _read_many(self, keys: Sequence[str], most: int) -> Iterator[bytes | CorruptResultError | None]:
        """Yield for each key what ``read`` returns, or its error for what is no file; many are read at once."""

    @abc.abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Write the key's file. Readers see the old content or the new one."""

    def locked(self, key: str) -> contextlib.AbstractContextManager[object]:
        """Return a context for one process at a time that updates the key, as far as the store can tell."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def put_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        """Copy files of this machine, of these paths and sizes by key. A reader sees all of a file or nothing."""

    @abc.abstractmethod
    def get_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        """Copy files to this machine, to the paths that are given by key, with their sizes.

        Raises:
            FileNotFoundError: a file does not exist.
            OSError: a file of this machine cannot be written.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file, which need not exist any more."""

    @abc.abstractmethod
    def list_files(self, prefix: str = "", *, private: bool = True) -> list[File]:
        """Return the file of the prefix and those below it, or all files, sorted by key.

        Args:
            prefix: a key. Both ``a`` and ``a/b`` can be files of an object store.
            private: whether to include the tracker's own files below the prefix, and links.
        """

    def problem(self, action: str, key: str, error: BaseException) -> TrackerError:
        """Return what a failed call means for the key, or for the tracker base if the key is empty."""
        where = self.location(key) if key else self.base
        code = error.errno if isinstance(error, OSError) else None
        said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        if isinstance(error, PermissionError) or code == errno.EROFS:
            return TrackerError(
                f"No permission to {action} {where} ({said}). Check that user id {os.geteuid()}, or the credentials, "
                "can read, write and list there: without permission to list, S3 says the same of missing objects."
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
            f"Cannot {action} {where} ({said}). Check the tracker base {self.base!r}, its credentials, and whether it "
            "can be reached from here."
        )

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call the function for each item, several at once if the store allows it, and yield the values in order.

        Raises:
            Exception: what the function raised, when its item is taken. Calls that have not begun are abandoned.
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
