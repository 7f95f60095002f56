"""A client of an API server: objects are the dictionaries that JSON has."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server's answer to a request that it refuses."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.status = status
        said = json.loads(body)["message"] if body.startswith("{") else body
        super().__init__(f"{method} {path}: {status}: {said}")


class Stream:
    """The answer to a request that the server does not end: a watch."""

    def __init__(self, answer: urllib3.HTTPResponse) -> None:
        self._answer = answer
        self._socket = answer.connection.sock

    def __iter__(self) -> Iterator[bytes]:
        """Yield its lines as soon as they are there, until the server or another thread ends it."""
        rest = b""
        try:
            for part in self._answer.stream():
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
        except (OSError, ValueError, urllib3.exceptions.HTTPError):
            return
        finally:
            self._answer.close()

    def end(self) -> None:
        """End it from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class Api:
    """Sends requests as the user of a client certificate."""

    def __init__(self, url: str, authority: Path, pair: tuple[Path, Path]) -> None:
        certificate, key = map(str, pair)
        self._url = url
        self._pool = urllib3.PoolManager(ca_certs=str(authority), cert_file=certificate, key_file=key, maxsize=50)
        self._resources: dict[str, dict[str, Object]] = {}

    def __del__(self) -> None:
        self._pool.clear()

    def send(
        self, method: str, path: str, body: Object | None = None, type: str = "application/json", /, **query: Any
    ) -> Any:
        """Return what the server answers, as an object or as text; raise `ApiError` if it refuses."""
        headers, data = ({}, None) if body is None else ({"Content-Type": type}, json.dumps(body))
        answer = self._ask(method, path, query, headers=headers, body=data, timeout=120)
        text = answer.data.decode()
        return json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text

    def get(self, path: str, **query: Any) -> Any:
        return self.send("GET", path, **query)

    def post(self, path: str, body: Object, **query: Any) -> Any:
        return self.send("POST", path, body, **query)

    def patch(self, path: str, body: Object, **query: Any) -> Any:
        return self.send("PATCH", path, body, MERGE_PATCH, **query)

    def delete(self, path: str, body: Object | None = None, **query: Any) -> Any:
        return self.send("DELETE", path, body, **query)

    def stream(self, path: str, **query: Any) -> Stream:
        """Return an answer that goes on."""
        return Stream(self._ask("GET", path, query, preload_content=False))

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

    def _ask(self, method: str, path: str, query: Mapping[str, Any], **options: Any) -> urllib3.HTTPResponse:
        words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        url = f"{self._url}{path}?{urlencode(words)}" if words else f"{self._url}{path}"
        answer = self._pool.request(method, url, retries=False, **options)
        if answer.status >= 400:
            raise ApiError(method, path, answer.status, answer.data.decode())
        return answer
