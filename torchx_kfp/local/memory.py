"""What need not run again: stages that this run has finished before it was resumed, and KFP's cache between runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from torchx_kfp.errors import TrackerError
from torchx_kfp.local.cache import Cache
from torchx_kfp.local.result import StageResult, State
from torchx_kfp.tracking import FsspecResultTracker


class Memory:
    """Finished stages by their keys (see ``keys``).

    Args:
        run_id: of the run that asks.
        finished: how its stages ended before it was resumed, by their names.
        cache: of all runs; None where it shall be left alone.
    """

    def __init__(self, run_id: str, finished: Mapping[str, StageResult], cache: Cache | None) -> None:
        self._run_id = run_id
        self.finished = finished
        self._cache = cache

    def recall(self, name: str, task: str, key: str, *, caches: bool) -> StageResult | None:
        """How the stage of this name ended with this key; from another run only if it ``caches``."""
        own = self.finished.get(name)
        if own is not None and own.state.is_success and own.key == key:
            return own
        if self._cache is None or not caches:
            return None
        found = self._cache.get(key)
        # Two stages of one run that are alike are two, whichever ends first.
        if found is None or found.cached_from == self._run_id or not _has_results(found):
            return None
        return dataclasses.replace(
            found, name=name, task=task, state=State.CACHED, duration=0.0, attempts=0, started_at=time.time()
        )

    def keep(self, result: StageResult) -> None:
        """Keeps a stage that has succeeded for other runs."""
        if self._cache is not None and result.state is State.SUCCEEDED and result.key:
            self._cache.put(result.key, self._run_id, result)


def _has_results(result: StageResult) -> bool:
    """Whether what the stage has recorded is still there; storage elsewhere is not asked, as KFP does not ask."""
    base = result.tracker_base
    if not result.results or result.run_id is None or base is None or "://" in base:
        return True
    try:
        return bool(FsspecResultTracker(base).get(result.run_id))
    except TrackerError:
        return False
