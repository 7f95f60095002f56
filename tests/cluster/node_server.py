"""The server of a node, from which the API server reads the logs of containers."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

#: Returns what a container's log has for these options: (namespace, pod, container, options).
Reader = Callable[[str, str, str, Mapping[str, str]], Iterable[bytes]]


class RefusedError(Exception):
    """A request for a log that a node refuses."""


class NodeServer:
    """Answers ``/containerLogs/NAMESPACE/POD/CONTAINER`` over TLS, on a free port."""

    def __init__(self, pair: tuple[Path, Path], read: Reader) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pair)

        class Handler(_Handler):
            reader = staticmethod(read)

        class Server(_Server):
            tls = context

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; answers that go on end when their logs do."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext

    def finish_request(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        # In the thread of the request: a client that does not go on does not stop others.
        request.settimeout(60)
        with self.tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        # A reader that has gone is not an error.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    reader: Reader

    def do_GET(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        root, *names = parts.path.lstrip("/").split("/")
        try:
            if root != "containerLogs" or len(names) != 3:
                raise RefusedError(f"unknown path {parts.path}")
            chunks = type(self).reader(*names, dict(parse_qsl(parts.query)))
        except RefusedError as error:
            text = str(error).encode()
            self.send_response(400)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks:
            if chunk:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass
