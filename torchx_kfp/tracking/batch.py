"""Results of several runs that a program reads one after the other: fetched many at once, ahead of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from torchx_kfp.errors import KeyRefusedError
from torchx_kfp.tracking.keys import key_text
from torchx_kfp.tracking.results import FsspecResultTracker
from torchx_kfp.tracking.values import Result


class Batch:
    """The results of these runs, each given once; nothing is fetched before the first is asked for."""

    def __init__(self, tracker: FsspecResultTracker, run_ids: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._ahead: dict[str, dict[str, Result]] = {}
        # What is no key or no result is left to the one that reads it, and gets the error.
        self._rest = tracker.get_each(filter(_is_key, dict.fromkeys(run_ids)), corrupt=lambda error: None)

    def take(self, run_id: str) -> dict[str, Result] | None:
        """The run's results; None where they have been taken already, or could not be fetched here."""
        with self._lock:
            while run_id not in self._ahead:
                try:
                    key, results = next(self._rest)
                except StopIteration:
                    return None
                self._ahead[key] = results
            return self._ahead.pop(run_id)


def _is_key(run_id: str) -> bool:
    try:
        return key_text(run_id) == run_id
    except KeyRefusedError:
        return False
