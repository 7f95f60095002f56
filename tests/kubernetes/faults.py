"""A server between a client and the API server, which does to requests what a test says, and records them.

It keeps what they and their answers say if it is asked to.

It uses TLS with a certificate of the cluster's authority, and passes tokens on; client certificates end at it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.tls_server import Handler, TlsServer, reset

#: A number is a status that is answered instead of passing the request on (429 with ``Retry-After``); ``"cut"`` resets
#: the connection before the request is passed on, ``"lost"`` after the API server has handled it; a float delays the
#: request by this many seconds; None does nothing.
Fault = int | float | Literal["cut", "lost"] | None


@dataclass
class Request:
    """A request, the fault that befell it, and the status of the answer: the client's, or 0 if there was none.

    ``arrived`` is when it came, and ``handled`` the API server's status, whether or not the client gets it. ``body``
    and ``answer`` are empty unless the server keeps them; ``whole`` tells whether the answer came to its end.
    """

    number: int
    method: str
    path: str
    fault: Fault = None
    status: int = 0
    body: bytes = b""
    answer: bytes = b""
    whole: bool = False
    arrived: float = 0.0
    handled: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class FaultyServer:
    """Passes requests on to the API server.

    Of ``faults``, one befalls each request. ``before`` is called with each request before it is passed on, ``after``
    when the API server has answered it and before the client knows. With ``keep``, requests have their bodies and
    their answers.
    """

    def __init__(self, cluster: ControlPlane, faults: Iterable[Fault] = (), *, keep: bool = False) -> None:
        self._keep = keep
        self._faults = deque(faults)
        self._context = ssl.create_default_context(cafile=str(cluster.authority.file))
        self._upstream = urlsplit(cluster.url)
        self.requests: list[Request] = []
        self.before: Callable[[Request], object] = lambda _: None
        self.after: Callable[[Request], object] = lambda _: None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._ending = False
        passing = self._handle

        class Passing(Handler):
            def handle_request(self) -> None:
                passing(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

        self._server = TlsServer((cluster.folder / "server.crt", cluster.folder / "server.key"), Passing)
        self.url = f"https://127.0.0.1:{self._server.port}"

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._server.end()

    def _begin(self, handler: Handler) -> Request:
        with self._lock:
            request = Request(len(self.requests), handler.command, handler.path, arrived=time.monotonic())
            self.requests.append(request)
            request.fault = self._faults.popleft() if self._faults else None
        return request

    def _handle(self, handler: Handler) -> None:
        request = self._begin(handler)
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if self._keep:
            request.body = body
        self.before(request)
        fault = request.fault
        if fault == "cut":
            _cut(handler)
        elif isinstance(fault, int):
            request.status = fault
            _answer(handler, fault)
        else:
            if isinstance(fault, float):
                time.sleep(fault)
            with contextlib.suppress(http.client.HTTPException):
                self._pass_on(handler, request, body)

    def _pass_on(self, handler: Handler, request: Request, body: bytes) -> None:
        host, port = self._upstream.hostname, self._upstream.port
        assert host
        connection = http.client.HTTPSConnection(host, port, context=self._context)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
            connection.request(request.method, request.path, body or None, headers)
            self._sockets.add(connection.sock)
            with connection.getresponse() as answer:
                request.handled = answer.status
                self.after(request)
                if request.fault == "lost":
                    _cut(handler)
                else:
                    request.status = answer.status
                    self._copy(handler, answer, request)
        finally:
            self._sockets.discard(connection.sock)
            connection.close()

    def _copy(self, handler: Handler, answer: http.client.HTTPResponse, request: Request) -> None:
        hidden = ("transfer-encoding", "content-length", "connection")
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in hidden}
        handler.begin(answer.status, headers, answer.length)
        while data := answer.read1(1 << 16):
            if self._keep:
                request.answer += data
            if answer.length is None:
                handler.send_chunk(data)
            else:
                handler.wfile.write(data)
        # The end of this server, too, ends the answers that it is passing on.
        request.whole = not self._ending
        if answer.length is None and request.whole:
            handler.send_chunk(b"")


def _cut(handler: Handler) -> None:
    handler.close_connection = True
    reset(handler.connection)


def _answer(handler: Handler, status: int) -> None:
    """Answer as the API server does where it refuses."""
    message = f"a fault of the test: {http.client.responses[status]}"
    text = json.dumps(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": message, "code": status}
    ).encode()
    headers = {"Content-Type": "application/json", **({"Retry-After": "1"} if status == 429 else {})}
    handler.begin(status, headers, len(text))
    handler.wfile.write(text)
