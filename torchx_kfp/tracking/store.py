"""Stores keep the files of a tracker, by key: their interface, their keys, and calls to them.

A key is a path of names below the tracker base. Its only character with a meaning for stores is ``/``, which separates
the names. Calls are made many at once, and retried when the store fails for a moment: it may be busy, or restart.
"""

from __future__ import annotations

import abc
import errno
import itertools
import logging
import math
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeVar

from torchx_kfp.common import safe_files
from torchx_kfp.common.text import shown, without_passwords
from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerError

T = TypeVar("T")
R = TypeVar("R")

_logger = logging.getLogger(__name__)

#: Seconds for which an application's tracker keeps trying. A restart of a storage server or of a node's network takes
#: less.
PATIENCE = 60.0
#: The same while a user waits: at a command line, for a page, or for the next stage of a run on this machine.
SHORT_PATIENCE = 5.0
#: The bytes of a file of results or records, at most. They have kilobytes; curves are bounded.
LARGEST_RECORD = 64 << 20
#: Seconds before the second attempt, and the longest wait. The wait is doubled each time.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 8.0

#: HTTP status codes that mean "not now".
_STATUS = {408, 425, 429, 500, 502, 503, 504}
#: S3's names for the same, which it also sends with other status codes.
_CODES = {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
_ERRNOS = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ESTALE,  # NFS, where another client has replaced the file
    errno.ETIMEDOUT,
}
#: Names of connection errors in the HTTP clients below fsspec: botocore, aiohttp, requests, azure.core.
_CONNECTION_ERRORS = {
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "ResponseParserError",
    "ServiceRequestError",
    "ServiceResponseError",
    "Timeout",
    "TimeoutError",
}
#: Connection errors that are permanent.
_LASTING = {"CertificateError", "ClientConnectorCertificateError", "ClientSSLError", "SSLError"}

Key = int | str

#: The folder for everything that a tracker keeps besides results. No part of a key begins with this name, and listings
#: do not show names that do: those of a local store's temporary files do as well.
PRIVATE = safe_files.PRIVATE

#: TorchX's own runner sets TORCHX_JOB_ID to an app handle, ``local_cwd://session/app``, which has an empty name.
_APP_HANDLE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*://")


_lock = threading.Lock()
_last = 0


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and its time of change in seconds since 1970."""

    key: str
    size: int
    modified: float


def key_text(key: Key) -> str:
    """Return the key as text. An int key is the same as its string.

    Raises:
        KeyRefusedError: the key is not a str or int, is empty or absolute, would leave the tracker base, or cannot be
            the same text on every store.
    """
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise KeyRefusedError(f"A key is a str or an int. Got {type(key).__name__}: {shown(key)}.")
    try:
        # For a member of an enum of str or int, the base classes' methods return its value rather than its name.
        text = str.__str__(key) if isinstance(key, str) else int.__repr__(key)
    except ValueError:
        raise KeyRefusedError(
            "The key is an int of thousands of digits, which no store can hold. Shorten it."
        ) from None
    problem = _problem(text)
    if problem:
        raise KeyRefusedError(f"The key {shown(text)} {problem}.")
    return text


def is_key(text: str) -> bool:
    """Tell whether text can be a key; the name of an external source of a run need not be one."""
    return _problem(text) is None


def time_name(after: int = 0) -> str:
    """Return a name that sorts by time. Later names of a process sort last, even if the clock is set back.

    Args:
        after: a time in nanoseconds after which the name sorts, even if it is in the future.
    """
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1)
        return f"{max(_last, after + 1):019}-{os.urandom(4).hex()}"


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


@dataclass(frozen=True)
class Concurrency:
    """How many threads call a store at once, and how many calls a thread makes in a row.

    A request to an object store is worth a switch to another thread; reading a local file is not. ``ahead`` limits how
    many batches a thread may be ahead of what is taken.
    """

    threads: int = 1
    batch: int = 1
    ahead: int = 4


class _CallGroup:
    """Calls of several threads that belong together: they are abandoned together, and warn at most once a second."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._warned = -math.inf

    def may_warn(self) -> bool:
        """Return whether a second has passed since the last warning."""
        now = time.monotonic()
        if now - self._warned <= 1:
            return False
        self._warned = now
        return True


