"""All objects of a collection and all their changes, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from tests.kubernetes.api import Api, Object, Stream


class Informer:
    """Calls a function with each event (ADDED, MODIFIED, DELETED) and object of a collection, until it is ended.

    What goes wrong in its thread is in ``errors``.
    """

    def __init__(self, api: Api, path: str, see: Callable[[str, Object], object]) -> None:
        self.errors: list[BaseException] = []
        self._api = api
        self._path = path
        self._see = see
        self._stream: Stream | None = None
        self._ending = False
        self._lock = threading.Lock()
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
            known: dict[str, Object] = {}
            while not self._ending:
                self._follow(known)
        except BaseException as error:
            if not self._ending:
                self.errors.append(error)

    def _follow(self, known: dict[str, Object]) -> None:
        """List the objects, and watch them until the watch ends."""
        listed = self._api.get(self._path)
        # Items of a list do not say what they are.
        kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
        found = {each["metadata"]["uid"]: {**kind, **each} for each in listed["items"]}
        for uid in known.keys() - found.keys():
            self._see("DELETED", known.pop(uid))
        for uid, each in found.items():
            known[uid] = each
            self._see("ADDED", each)
        stream = self._api.stream(self._path, watch=1, resourceVersion=listed["metadata"]["resourceVersion"])
        with self._lock:
            self._stream = stream
            if self._ending:
                stream.end()
        for line in stream:
            event = json.loads(line)
            if event["type"] == "ERROR":
                stream.close()
                return
            uid = event["object"]["metadata"]["uid"]
            if event["type"] == "DELETED":
                known.pop(uid, None)
            else:
                known[uid] = event["object"]
            self._see(event["type"], event["object"])
