"""All objects of a collection and all their changes, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from tests.kubernetes.api import Api, Object, Stream


class Informer:
    """Calls a function with each event (ADDED, MODIFIED, DELETED) and object of a collection, until it is ended.

    No event is missed. What goes wrong in its thread is in ``errors``.
    """

    def __init__(self, api: Api, path: str, see: Callable[[str, Object], object]) -> None:
        self.errors: list[BaseException] = []
        self._api = api
        self._path = path
        self._see = see
        self._stream: Stream | None = None
        self._ending = False
        self._lock = threading.Lock()
        listed = api.get(path)
        # Items of a list do not say what they are.
        kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        for each in listed["items"]:
            see("ADDED", {**kind, **each})
        self._version = listed["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        with self._lock:
            self._ending = True
            if self._stream:
                self._stream.end()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending:
                self._watch()
        except BaseException as error:
            if not self._ending:
                self.errors.append(error)

    def _watch(self) -> None:
        """Watch the objects until the watch ends. Bookmarks keep the version from growing too old to go on from."""
        options = {"resourceVersion": self._version, "allowWatchBookmarks": True}
        stream = self._api.stream(self._path, watch=1, **options)
        with self._lock:
            self._stream = stream
            if self._ending:
                stream.end()
        for line in stream:
            event = json.loads(line)
            assert event["type"] != "ERROR", f"events of {self._path} are lost: {event}"
            self._version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._see(event["type"], event["object"])
