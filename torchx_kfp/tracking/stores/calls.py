"""Calls to a store: many at once, and retried when the store fails for a moment.

A store may be busy, restart, or be out of reach for a moment.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_logger = logging.getLogger(__name__)

#: Seconds for which an application's tracker keeps trying. A restart of a storage server or of a node's network takes
#: less.
PATIENCE = 60.0
#: The same while a user waits: at a command line, for a page, or for the next stage of a run on this machine.
SHORT_PATIENCE = 5.0
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


@dataclass(frozen=True)
class Concurrency:
    """How many threads call a store at once, and how many calls a thread makes in a row.

    A request to an object store is worth a switch to another thread; reading a local file is not.
    """

    threads: int = 1
    batch: int = 1


class _Group:
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
    group = _Group()

    def work(batch: list[T]) -> list[Callable[[], R]]:
        return [_outcome(function, item) for item in batch]

    def take() -> list[T]:
        return list(itertools.islice(source, concurrency.batch))

    def join_group() -> None:
        _thread.group = group

    batches = iter(take, [])
    first = list(itertools.islice(batches, 2))
    if concurrency.threads == 1 or len(first) < 2:
        for batch in itertools.chain(first, batches):
            yield from map(function, batch)
        return
    pool = ThreadPoolExecutor(concurrency.threads, "torchx-kfp", initializer=join_group)
    pending: deque[Future[list[Callable[[], R]]]] = deque()
    try:
        for batch in itertools.chain(first, batches):
            pending.append(pool.submit(work, batch))
            if len(pending) >= 4 * concurrency.threads:
                yield from (outcome() for outcome in pending.popleft().result())
        while pending:
            yield from (outcome() for outcome in pending.popleft().result())
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
    group: _Group | None = getattr(_thread, "group", None)
    while True:
        try:
            return action()
        except Exception as error:
            # If many fail at once, they should not all try again at once.
            pause = wait * random.uniform(0.5, 1.0)
            if time.monotonic() - start + pause > patience or not is_transient(error):
                raise
            if group is None or group.may_warn():
                name = type(error).__name__
                _logger.warning("Cannot %s now, trying again in %.1f s (%s: %s)", what(), pause, name, error)
            if group is None:
                time.sleep(pause)
            elif group.stopped.wait(pause):  # the value is not needed any more
                raise
            wait = min(2 * wait, _LONGEST_WAIT)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may soon succeed: the connection failed, it timed out, or the store says so."""
    for reason in _reasons(error):
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
    return False


def _outcome(function: Callable[[T], R], item: T) -> Callable[[], R]:
    """Call the function, and return a callable that returns its value or raises its exception."""
    try:
        value = function(item)
    except Exception as error:
        raised = error

        def fail() -> R:
            raise raised

        return fail
    return lambda: value


def _reasons(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    reason: BaseException | None = error
    while reason is not None and reason not in seen:
        seen.append(reason)
        yield reason
        reason = reason.__cause__


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
