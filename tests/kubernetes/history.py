"""The history of the objects of a namespace: every event of some collections, in order, and none is missed."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.kubernetes.api import Object, Stream
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.waiting import until


@dataclass(frozen=True)
class Event:
    """An object as it was after a change. Versions count all changes of the cluster."""

    version: int
    type: str
    collection: str
    object: Object = field(repr=False)

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])


class History:
    """Watches collections such as ``pods`` and ``batch/v1/jobs`` from its creation until `close`."""

    def __init__(self, namespace: Namespace, collections: Sequence[str]) -> None:
        self._namespace = namespace
        #: By name.
        self._events: dict[str, list[Event]] = {}
        self._reached: dict[str, int] = {}
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._ending = False
        self.errors: list[BaseException] = []
        for each in collections:
            listed = namespace.api.get(namespace.path(each))
            for found in listed["items"]:
                self._add(Event(0, "ADDED", each, found))
            self._reached[each] = int(listed["metadata"]["resourceVersion"])
        self._threads = [threading.Thread(target=self._watch, args=(each,), daemon=True) for each in collections]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._lock:
            self._ending = True
            for stream in self._streams.values():
                stream.end()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def events(self, prefix: str) -> list[Event]:
        """Return the events of objects whose names begin so, from the first one on."""
        with self._lock:
            found = [each for name, events in self._events.items() if name.startswith(prefix) for each in events]
        return sorted(found, key=lambda each: each.version)

    def last(self, name: str) -> Object:
        """Return the last state of the object that has this name, or nothing."""
        with self._lock:
            return self._events[name][-1].object if name in self._events else {}

    def left(self, prefix: str) -> list[str]:
        """Return the names of the objects that have not been deleted."""
        last = {each.uid: each for each in self.events(prefix)}
        return [each.name for each in last.values() if each.type != "DELETED"]

    def forget(self, prefix: str) -> None:
        """Make room."""
        with self._lock:
            self._events = {name: events for name, events in self._events.items() if not name.startswith(prefix)}

    def wait_for(self, collection: str, version: int) -> None:
        """Wait until everything is known that happened to the collection until this version."""
        until(lambda: self.errors or self._reached[collection] >= version)

    def _watch(self, collection: str) -> None:
        try:
            while not self._ending:
                version = self._reached[collection]
                stream = self._namespace.api.stream(
                    self._namespace.path(collection), watch=1, resourceVersion=version, allowWatchBookmarks=True
                )
                with self._lock:
                    self._streams[collection] = stream
                    if self._ending:
                        stream.end()
                for line in stream:
                    self._take(collection, json.loads(line))
        except BaseException as error:
            if not self._ending:
                self.errors.append(error)

    def _take(self, collection: str, said: Object) -> None:
        assert said["type"] != "ERROR", f"events of {collection} are lost: {said}"
        version = int(said["object"]["metadata"]["resourceVersion"])
        with self._lock:
            if said["type"] != "BOOKMARK":
                said["object"]["metadata"].pop("managedFields", None)
                self._add(Event(version, said["type"], collection, said["object"]))
            self._reached[collection] = version

    def _add(self, event: Event) -> None:
        self._events.setdefault(event.name, []).append(event)