_thread = threading.local()


def each(function: Callable[[T], R], items: Iterable[T], concurrency: Concurrency) -> Iterator[R]:
    """Call the function for each item, and yield the values in order, a few calls ahead of what is taken.

    Raises:
        Exception: what the function raised, when its item is taken. The remaining calls are abandoned.
    """
    source = iter(items)
    group = _CallGroup()

    def work(batch: list[T]) -> tuple[list[R], Exception | None]:
        values: list[R] = []
        try:
            values.extend(map(function, batch))
        except Exception as error:
            return values, error
        return values, None

    def take() -> Iterator[R]:
        values, error = pending.popleft().result()
        yield from values
        if error is not None:
            raise error

    def join_group() -> None:
        _thread.group = group

    batches = iter(lambda: list(itertools.islice(source, concurrency.batch)), [])
    first = list(itertools.islice(batches, 2))
    if concurrency.threads == 1 or len(first) < 2:
        for batch in itertools.chain(first, batches):
            yield from map(function, batch)
        return
    pool = ThreadPoolExecutor(concurrency.threads, "torchx-kfp", initializer=join_group)
    pending: deque[Future[tuple[list[R], Exception | None]]] = deque()
    try:
        for batch in itertools.chain(first, batches):
            pending.append(pool.submit(work, batch))
            if len(pending) >= concurrency.ahead * concurrency.threads:
                yield from take()
        while pending:
            yield from take()
    finally:
        group.stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)


