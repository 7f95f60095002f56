"""The HTTP server: connections, faults, and the log of requests."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from tests.fake_kfp.errors import proxy_error
from tests.fake_kfp.faults import Fault, Request


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    text: str
    content_type: str

    @classmethod
    def json(cls, status: int, content: Any) -> Answer:
        return cls(status, json.dumps(content), "application/json")


class Host(Protocol):
    """The parts of a host that the server needs."""

    faults: list[Fault]
    requests: list[Request]
    problems: list[str]
    handle: Callable[[str, str, Mapping[str, str], bytes], Answer]


class Server(ThreadingHTTPServer):
    """Serves a host; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], host: Host) -> None:
        self.host = host
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that is gone is not an error of the server.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Close all connections: clients keep them open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    # Nagle's algorithm would delay the body of an answer by 40 ms.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_DELETE = do_GET

    def _handle(self) -> None:
        host, began = self.server.host, time.monotonic()
        headers = {name.lower(): value for name, value in self.headers.items()}
        data = self.rfile.read(int(headers.get("content-length", 0)))
        fault = next((each for each in list(host.faults) if each.takes(self.command, self.path)), None)
        if fault is not None and fault.seconds:
            time.sleep(fault.seconds)
        if fault is not None and (fault.status or fault.cut == 0):
            text = json.dumps(proxy_error(fault.status)) if fault.body is None else fault.body
            answer = Answer(fault.status, text, fault.content_type)
        else:
            try:
                answer = host.handle(self.command, self.path, headers, data)
            except Exception as error:  # a mistake of the host: tests fail with it
                host.problems.append(f"{self.command} {self.path}: {type(error).__name__}: {error}")
                raise
        parts = urlsplit(self.path)
        cut = fault.cut if fault is not None else None
        status = answer.status if cut is None else 0
        host.requests.append(Request(self.command, parts.path, dict(parse_qsl(parts.query)), began, status, headers))
        self.close_connection |= cut is not None
        if cut == 0:
            return
        content = answer.text.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (fault.headers if fault is not None else {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content if cut is None else content[: int(len(content) * cut)])
