"""Read the results of the runs that a stage reads: with patience, many at once, and with a helpful error."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

from torchx_kfp.errors import CorruptResultError, TrackerError
from torchx_kfp.text import listed
from torchx_kfp.tracking.results import Result
from torchx_kfp.tracking.tracker import FsspecResultTracker

#: Seconds between two attempts to read: the first wait, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0


class Batch:
    """The results of several runs, fetched many at once ahead of a program that reads them one after the other.

    Each result is returned once, and nothing is fetched before the first one is requested. A batch in a forked process,
    or one that was unpickled, is empty, because the threads do not exist there.
    """

    def __init__(self, tracker: FsspecResultTracker, run_ids: Iterable[str]) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ahead: dict[str, dict[str, Result]] = {}

        def read(run_id: str) -> tuple[str, dict[str, Result] | None]:
            try:
                return run_id, tracker.get(run_id)
            except TrackerError:  # the program gets the error when it reads this run
                return run_id, None

        self._rest = tracker.store.each(read, dict.fromkeys(run_ids))

    def take(self, run_id: str) -> dict[str, Result] | None:
        """Return the run's results, or None if they have been taken already or could not be fetched here."""
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


def wait_for_results(tracker: FsspecResultTracker, run_id: str, timeout: float) -> dict[str, Result]:
    """Wait until a run has results, and return them; return ``{}`` after the timeout.

    Raises:
        CorruptResultError: the stored results are not a JSON object, even after the timeout.
        TrackerError: the store failed.
    """
    deadline = time.monotonic() + timeout
    wait = _FIRST_WAIT
    while True:
        try:
            found = tracker.get(run_id)
        except CorruptResultError:  # writers other than this tracker may show half-written files
            if time.monotonic() >= deadline:
                raise
            found = {}
        left = deadline - time.monotonic()
        if found or left <= 0:
            return found
        time.sleep(min(wait, left))
        wait = min(wait * 1.5, _LONGEST_WAIT)


def describe_missing(tracker: FsspecResultTracker, run_id: str, timeout: float) -> str:
    """Return a message for a run without results, which says which runs have results, and what to do."""
    waited = f" after {timeout:g} s" if timeout > 0 else ""
    return (
        f"The run {run_id!r} has recorded no results{waited} under the tracker base {tracker.tracker_base!r}. "
        f"{_recorded_nearby(tracker, run_id)} Does that stage record any (current_run().put(...))? If they were "
        "removed (torchx-kfp gc), run that stage again: a local run does so by itself, also with --resume. On a "
        "cluster, run the pipeline without KFP's cache. If the store is slow to show them, wait: results(timeout=60)."
    )


def _recorded_nearby(tracker: FsspecResultTracker, run_id: str) -> str:
    """Name runs that have results: of the same stage, otherwise of the same pipeline run, otherwise any."""
    folder = run_id
    try:
        while (above := folder.rpartition("/")[0]) and not above.endswith("/"):
            folder = above
            there = tracker.keys(folder)
            if there:
                return f"These runs under {folder!r} have results: {listed(map(repr, there))}."
        names = tracker.names()
    except TrackerError as error:
        return f"The runs that have results cannot be listed: {error}"
    if not names:
        return "There are no results at all."
    none = f"No run under {folder!r} has results. " if folder != run_id else ""
    return f"{none}The tracker base holds {listed(map(repr, names))}."