def retried(action: Callable[[], T], patience: float, what: Callable[[], str]) -> T:
    """Return the action's value, and try again while it fails for a moment.

    Args:
        action: something that has the same effect when it is done twice.
        patience: seconds after which the last error is raised. With 0 there is no second attempt.
        what: describes the action for the log, such as ``write s3://bucket/key``.
    """
    start = time.monotonic()
    wait = _FIRST_WAIT
    group: _CallGroup | None = getattr(_thread, "group", None)
    while True:
        try:
            return action()
        except Exception as error:
            # If many fail at once, they should not all try again at once.
            pause = wait * random.uniform(0.5, 1.0)
            if time.monotonic() - start + pause > patience or not is_transient(error):
                raise
            if group is None or group.may_warn():
                text = f"Cannot {what()} now, trying again in {pause:.1f} s ({type(error).__name__}: {error})"
                _logger.warning("%s", without_passwords(text))
            if group is None:
                time.sleep(pause)
            elif group.stopped.wait(pause):  # the value is not needed any more
                raise
            wait = min(2 * wait, _LONGEST_WAIT)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may soon succeed: the connection failed, it timed out, or the store says so."""
    reason: BaseException | None = error
    seen: list[BaseException] = []
    while reason is not None and reason not in seen:
        names = {kind.__name__ for kind in type(reason).__mro__}
        if names & _LASTING:
            return False
        response = getattr(reason, "response", None)
        if isinstance(response, dict):  # botocore's ClientError
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status in _STATUS or response.get("Error", {}).get("Code") in _CODES
        if _status(reason) in _STATUS or names & _CONNECTION_ERRORS:
            return True
        if isinstance(reason, OSError) and reason.errno in _ERRNOS:
            return True
        seen.append(reason)
        reason = reason.__cause__
    return False


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of gcsfs, aiohttp, azure.core or requests, in this order."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "code"), (error, "status"), (error, "status_code"), (response, "status_code")):
        value = getattr(holder, name, None)
        if isinstance(value, str) and value.isdigit():
            return int(value)
        if isinstance(value, int):
            return value
    return None


def copy_bytes(source: BinaryIO, target: BinaryIO, size: int, part: int) -> None:
    """Copy at most this many bytes, in parts: a file that was changed may have no end."""
    while size > 0 and (data := source.read(min(part, size))):
        target.write(data)
        size -= len(data)


class Store(abc.ABC):
    """Whole files below one tracker base, by key.

    Args:
        base: the tracker base as the user gave it.
        patience: seconds for which a call that fails for a moment is tried again.
        concurrency: how many calls are made at once.
    """

    #: The bytes in which large files are written, at least.
    part = 1 << 20

    def __init__(self, base: str, patience: float, concurrency: Concurrency) -> None:
        self.base = base
        self._patience = patience
        self._concurrency = concurrency

    @abc.abstractmethod
    def location(self, key: str) -> str:
        """Return the path or URL of the key's file, for messages."""

    @abc.abstractmethod
    def read(self, key: str, most: int | None = None) -> bytes | None:
        """Return the content of the key's file, or at most this many of its first bytes; None if it does not exist."""

    def read_record(self, key: str) -> bytes | None:
        """Return the content of a file of results or records, such as ``read`` does.

        Raises:
            CorruptResultError: it is too large to be one. The base may be somebody else's.
        """
        content = self.read(key, LARGEST_RECORD + 1)
        if content is not None and len(content) > LARGEST_RECORD:
            raise CorruptResultError(
                f"{self.location(key)} is larger than {LARGEST_RECORD >> 20} MiB, so it does not hold results or "
                "records. Something else wrote it. Remove it."
            )
        return content

    @abc.abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Write the key's file. Readers see the old content or the new one."""

    @abc.abstractmethod
    def write_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write a large file of these parts, each of the same size but the last. Readers see all of it or nothing.

        The parts may be iterated over again, for another attempt.
        """

    @abc.abstractmethod
    def fetch(self, key: str, size: int, path: str) -> None:
        """Copy this many bytes of a large file to a path on this machine, which are all, unless it was changed.

        Raises:
            FileNotFoundError: it does not exist.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Remove the key's file, if it exists."""

    @abc.abstractmethod
    def remove_old(self, file: File) -> bool:
        """Remove a file unless it was written since it was listed, and return whether it is gone."""

    def remove_leftovers(self, before: float) -> None:  # noqa: B027 (only a file system has any)
        """Remove what writers that were killed before this time, in seconds since 1970, have left unfinished."""

    def remove_many(self, files: Iterable[File]) -> Iterator[bool | TrackerError]:
        """Remove files as ``remove_old`` does, many at once; yield for each whether it is gone, or why it may not go.

        Raises:
            TrackerError: the store failed.
        """

        def remove(file: File) -> bool | TrackerError:
            try:
                return self.remove_old(file)
            except TrackerError as error:
                if not isinstance(error.__cause__, PermissionError):
                    raise
                return error

        return self.each(remove, files)

    @abc.abstractmethod
    def keys(self, prefix: str | None) -> list[str]:
        """Return the prefix and the keys below it, if they exist, or all keys. Both lists are sorted."""

    @abc.abstractmethod
    def names(self, prefix: str | None = None, begin: str = "") -> list[str]:
        """Return the names directly below the prefix or the base, sorted. Names of folders end with a slash.

        Args:
            prefix: a folder below the base.
            begin: the beginning of the names that are wanted.
        """

    @abc.abstractmethod
    def files(self, prefix: str = "") -> list[File]:
        """Return all files below the base, or a folder in it, including the tracker's own files."""

    def each(self, function: Callable[[T], R], items: Iterable[T], most: int | None = None) -> Iterator[R]:
        """Call the function for each item, several at once if the store allows it, and yield the values in order.

        Args:
            function: the function.
            items: the items.
            most: how many calls may be made at once, if that is fewer than the store allows.
        """
        if most is None:
            return each(function, items, self._concurrency)
        return each(function, items, Concurrency(min(most, self._concurrency.threads), ahead=1))

    def for_this_thread(self) -> Store:
        """Return the store for a thread other than the one that opened it."""
        return self

    def _tried(self, action: str, key: str, function: Callable[[], T]) -> T:
        return retried(function, self._patience, lambda: f"{action} {self.location(key) if key else self.base}")
