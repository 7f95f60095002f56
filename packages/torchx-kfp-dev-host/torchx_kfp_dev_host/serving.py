"""The HTTP server: connections, and answers."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The longest request, in bytes. A pipeline that KFP stores has at most 4 MiB.
_LONGEST = 32 << 20


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    text: str
    content_type: str

    @classmethod
    def json(cls, status: int, content: Any) -> Answer:
        return cls(status, json.dumps(content), "application/json")


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    #: The seconds after which a connection that says nothing is closed: each has a thread.
    timeout = 60
    server: Server
    # Nagle's algorithm would delay the body of an answer by 40 ms.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_DELETE = do_GET

    def respond(self) -> None:
        """Answer the request."""
        try:
            answer = self.answer()
        except Exception as error:  # anybody may send anything, such as an Origin that is no URL
            self.close_connection = True
            answer = Answer.json(500, {"code": 13, "message": f"{type(error).__name__}: {error}"})
        self.send(answer)

    def answer(self) -> Answer:
        """Return the answer of the host."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _LONGEST:
            self.close_connection = True
            return Answer.json(413, {"code": 3, "message": "The request is too large."})
        answer: Answer = self.server.host.handle(self.command, self.path, headers, self.rfile.read(int(length)))
        return answer

    def send(self, answer: Answer, headers: Mapping[str, str] | None = None, share: float = 1) -> None:
        """Send an answer, or a share of its body."""
        content = answer.text.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: int(len(content) * share)])


class Server(ThreadingHTTPServer):
    """Serves a host; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], host: Any, handler: type[Handler]) -> None:
        """Listen. Raises OSError if the port is in use."""
        self.host = host
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

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
