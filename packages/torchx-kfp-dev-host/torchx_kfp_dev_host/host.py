"""The host: KFP's API at an address of this machine, for as long as a context lasts."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torchx_kfp_dev_host.answers import Refused, proxy_error
from torchx_kfp_dev_host.api import Api
from torchx_kfp_dev_host.runs import Run

_ABOUT = "This is the dev host of torchx-kfp: it has the API of KFP 2, and no pages. Use: torchx-kfp watch RUN\n"
#: The longest request, in bytes. A pipeline that KFP stores has at most 4 MiB.
_LONGEST = 32 << 20


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    text: str
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

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
        for name, value in {**answer.headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: int(len(content) * share)])


class Server(ThreadingHTTPServer):
    """Serves a host; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], host: DevHost, handler: type[Handler]) -> None:
        self.host: Any = host
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


class DevHost:
    """KFP's API on a port of this machine's loopback address."""

    handler = Handler
    api = Api

    def __init__(
        self, folder: Path, *, port: int = 0, token: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Listen; requests are answered in the context. ``options`` are those of local runs, which share a cache.

        Raises:
            OSError: the port is in use.
        """
        #: The token may change at any time.
        self.token = token
        self._api = self.api(Path(folder).absolute(), {"directory": str(Path.cwd()), **(options or {})})
        self._server = Server(("127.0.0.1", port), self, self.handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The host's URL, as users give it to ``kfp.Client``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def runs(self) -> Mapping[str, Run]:
        """The runs by their ids."""
        return self._api.runs

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, and the runs in progress with their processes."""
        self._server.shutdown()
        self._thread.join()
        self._server.close()
        for run in self.runs.values():
            run.stop()
        for run in self.runs.values():
            run.close()

    def handle(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Answer:
        """Return the answer to a request."""
        if (refused := self.refuse(headers)) is not None:
            return refused
        parts = urlsplit(target)
        if (method, parts.path) == ("GET", "/"):
            return Answer(200, _ABOUT, "text/plain")
        given = headers.get("authorization", "")
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return Answer.json(401, proxy_error(401))
        try:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            content = self._api.answer(method, parts.path, query, json.loads(data or b"null"))
        except Refused as error:
            return Answer.json(error.status, error.answer)
        return Answer(200, content, "text/plain") if isinstance(content, str) else Answer.json(200, content)

    def refuse(self, headers: Mapping[str, str]) -> Answer | None:
        """Refuse the requests of other sites: of a page in a browser, or with another name for this machine."""
        port = self._server.server_address[1]
        own = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = headers.get("origin")
        if headers.get("host") in own and (origin is None or urlsplit(origin).netloc in own):
            return None
        return Answer.json(403, {"code": 7, "message": "The dev host only answers programs on this machine."})
