"""Copy the records of a run to mirrors: further trackers of ``torchx.tracker``, such as MLflow's.

The authoritative records are those under the tracker base. If a mirror fails, the stage continues: a warning is logged.
A tracker that cannot be loaded is an error before the training starts. TorchX is loaded on first use, and only if there
are mirrors.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.extras import install_line, is_installed
from torchx_kfp.contract.protocol import StageContext
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.artifacts import absolute

if TYPE_CHECKING:
    from torchx_kfp.tracking.curves import Point

_GROUP = "torchx.tracker"
#: For modules of this project that are trackers: the module that they need besides TorchX, and the extra that installs
#: it.
_NEEDED = {"torchx_kfp.tracking.backends.mlflow": ("mlflow", "mlflow")}
#: After a failure, a tracker is not called for this many times as long as the failure took. So a server that is gone
#: takes a tenth of the time, however often a stage records.
_PAUSE = 9
#: Parameters of ``add_metadata``. Results with these names would be mistaken for them.
_PARAMETERS = ("self", "run_id")

_log = logging.getLogger("torchx_kfp")


class MirrorTracker:
    """A tracker that gets copies of what this process records. It is created on first use.

    Args:
        name: the name of an entry point ``torchx.tracker``, or ``module:function``.
        config: the configuration that TorchX passes to the tracker's factory.
        run_id: the run that records.
        sources: the runs that it reads.
    """

    def __init__(self, name: str, config: str | None, run_id: str, sources: tuple[str, ...]) -> None:
        self._name = name
        self._config = config
        self._run_id = run_id
        self._sources = sources
        self._made: Any = None
        self._seen: set[str] = set()
        self._paused_until = 0.0
        self._lock = threading.Lock()
        self._pid = os.getpid()

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
        if self._pid != os.getpid():  # another thread may have held it when this process was forked
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            started = time.monotonic()
            if started < self._paused_until:
                return
            try:
                if self._made is None:
                    self._made = self._make()
                    started = time.monotonic()  # do not count the time for loading, which takes long
                call(self._made)
            except Exception as error:  # whatever a tracker raises, the results are stored already
                ended = time.monotonic()
                self._paused_until = ended + _PAUSE * (ended - started)
                self._warn(error)

    def _make(self) -> Any:
        from torchx.tracker.api import build_trackers

        made = list(build_trackers({self._name: self._config}))
        if not made:
            raise TrackerError(f"TorchX does not find a factory named {self._name!r}")
        for source in self._sources:
            try:
                made[0].add_source(self._run_id, source)
            except NotImplementedError:  # such as TorchX's own tracker for MLflow
                break
        return made[0]

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
    if not context.trackers:
        return ()
    for name in context.trackers:
        check_tracker(name)
    sources = [ids if isinstance(ids, tuple) else (ids,) for ids in context.parents.values()]
    unique = tuple(dict.fromkeys(run_id for ids in sources for run_id in ids if run_id))
    return tuple(_tracker(name, config, context.run_id, unique) for name, config in context.trackers.items())


_tracker = lru_cache(maxsize=None)(MirrorTracker)


def check_tracker(name: str) -> None:
    """Reject a tracker that cannot be loaded, without loading it, which may take seconds.

    Raises:
        TrackerError: TorchX, the tracker, or a package that it needs is missing.
    """
    from importlib.metadata import entry_points  # slow to load, and most stages do not need it

    if not is_installed("torchx"):
        raise TrackerError(
            f"The stage has the further tracker {name!r}, but TorchX is not installed here. Install torchx in the "
            "image, or leave the tracker out (trackers= of the stage)."
        )
    found = [point for point in entry_points(group=_GROUP) if point.name == name]
    if (
        not found
        and (":" not in name or not is_installed(name.partition(":")[0]))
        and not is_installed("torchx_plugins")
    ):
        known = ", ".join(sorted({repr(point.name) for point in entry_points(group=_GROUP)})) or "none"
        raise TrackerError(
            f"The stage has the further tracker {name!r}, but there is no such entry point {_GROUP!r} here, nor a "
            f"function of the form 'module:function' in a module that is installed. Entry points are: {known}. Install "
            "the package that has it in the image, or leave the tracker out (trackers= of the stage)."
        )
    for point in found:
        module = point.value.partition(":")[0].strip()
        needed, extra = _NEEDED.get(module, (module, ""))
        if not is_installed(needed):
            install = install_line(extra) if extra else f"the package that has {module!r}"
            raise TrackerError(
                f"The stage has the further tracker {name!r}, which needs the module {needed.partition('.')[0]!r}, but "
                f"it is not installed here. Install it in the image: {install}."
            )
