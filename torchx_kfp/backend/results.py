"""Results of stages that ran on KFP, read from here: often possible, never worth a long wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torchx_kfp.backend.executions import Sought, find_run_ids
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.runs.bases import missing, why_not_read
from torchx_kfp.text import printable, shorten
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
from torchx_kfp.tracking.tracker import FsspecResultTracker


class ResultReader:
    """Reads the results of stages from tracker bases. A base that cannot be read is a sentence in ``problems``."""

    def __init__(
        self,
        named: Collection[str] = (),
        *,
        patience: float = SHORT_PATIENCE,
        deadline: float = 10.0,
        again: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set limits, in seconds.

        Args:
            named: the tracker bases that the user has named.
            patience: how long a store is asked again after errors.
            deadline: how long a caller waits, whatever the store does.
            again: how long a base that could not be read is left alone.
            clock: the time.
        """
        self._named = named
        self._patience, self._deadline, self._again, self._clock = patience, deadline, again, clock
        self._problems: dict[str, str] = {}
        self._failed_at: dict[str, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about the bases that could not be read, and why."""
        return tuple(self._problems.values())

    def read(self, base: str, sought: Collection[Sought]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return the run id of each execution under the base that can be read now, by its name, and its results."""
        if not sought or self._clock() - self._failed_at.get(base, -self._again) < self._again:
            return {}
        if problem := why_not_read(base, self._named):
            return self._fail(base, problem)
        found: list[Mapping[str, tuple[str, Mapping[str, Any]]]] = []
        problems: list[str] = []

        def read() -> None:
            try:
                tracker = FsspecResultTracker(base, patience=self._patience)
                found.append(self._read(tracker, find_run_ids(tracker.store, sought), problems))
            except TorchxKfpError as error:
                problems.append(str(error))
            except Exception as error:  # of a driver of fsspec, or a library below it
                problems.append(f"{type(error).__name__}: {error}")

        # A library that hangs cannot be interrupted, only left behind.
        thread = threading.Thread(target=read, name="torchx-kfp-results", daemon=True)
        thread.start()
        thread.join(self._deadline)
        if thread.is_alive():
            return self._fail(base, f"it has not answered within {self._deadline:g} s")
        if problems:
            self._fail(base, shorten(printable(problems[0]), 400).rstrip("."))
        elif found:
            self._problems.pop(base, None)
        return found[0] if found else {}

    def _read(
        self, tracker: FsspecResultTracker, run_ids: Mapping[str, str], problems: list[str]
    ) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Read the results of run ids; what is wrong with a file is added to the problems."""
        results = tracker.get_many(run_ids.values(), corrupt=lambda error: problems.append(str(error)))
        return {name: (run_id, results[run_id]) for name, run_id in run_ids.items() if run_id in results}

    def _fail(self, base: str, why: str) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        self._failed_at[base] = self._clock()
        self._problems[base] = missing(base, why)
        return {}


class NoResults(ResultReader):
    """Reads no results, for those who do not show any."""

    def read(self, base: str, sought: Collection[Sought]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return nothing."""
        del base, sought
        return {}


class RunIdReader(ResultReader):
    """Finds run ids, for those who read the results themselves."""

    def _read(
        self, tracker: FsspecResultTracker, run_ids: Mapping[str, str], problems: list[str]
    ) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        del tracker, problems
        return {name: (run_id, {}) for name, run_id in run_ids.items()}
