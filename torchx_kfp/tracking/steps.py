"""Metrics over the steps of a training: one curve of bounded size for each name.

Each process of a run has one entry. For each name, it keeps up to ``MAX_POINTS`` points: every value at first, then
every second one, every fourth one, and so on. The count and the last, smallest and largest values are exact.

Values are buffered. ``log`` writes the entry of the process if the last write was some seconds ago: five at first,
later up to thirty. ``flush`` and Python's exit write the rest. A process that is killed loses its buffer.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from torchx_kfp.common.text import shown
from torchx_kfp.errors import RefusedError
from torchx_kfp.tracking.curves import GrowingCurve, Point, encode_curves
from torchx_kfp.tracking.entries import add_entry, warn_once
from torchx_kfp.tracking.results import check_results, join_named, scalar
from torchx_kfp.tracking.store import Store, new_entry_name

_logger = logging.getLogger(__name__)

#: The most points of one name in a process, and of all names together: about 2 MB.
MAX_POINTS, _ALL_POINTS = 1000, 50_000
#: The most names that a process may use.
MAX_NAMES = 500
#: The bits of the largest step, as in MLflow.
_STEP_BITS = 63
#: The bounds of the seconds between two writes, and the share of the time since the first value that they are within
#: these bounds. They are also at least a multiple of the duration of a write, so that a slow store hardly slows down a
#: training.
_MIN_PAUSE, _MAX_PAUSE, _PAUSE_SHARE, _WRITES_PER_PAUSE = 5.0, 30.0, 1 / 20, 20
#: The most values in the buffer.
_MAX_WAITING = 100_000
#: Seconds for which the end of the process waits for a write of another thread.
_LAST_WAIT = 120.0


def check_step(
    run_id: str, step: int, metrics: Sequence[Mapping[str, float]], named: Mapping[str, float]
) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics as plain numbers.

    Raises:
        RefusedError: the step is not an int, or a metric has no name or is not a number.
    """
    number = step if isinstance(step, int) else scalar(step)
    if isinstance(number, bool) or not isinstance(number, int) or number.bit_length() > _STEP_BITS:
        raise RefusedError(
            f"A step is an int, such as the number of a batch or an epoch. Got {type(step).__name__}: {shown(step)}. "
            "Give it first: run.log(step, loss=0.3)."
        )
    checked: dict[str, float] = {}
    for name, value in check_results(run_id, join_named(run_id, metrics, named)).items():
        try:
            if isinstance(value, str):
                raise OverflowError
            checked[name] = float(value)
        except OverflowError:
            raise RefusedError(
                f"The metric {shown(name)} at the step {number} of the execution {run_id!r} is {shown(value)}. "
                "Metrics are numbers that a float can have; put(...) and add_metadata(...) take text."
            ) from None
    return number, checked


#: Copies new points elsewhere.
Copies = Callable[[Mapping[str, Sequence[Point]]], None]


class StepLog:
    """The metrics that one process logs for one run.

    Threads and signal handlers can log concurrently: each appends to the buffer, and one of them writes.
    """

    def __init__(self, store: Store, run_id: str, copies: Copies | None) -> None:
        self._store = store
        self._run_id = run_id
        self._copies = copies
        self._name = new_entry_name()
        self._names: set[str] = set()
        self._waiting: deque[tuple[int, float, dict[str, float]]] = deque()
        self._curves: dict[str, GrowingCurve] = {}
        self._unsaved = False
        self._lock = threading.RLock()  # for one write at a time
        self._is_writing = False
        self._first = self._due = time.monotonic()

    def log(self, step: int, metrics: Sequence[Mapping[str, float]], named: Mapping[str, float]) -> None:
        """Log metrics of a step; see ``Run.log``."""
        checked = check_step(self._run_id, step, metrics, named)
        if new := [name for name in checked[1] if name not in self._names]:
            if len(self._names) + len(new) > MAX_NAMES:
                raise RefusedError(
                    f"The execution {self._run_id!r} logs under more than {MAX_NAMES} names; the next one is "
                    f"{shown(new[0])}. Leave numbers that count steps out of names: run.log(7, loss=0.3), not "
                    'run.log(7, {"loss/7": 0.3}).'
                )
            self._names.update(new)
        self._waiting.append((checked[0], time.time(), checked[1]))
        if time.monotonic() >= self._due or len(self._waiting) >= _MAX_WAITING:
            self.flush(0)

    def flush(self, timeout: float = _LAST_WAIT) -> bool:
        """Write the buffer after any other thread's write; return whether everything is stored."""
        if self._waiting or self._unsaved:
            if not self._lock.acquire(timeout=timeout):
                return False
            if self._is_writing:  # a signal handler has interrupted the write
                self._lock.release()
                return False
            try:
                self._is_writing = True
                new = self._write()
            finally:
                self._is_writing = False
                self._lock.release()
            if self._copies and new:
                self._copies({name: it.curve().points for name, it in new.items()})
        return not self._unsaved

    def _write(self) -> dict[str, GrowingCurve]:
        """Write the entry, and return its new points."""
        began = time.monotonic()
        new: dict[str, GrowingCurve] = {}
        while self._waiting:
            step, when, metrics = self._waiting.popleft()
            self._unsaved = True
            for name, value in metrics.items():
                point = Point(step, value, when)
                limit = min(MAX_POINTS, _ALL_POINTS // max(1, len(self._curves)))
                self._curves.setdefault(name, GrowingCurve()).add(point, limit)
                if self._copies:
                    new.setdefault(name, GrowingCurve()).add(point, MAX_POINTS)
        try:
            curves = {name: it.curve() for name, it in self._curves.items()}
            add_entry(self._store, self._run_id, {"steps": encode_curves(curves)}, self._name)
            self._unsaved = False
        except Exception as error:  # the training continues; the next write includes everything
            text = f"The metrics of the execution {self._run_id!r} are not stored yet"
            kind = type(error).__qualname__
            warn_once(
                f"{text}. The next write will try again. Further errors of this kind are not shown. {kind}: {error}",
                text + kind,
            )
        now = time.monotonic()
        self._due = now + max(
            _MIN_PAUSE, min(_MAX_PAUSE, (now - self._first) * _PAUSE_SHARE), (now - began) * _WRITES_PER_PAUSE
        )
        return new


#: The logs by process, tracker base and execution id. A forked process starts without any.
_logs: dict[tuple[int, str, str], StepLog] = {}


def step_log(store: Store, run_id: str, copies: Copies | None) -> StepLog:
    """Return the step log of this process for a run."""
    key = (os.getpid(), store.base, run_id)
    if key not in _logs:
        _logs.setdefault(key, StepLog(store, run_id, copies))
    return _logs[key]


def flush(store: Store, run_id: str) -> None:
    """Write the metrics that this process has logged for a run."""
    found = _logs.get((os.getpid(), store.base, run_id))
    if found is not None:
        found.flush()


def _flush_all() -> None:
    for (pid, base, run_id), log in list(_logs.items()):
        if pid == os.getpid() and not log.flush():
            _logger.warning(
                "The last metrics of the execution %r are not stored under the tracker base %r.", run_id, base
            )


# The first hook runs while threads can still start, as HTTP clients need to resolve names, and also in processes of
# multiprocessing. It belongs to concurrent.futures and does not have a public name. The second hook writes values that
# other atexit functions log.
getattr(threading, "_register_atexit", atexit.register)(_flush_all)
atexit.register(_flush_all)
