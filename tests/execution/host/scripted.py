"""An HTTP server that answers as a test says: a KFP host in trouble, or something else in its place."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True)
class Reply:
    """An answer: JSON if ``content`` is a dict. ``cut`` closes the connection half way through it."""

    content: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    cut: bool = False


Script = Callable[[Request], Reply | None]
#: Closes the connection without an answer.
CLOSE = None


class Scripted:
    """The running server. ``requests`` has what it was asked; ``script`` may be changed at any time."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(length)
                request = Request(self.command, self.path, self.headers, json.loads(data) if data else None)
                scripted.requests.append(request)
                reply = scripted.script(request)
                if reply is None:
                    self.close_connection = True
                    return
                text = json.dumps(reply.content) if isinstance(reply.content, dict) else reply.content
                body = text if isinstance(text, bytes) else text.encode()
                self.send_response(reply.status)
                default = "application/json" if isinstance(reply.content, dict) else "text/plain"
                self.send_header("Content-Type", reply.kind or default)
                self.send_header("Content-Length", str(len(body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if reply.cut else body)
                self.close_connection = self.close_connection or reply.cut

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, format: str, *arguments: Any) -> None:
                del format, arguments

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore clients that hang up, as those do that reject a certificate."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def scripted(script: Script, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run a server inside this context."""
    server = Scripted(script, context)
    try:
        yield server
    finally:
        server.close()


def status(code: int, message: str, http: int) -> Reply:
    """Return an error as KFP's API answers it: a google.rpc.Status."""
    return Reply({"code": code, "message": message, "details": []}, http)
