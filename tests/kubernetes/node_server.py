"""The server of a node, from which the API server reads the logs of containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.kubernetes.tls_server import Handler, TlsServer

#: Returns what a container's log has for these options: (namespace, pod, container, options).
Reader = Callable[[str, str, str, Mapping[str, str]], Iterable[bytes]]


class RefusedError(Exception):
    """A request for a log that a node refuses."""


def serve_logs(pair: tuple[Path, Path], read: Reader) -> TlsServer:
    """Start a server that answers ``/containerLogs/NAMESPACE/POD/CONTAINER``."""

    class Logs(Handler):
        def do_GET(self) -> None:
            self.close_connection = True
            parts = urlsplit(self.path)
            root, *names = parts.path.lstrip("/").split("/")
            try:
                if root != "containerLogs" or len(names) != 3:
                    raise RefusedError(f"unknown path {parts.path}")
                chunks = read(*names, dict(parse_qsl(parts.query)))
            except RefusedError as error:
                text = str(error).encode()
                self.begin(400, {"Content-Type": "text/plain", "Connection": "close"}, len(text))
                self.wfile.write(text)
                return
            self.begin(200, {"Content-Type": "text/plain", "Connection": "close"}, None)
            for chunk in chunks:
                if chunk:
                    self.send_chunk(chunk)
            self.send_chunk(b"")

    return TlsServer(pair, Logs)
