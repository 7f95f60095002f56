"""A server over TLS on a free port of this machine, with a thread for each connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Answers requests; nothing is logged."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int, headers: dict[str, str], length: int | None) -> None:
        """Send the head of an answer; without a length, the body comes in chunks."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.end_headers()

    def send_chunk(self, data: bytes) -> None:
        """Send a part of the body; an empty one is the last."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


class TlsServer(ThreadingHTTPServer):
    """Serves from its creation until `end`."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, pair: tuple[Path, Path], handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*pair)
        self._open: set[socket.socket] = set()
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Cut all connections, and wait for their threads."""
        self.shutdown()
        self._thread.join()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def finish_request(self, request, client_address) -> None:
        # In the thread of the request: a client that does not go on does not stop others.
        request.settimeout(60)
        with self._context.wrap_socket(request, server_side=True) as secured:
            self._open.add(secured)
            try:
                secured.settimeout(None)
                super().finish_request(secured, client_address)
            finally:
                self._open.discard(secured)

    def handle_error(self, request, client_address) -> None:
        # A client that has gone is not an error.
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)
