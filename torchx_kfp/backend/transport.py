"""One exchange with a host: whatever it sends, and however slowly, it takes a limited time and memory."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, LineTooLong
from typing import Any

from urllib3.exceptions import HTTPError

#: The most bytes of an answer, unpacked. The largest that KFP has are 50 runs with their pipelines (1 MB each), and the
#: workflow of a run of 1,000 stages.
MOST_BYTES = 128 << 20
#: The most seconds from a request to the end of its answer.
LONGEST = 120.0
#: How much is read at once.
_PIECE = 1 << 14
#: The most bytes of a line with the size of a chunk, as in ``http.client``.
_LONGEST_LINE = 1 << 16
_PACKED = {"gzip": 47, "x-gzip": 47, "deflate": 47}
#: What urllib3 and http.client raise if a server does not speak HTTP; OverflowError is that of a chunk's size.
BROKEN = (HTTPError, HTTPException, ValueError, OverflowError, OSError)


class TooLargeError(HTTPError):  # type: ignore[misc]
    """The answer has too many bytes."""


class TooSlowError(HTTPError):  # type: ignore[misc]
    """The answer takes too long."""


@dataclass(frozen=True)
class Received:
    """An answer as it was received."""

    status: int
    headers: Mapping[str, str]
    location: str
    body: bytes


class Exchange:
    """A request in a thread of its own, which is left behind if it takes too long: DNS and TLS wait as they like."""

    def __init__(self, manager: Any, method: str, url: str, most: int, **options: Any) -> None:
        """Describe the request.

        Args:
            manager: the ``PoolManager`` of urllib3.
            method: the method.
            url: the URL.
            most: the most bytes of the answer.
            options: the other arguments of ``PoolManager.request``.
        """
        self._manager, self._method, self._url, self._most, self._options = manager, method, url, most, options
        self._done = threading.Event()
        #: What came of it: an answer or an error.
        self._outcome: Received | Exception = TooSlowError("nobody has waited for the answer")
        #: The connection that is being used.
        self._connection: Any = None

    def run(self, seconds: float) -> Received:
        """Send the request and return the answer.

        Args:
            seconds: how long that may take.

        Raises:
            HTTPError: there is no answer, or it is too large or too slow. Servers that do not speak HTTP cause others:
                see ``BROKEN``.
        """
        threading.Thread(target=self._run, name="torchx-kfp-request", daemon=True).start()
        if not self._done.wait(seconds):
            with suppress(AttributeError, OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            raise TooSlowError(f"the answer was not complete within {seconds:g} s")
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _run(self) -> None:
        _exchange_of.thread = self
        try:
            self._outcome = self._receive()
        except Exception as error:
            self._outcome = error
        self._done.set()

    def _receive(self) -> Received:
        pool = self._manager.connection_from_url(self._url)
        if not issubclass(pool.ConnectionCls, _Known):
            pool.ConnectionCls = type("KnownConnection", (_Known, pool.ConnectionCls), {})
        # urllib3 would read the whole of an answer before it repeats or redirects a request.
        answer = self._manager.request(
            self._method,
            self._url,
            preload_content=False,
            decode_content=False,
            enforce_content_length=True,
            redirect=False,
            retries=False,
            **self._options,
        )
        try:
            _limit_lines(answer)
            body = self._body(answer)
        except BaseException:
            answer.close()
            raise
        answer.release_conn()
        return Received(answer.status, answer.headers, str(answer.get_redirect_location() or ""), body)

    def _body(self, answer: Any) -> bytes:
        packing = answer.headers.get("Content-Encoding", "").strip().lower() or "identity"
        if packing != "identity" and packing not in _PACKED:
            raise HTTPError(f"the answer is packed as {packing[:40]!r}")
        unpack = zlib.decompressobj(_PACKED[packing]) if packing in _PACKED else None
        pieces, size = [], 0
        for piece in answer.stream(_PIECE, decode_content=False):
            if unpack is not None:
                try:
                    piece = unpack.decompress(piece, self._most + 1 - size)
                except zlib.error:
                    raise HTTPError("the answer cannot be unpacked") from None
            pieces.append(piece)
            size += len(piece)
            if size > self._most:
                raise TooLargeError(f"the answer is larger than {self._most >> 20} MiB")
        if unpack is not None and not unpack.eof:
            raise HTTPError("the answer ends too early")
        return b"".join(pieces)


def _limit_lines(answer: Any) -> None:
    """Have urllib3 read lines of limited length: those with the sizes of chunks, and those after the last chunk."""
    stream = getattr(getattr(answer, "_fp", None), "fp", None)
    if stream is None:
        return  # the answer has no body
    unlimited = stream.readline

    def readline(size: int = _LONGEST_LINE) -> bytes:
        line: bytes = unlimited(size)
        if len(line) >= _LONGEST_LINE:
            raise LineTooLong("chunk size")
        return line

    stream.readline = readline


#: The exchange of each thread.
_exchange_of = threading.local()


class _Known:
    """A connection of urllib3 that tells the exchange of its thread that it is in use."""

    def putrequest(self, *words: Any, **options: Any) -> None:
        """Begin a request."""
        _exchange_of.thread._connection = self
        super().putrequest(*words, **options)  # type: ignore[misc]
