"""A server between a client and the API server, which records requests and what they and their answers say.

It uses TLS with a certificate of the cluster's authority, and passes tokens on; client certificates end at it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.tls_server import Handler, TlsServer


@dataclass
class Request:
    """A request, and the API server's answer; ``whole`` tells whether it came to its end."""

    number: int
    method: str
    path: str
    body: bytes = b""
    status: int = 0
    answer: bytes = b""
    whole: bool = False


class PassingServer:
    """Passes requests on to the API server; ``after`` is called when that has answered and the client knows nothing."""

    def __init__(self, cluster: ControlPlane, after: Callable[[Request], object] = lambda _: None) -> None:
        self._context = ssl.create_default_context(cafile=str(cluster.authority.file))
        self._upstream = urlsplit(cluster.url)
        self.requests: list[Request] = []
        self._after = after
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._ending = False
        passing = self._handle

        class Passing(Handler):
            def handle_request(self) -> None:
                passing(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

        self._server = TlsServer((cluster.folder / "server.crt", cluster.folder / "server.key"), Passing)
        self.port = str(self._server.port)

    def __enter__(self) -> PassingServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._server.end()

    def _handle(self, handler: Handler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        with self._lock:
            request = Request(len(self.requests), handler.command, handler.path, body)
            self.requests.append(request)
        connection = http.client.HTTPSConnection(self._upstream.netloc, context=self._context)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
            connection.request(request.method, request.path, body or None, headers)
            self._sockets.add(connection.sock)
            with contextlib.suppress(http.client.HTTPException), connection.getresponse() as answer:
                request.status = answer.status
                self._after(request)
                self._copy(handler, answer, request)
        finally:
            self._sockets.discard(connection.sock)
            connection.close()

    def _copy(self, handler: Handler, answer: http.client.HTTPResponse, request: Request) -> None:
        hidden = ("transfer-encoding", "content-length", "connection")
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in hidden}
        handler.begin(answer.status, headers, answer.length)
        while data := answer.read1(1 << 16):
            request.answer += data
            if answer.length is None:
                handler.send_chunk(data)
            else:
                handler.wfile.write(data)
        # The end of this server, too, ends the answers that it is passing on.
        request.whole = not self._ending
        if answer.length is None and request.whole:
            handler.send_chunk(b"")
