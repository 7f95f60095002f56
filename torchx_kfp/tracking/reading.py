"""Results of several runs that a program reads one after the other: fetched many at once, ahead of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.tracker import FsspecResultTracker
from torchx_kfp.tracking.values import Result


class Batch:
    """The results of these runs, each given once; nothing is fetched before the first is asked for.

    Another process, forked or unpickled, has none of it: its threads are not there.
    """

    def __init__(self, tracker: FsspecResultTracker, run_ids: Iterable[str]) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ahead: dict[str, dict[str, Result]] = {}

        def read(run_id: str) -> tuple[str, dict[str, Result] | None]:
            try:
                return run_id, tracker.get(run_id)
            except TrackerError:  # left to the one that reads it, and gets the error
                return run_id, None

        self._rest = tracker.store.each(read, dict.fromkeys(run_ids))

    def take(self, run_id: str) -> dict[str, Result] | None:
        """The run's results; None where they have been taken already, or could not be fetched here."""
        if self._pid != os.getpid():
            return None
        with self._lock:
            while run_id not in self._ahead:
                try:
                    found, results = next(self._rest)
                except StopIteration:
                    return None
                if results is not None:
                    self._ahead[found] = results
                elif found == run_id:
                    return None
            return self._ahead.pop(run_id)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # None takes its place in a pickle
