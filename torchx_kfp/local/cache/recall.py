"""Stages that need not run again: those that a resumed run has finished before, and those in the cache between runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from torchx_kfp.errors import TrackerError
from torchx_kfp.local.cache.entries import Cache
from torchx_kfp.runs.result import StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.tracking import FsspecResultTracker

# Seconds for which listing recorded results is retried.
_PATIENCE = 5.0


class Memory:
    """Finished stages by their keys (see ``keys``).

    Args:
        run_id: of the run that asks.
        finished: how its stages ended before it was resumed, by their names.
        cache: of all runs; None if it is not used.
    """

    def __init__(self, run_id: str, finished: Mapping[str, StageResult], cache: Cache | None) -> None:
        self._run_id = run_id
        self._finished = finished
        self._cache = cache
        self._recorded: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache, so that keys for it are needed."""
        return self._cache is not None

    def kept(self, name: str, key: str) -> StageResult | None:
        """Return how the stage of this name ended in this run, if it succeeded with these inputs."""
        found = self._finished.get(name)
        if found is None or not found.state.is_success or found.key != key or not self._has_results(found):
            return None
        # Its folder and outputs may have been removed since.
        return found if found.log_file is None or found.log_file.exists() else None

    def cached(self, name: str, task: str, key: str, cache_key: str) -> StageResult | None:
        """Return how a stage with this ``cache_key`` ended in another run, as the result of this stage."""
        found = self._cache.get(cache_key) if self._cache is not None and cache_key else None
        # Equal stages of one run are two stages, whichever ends first.
        if found is None or found.cached_from == self._run_id or not self._has_results(found):
            return None
        return dataclasses.replace(
            found, name=name, task=task, key=key, state=State.CACHED, duration=0.0, attempts=0, started_at=time.time()
        )

    def keep(self, cache_key: str, result: StageResult) -> None:
        """Store a stage that has succeeded for other runs."""
        if self._cache is not None and cache_key and result.state is State.SUCCEEDED:
            self._cache.put(cache_key, self._run_id, result)

    def _has_results(self, result: StageResult) -> bool:
        """Tell whether the results that the stage recorded are still there.

        What its pipeline run has recorded is listed at once and remembered, so that a store is asked once for each
        earlier run and not for each stage. A store that does not answer has nothing.
        """
        base, run_id = result.tracker_base, result.run_id
        if not result.results or run_id is None or base is None:
            return True
        place = base, run_id.partition("/")[0]
        if place not in self._recorded:
            try:
                self._recorded[place] = frozenset(FsspecResultTracker(base, patience=_PATIENCE).keys(place[1]))
            except TrackerError:
                self._recorded[place] = frozenset()
        return run_id in self._recorded[place]
