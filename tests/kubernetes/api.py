"""A client of an API server: objects are the dictionaries that JSON has."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server's answer to a request that it refuses."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.status = status
        self.body = body
        try:
            self.message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            self.message = body
        super().__init__(f"{method} {path}: {status}: {self.message}")


class Stream:
    """The answer to a request that the server does not end: a watch, or a log that is followed."""

    def __init__(self, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._socket = connection.sock
        self._answer = answer

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield its lines, until the server or another thread ends it."""
        try:
            # Unlike iteration over the answer, this returns each line as soon as it is there.
            while line := self._answer.readline():
                yield line
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            return
        finally:
            self.close()

    def end(self) -> None:
        """End it from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Api:
    """Sends requests as the user of a client certificate."""

    def __init__(self, url: str, authority: Path, pair: tuple[Path, Path]) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(*pair)
        self._resources: dict[str, dict[str, Object]] = {}
        #: Connections that wait for their next request: a handshake costs more than most requests.
        self._idle: deque[http.client.HTTPSConnection] = deque()

    def __del__(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def send(
        self, method: str, path: str, body: Object | None = None, type: str = "application/json", /, **query: Any
    ) -> Any:
        """Return what the server answers, as an object or as text; raise `ApiError` if it refuses."""
        connection = self._idle.pop() if self._idle else None
        try:
            connection, answer = self._open(method, path, body, type, query, connection)
        except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
            if connection is None:
                raise
            # It had ended while it waited.
            connection, answer = self._open(method, path, body, type, query)
        try:
            text = answer.read().decode()
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        if answer.status >= 400:
            raise ApiError(method, path, answer.status, text)
        return json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def get(self, path: str, **query: Any) -> Any:
        return self.send("GET", path, **query)

    def post(self, path: str, body: Object, **query: Any) -> Any:
        return self.send("POST", path, body, **query)

    def put(self, path: str, body: Object, **query: Any) -> Any:
        return self.send("PUT", path, body, **query)

    def patch(self, path: str, body: Object, type: str = MERGE_PATCH, /, **query: Any) -> Any:
        return self.send("PATCH", path, body, type, **query)

    def delete(self, path: str, body: Object | None = None, **query: Any) -> Any:
        return self.send("DELETE", path, body, **query)

    def stream(self, path: str, **query: Any) -> Stream:
        """Return an answer that goes on."""
        connection, answer = self._open("GET", path, None, "", query)
        if connection.sock:
            connection.sock.settimeout(None)
        if answer.status >= 400:
            text = answer.read().decode()
            answer.close()
            connection.close()
            raise ApiError("GET", path, answer.status, text)
        return Stream(connection, answer)

    def create(self, manifest: Object, namespace: str | None = None, **query: Any) -> Any:
        """Create an object."""
        return self.post(self.collection(manifest, namespace), manifest, **query)

    def collection(self, manifest: Object, namespace: str | None = None) -> str:
        """Return the path of an object's collection."""
        version = manifest["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if manifest["kind"] not in self._resources.get(root, {}):
            found = [each for each in self.get(root)["resources"] if "/" not in each["name"]]
            self._resources[root] = {each["kind"]: each for each in found}
        resource = self._resources[root][manifest["kind"]]
        namespace = namespace or manifest.get("metadata", {}).get("namespace")
        return f"{root}/{f'namespaces/{namespace}/' if resource['namespaced'] else ''}{resource['name']}"

    def _open(
        self,
        method: str,
        path: str,
        body: Object | None,
        type: str,
        query: Mapping[str, Any],
        connection: http.client.HTTPSConnection | None = None,
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = connection or http.client.HTTPSConnection(
            self._host, self._port, timeout=60, context=self._context
        )
        headers = {"Content-Type": type} if body is not None else {}
        words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        try:
            connection.request(
                method,
                f"{path}?{urlencode(words)}" if words else path,
                json.dumps(body) if body is not None else None,
                headers,
            )
            answer = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        return connection, answer
