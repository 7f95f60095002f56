"""Copy the records of a run to mirrors: further trackers of ``torchx.tracker``, such as MLflow's.

The authoritative records are those under the tracker base. The first process of a stage loads its mirrors when it
starts, so that one that cannot be loaded is an error before the work. If a mirror fails later, the stage continues: a
warning is logged. TorchX is loaded only if there are mirrors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchx_kfp.contract.protocol import StageContext
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.artifacts import absolute

if TYPE_CHECKING:
    from torchx_kfp.tracking.curves import Point

#: After a failure, a tracker is not called for this many times as long as the failure took. So a server that is gone
#: takes a tenth of the time, however often a stage records.
_PAUSE = 9
#: Parameters of ``add_metadata``. Results with these names would be mistaken for them.
_PARAMETERS = ("self", "run_id")

_log = logging.getLogger("torchx_kfp")


class MirrorTracker:
    """A tracker that gets copies of what this process records.

    Args:
        name: the name of an entry point ``torchx.tracker``, or ``module:function``.
        config: the configuration that TorchX passes to the tracker's factory.
        run_id: the run that records.
        sources: the runs that it reads.

    Raises:
        TrackerError: the tracker cannot be loaded here.
    """

    def __init__(self, name: str, config: str | None, run_id: str, sources: tuple[str, ...]) -> None:
        self._name = name
        self._run_id = run_id
        self._sources = list(sources)
        self._seen: set[str] = set()
        self._paused_until = 0.0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # another thread may hold it
        self._tracker = _load(name, config)

    def add_metadata(self, metadata: Mapping[str, object]) -> None:
        """Copy results by name."""
        if metadata:
            self._call(lambda tracker: self._add_metadata(tracker, metadata))

    def add_parameters(self, parameters: Mapping[str, object]) -> None:
        """Copy metadata by name, as parameters if the tracker has them, such as the one for MLflow."""

        def add(tracker: Any) -> None:
            if hasattr(tracker, "add_parameters"):
                tracker.add_parameters(self._run_id, parameters)
            else:
                self._add_metadata(tracker, parameters)

        if parameters:
            self._call(add)

    def log_steps(self, points: Mapping[str, Sequence[Point]]) -> None:
        """Copy metrics of steps by name if the tracker accepts them. TorchX's interface does not have them."""
        self._call(lambda tracker: tracker.log_steps(self._run_id, points) if hasattr(tracker, "log_steps") else None)

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object]) -> None:
        """Copy an artifact."""
        self._call(lambda tracker: tracker.add_artifact(self._run_id, name, absolute(path), metadata or None))

    def _add_metadata(self, tracker: Any, metadata: Mapping[str, object]) -> None:
        # One name that is a parameter of add_metadata would be a TypeError for all of them.
        named = {f"{name}_" if name in _PARAMETERS else name: value for name, value in metadata.items()}
        tracker.add_metadata(self._run_id, **named)

    def _call(self, call: Callable[[Any], None]) -> None:
        with self._lock:
            started = time.monotonic()
            if started < self._paused_until:
                return
            try:
                for source in tuple(self._sources):
                    with contextlib.suppress(NotImplementedError):  # such as TorchX's own tracker for MLflow
                        self._tracker.add_source(self._run_id, source)
                    self._sources.remove(source)
                call(self._tracker)
            except Exception as error:  # whatever a tracker raises, the results are stored already
                ended = time.monotonic()
                self._paused_until = ended + _PAUSE * (ended - started)
                self._warn(error)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _warn(self, error: Exception) -> None:
        kind = type(error).__qualname__
        if kind not in self._seen:
            self._seen.add(kind)
            _log.warning(
                "The tracker %r failed, and lacks records of the run %r; the results under the tracker base are "
                "complete. Further errors of this kind are not shown. %s: %s",
                self._name,
                self._run_id,
                kind,
                error,
            )


def mirror_trackers(context: StageContext) -> tuple[MirrorTracker, ...]:
    """Return the stage's mirrors. They are the same objects each time in a process.

    Raises:
        TrackerError: a tracker cannot be loaded here.
    """
    sources = [ids if isinstance(ids, tuple) else (ids,) for ids in context.parents.values()]
    unique = tuple(dict.fromkeys(run_id for ids in sources for run_id in ids if run_id))
    return tuple(_mirror(name, config, context.run_id, unique) for name, config in context.trackers.items())


_mirror = lru_cache(maxsize=None)(MirrorTracker)


def _load(name: str, config: str | None) -> Any:
    try:
        from torchx.tracker.api import build_trackers

        found = list(build_trackers({name: config}))
        why = "" if found else "TorchX finds no entry point 'torchx.tracker' and no 'module:function' of this name"
    except Exception as error:  # whatever a factory raises
        why = f"{type(error).__name__}: {error}"
    if why:
        raise TrackerError(
            f"The stage's tracker {name!r} cannot be loaded here ({why}). Install in the image what it needs, which "
            "includes TorchX, or leave the tracker out (trackers= of the stage)."
        )
    return found[0]
