"""Trying again what failed for a moment: a store that is busy, restarts, or cannot be reached."""

from __future__ import annotations

import errno
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger(__name__)

#: Seconds for which a tracker keeps trying: a restart of a storage server, and a node's network, take less.
PATIENCE = 60.0
#: Seconds before the second attempt; doubled each time, up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 8.0

#: HTTP's status codes that say "not now".
_STATUS = {408, 425, 429, 500, 502, 503, 504}
#: The same as S3 names it, also under other status codes.
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
#: Errors of connections by name, in the HTTP clients below fsspec: botocore, aiohttp, requests, azure.core.
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
#: These are errors of connections as well, and stay.
_LASTING = {"CertificateError", "ClientConnectorCertificateError", "ClientSSLError", "SSLError"}


class Calls:
    """Calls of several threads that belong together: they are given up together, and warn once in a second."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._warned = -math.inf

    def may_warn(self) -> bool:
        """Whether a second has passed since the last warning."""
        now = time.monotonic()
        if now - self._warned <= 1:
            return False
        self._warned = now
        return True


_thread = threading.local()


def join_calls(calls: Calls) -> None:
    """Make this thread's calls belong to these."""
    _thread.calls = calls


def is_transient(error: BaseException) -> bool:
    """Whether the same may work a moment later: connections, time-outs, and stores that say so."""
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


def retried(action: Callable[[], T], patience: float, what: Callable[[], str]) -> T:
    """The action's value, tried again while it fails for a moment.

    Args:
        action: has the same effect when it is done twice.
        patience: seconds after which the last error is raised; 0: no second attempt.
        what: what the action does, for the log, such as ``write s3://bucket/key``.
    """
    start = time.monotonic()
    wait = _FIRST_WAIT
    calls: Calls | None = getattr(_thread, "calls", None)
    while True:
        try:
            return action()
        except Exception as error:
            # Of many that fail at once, not all try again at once.
            pause = wait * random.uniform(0.5, 1.0)
            if time.monotonic() - start + pause > patience or not is_transient(error):
                raise
            if calls is None or calls.may_warn():
                name = type(error).__name__
                _logger.warning("Cannot %s now, trying again in %.1f s (%s: %s)", what(), pause, name, error)
            if calls is None:
                time.sleep(pause)
            elif calls.stopped.wait(pause):  # nobody waits for it any more
                raise
            wait = min(2 * wait, _LONGEST_WAIT)


def _reasons(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    reason: BaseException | None = error
    while reason is not None and reason not in seen:
        seen.append(reason)
        yield reason
        reason = reason.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error of gcsfs, aiohttp, azure.core or requests, in this order."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "code"), (error, "status"), (error, "status_code"), (response, "status_code")):
        value = getattr(holder, name, None)
        if isinstance(value, str) and value.isdigit():
            return int(value)
        if isinstance(value, int):
            return value
    return None
