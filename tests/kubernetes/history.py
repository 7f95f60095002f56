"""The history of the objects of a namespace: every event of some collections, in order, and none is missed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.kubernetes.api import Object
from tests.kubernetes.informer import Informer
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
        #: By name.
        self._events: dict[str, list[Event]] = {}
        self._reached: dict[str, int] = dict.fromkeys(collections, 0)
        self._lock = threading.Lock()
        self._informers = [
            Informer(namespace.api, namespace.path(each), partial(self._see, each)) for each in collections
        ]

    def close(self) -> None:
        for each in self._informers:
            each.end()
            if each.errors:
                raise each.errors[0]

    def events(self, prefix: str) -> list[Event]:
        """Return the events of objects whose names begin so, from the first one on."""
        with self._lock:
            found = [each for name, events in self._events.items() if name.startswith(prefix) for each in events]
        return sorted(found, key=lambda each: each.version)

    def last(self, name: str) -> Object:
        """Return the last state of the object that has this name, or nothing."""
        with self._lock:
            return self._events[name][-1].object if name in self._events else {}

    def left(self, prefix: str) -> list[Event]:
        """Return the last events of the objects that have not been deleted."""
        last = {each.uid: each for each in self.events(prefix)}
        return [each for each in last.values() if each.type != "DELETED"]

    def wait_for(self, collection: str, version: int) -> None:
        """Wait until everything is known that happened to the collection until this version."""
        until(lambda: self._reached[collection] >= version)

    def _see(self, collection: str, kind: str, found: Object) -> None:
        found["metadata"].pop("managedFields", None)
        event = Event(int(found["metadata"]["resourceVersion"]), kind, collection, found)
        with self._lock:
            self._events.setdefault(event.name, []).append(event)
            self._reached[collection] = event.version
