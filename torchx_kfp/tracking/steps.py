"""Metrics over the steps of a training: one curve for each name, which stays small however long the training is.

Each process of a run has one entry. For each name, it keeps up to ``MAX_POINTS`` points: every value at first, then
every second one, every fourth one, and so on. The number of values, the last one, the smallest and the largest are
exact.

Logging appends to a queue, without a request for each step. A thread takes from the queue and replaces the entry of the
process: after two seconds, then every five, and later less often, down to once a minute. A process that is killed
loses the metrics since the last write. A process that ends, or is asked to end with SIGTERM, writes the rest first.
"""

from __future__ import annotations

import atexit
import logging
import numbers
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from torchx_kfp.common.text import shown
from torchx_kfp.errors import ResultRefusedError
from torchx_kfp.tracking.curves import GrowingCurve, Point, encode_curves
from torchx_kfp.tracking.entries import add_entry
from torchx_kfp.tracking.results import check_results, scalar
from torchx_kfp.tracking.store import Store, new_entry_name

_logger = logging.getLogger(__name__)

#: The points that a process keeps for one name. With many names, it keeps fewer for each, and ``_ALL_POINTS`` in total:
#: about 2 MB.
MAX_POINTS, _ALL_POINTS = 1000, 50_000
#: The number of names that a process may use.
MAX_NAMES = 500
#: The bits of a step, as in MLflow.
_STEP_BITS = 63
#: Seconds before the first write, and the least and the most between two writes. Within these bounds, the pause is a
#: fraction of the time since the start, or a multiple of the time that a write takes.
_FIRST, _LEAST, _MOST, _PART, _TIMES = 2.0, 5.0, 60.0, 1 / 20, 20
#: How many values may wait before the thread is woken, and before a process that logs faster must wait for the thread.
_MANY, _TOO_MANY = 10_000, 200_000
#: Seconds for which a process that ends waits for the last write. A store that fails is tried for a minute.
_LAST = 120.0
#: Seconds by which SIGTERM is delayed. Engines kill some seconds after it.
_SIGTERM = 5.0


def points_for_each(names: int) -> int:
    """Return the number of points that a process may keep for each of this number of names."""
    return min(MAX_POINTS, _ALL_POINTS // max(1, names))


def check_step(run_id: str, step: int, metrics: Mapping[str, float]) -> tuple[int, dict[str, float]]:
    """Return the step and the metrics as plain numbers.

    Raises:
        ResultRefusedError: the step is not an int, or a metric is not a number.
    """
    found = step if isinstance(step, int) else int(step) if isinstance(step, numbers.Integral) else scalar(step)
    if isinstance(found, bool) or not isinstance(found, int) or found.bit_length() > _STEP_BITS:
        raise ResultRefusedError(
            f"A step is an int, such as the number of a batch or an epoch. Got {type(step).__name__}: {shown(step)}. "
            "Give it first: run.log(step, loss=0.3)."
        )
    checked: dict[str, float] = {}
    for name, value in check_results(run_id, metrics).items():
        if isinstance(value, str):
            raise ResultRefusedError(
                f"The metric {shown(name)} at the step {found} of the run {run_id!r} is text: {shown(value)}. Metrics "
                "are numbers; put(...) and add_metadata(...) take text."
            )
        try:
            checked[name] = float(value)
        except OverflowError:
            raise ResultRefusedError(
                f"The metric {shown(name)} at the step {found} of the run {run_id!r} is too large for a float: "
                f"{shown(value)}."
            ) from None
    return found, checked


#: Passes new points on to a mirror.
Forward = Callable[[Mapping[str, Sequence[Point]]], None]


class StepLog:
    """The metrics that one process logs for one run. Only its thread touches the curves: no lock can be left held."""

    def __init__(self, store: Store, run_id: str, mirrors: Sequence[Forward]) -> None:
        self._store = store
        self._run_id = run_id
        self._mirrors = mirrors
        self._name = new_entry_name()
        self._names: set[str] = set()
        self._waiting: deque[tuple[int, float, dict[str, float]]] = deque()
        # It is a SimpleQueue because a signal handler may interrupt the code that holds the lock of an Event.
        self._asked: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._curves: dict[str, GrowingCurve] = {}
        self._new: dict[str, GrowingCurve] = {}  # for mirrors, which get each value once
        self._unsaved = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="torchx-kfp-steps", daemon=True)

    def start(self) -> None:
        """Start the thread. If Python does not start threads any more, as at its end, ``flush`` works without it."""
        try:
            self._thread.start()
        except RuntimeError as error:
            _logger.debug("Steps are written without a thread: %s", error)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step; see ``Run.log``."""
        checked = check_step(self._run_id, step, metrics)
        if not self._names.issuperset(checked[1]):
            names = self._names | checked[1].keys()
            if len(names) > MAX_NAMES:
                raise ResultRefusedError(
                    f"The run {self._run_id!r} logs under more than {MAX_NAMES} names; the next one is "
                    f"{shown(next(name for name in checked[1] if name not in self._names))}. Leave numbers that count "
                    'steps out of names: run.log(7, loss=0.3), not run.log(7, {"loss/7": 0.3}).'
                )
            self._names = names
        self._waiting.append((checked[0], time.time(), checked[1]))
        waiting = len(self._waiting)
        if waiting >= _TOO_MANY:
            self.flush()
        elif waiting % _MANY == 0:
            self._asked.put(None)

    def flush(self, timeout: float = _LAST) -> bool:
        """Write everything that was logged, and return whether that succeeded in time."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            done = threading.Event()
            self._asked.put(done)
            done.wait(timeout)
        else:
            self._take()
            self._write()
        return not (self._unsaved or self._waiting)

    def _work(self) -> None:
        # The clients of some stores work in one thread only.
        self._store = self._store.for_this_thread()
        start = time.monotonic()
        due = start + _FIRST
        while True:
            try:
                done = self._asked.get(timeout=max(0.0, due - time.monotonic()))
                asked = done is not None
            except queue.Empty:
                done, asked = None, True
            self._take()
            if asked:
                began = time.monotonic()
                self._write()
                now = time.monotonic()
                due = now + max(min(_MOST, max(_LEAST, (now - start) * _PART)), (now - began) * _TIMES)
            if done is not None:
                done.set()

    def _take(self) -> None:
        while self._waiting:
            step, when, metrics = self._waiting.popleft()
            self._unsaved = True
            for name, value in metrics.items():
                point = Point(step, value, when)
                self._curves.setdefault(name, GrowingCurve()).add(point, points_for_each(len(self._curves)))
                if self._mirrors:
                    self._new.setdefault(name, GrowingCurve()).add(point, MAX_POINTS)

    def _write(self) -> None:
        new, self._new = self._new, {}
        if self._unsaved:
            try:
                curves = {name: it.curve() for name, it in self._curves.items()}
                add_entry(self._store, self._run_id, {"steps": encode_curves(curves)}, self._name)
                self._unsaved = False
            except Exception as error:  # the training goes on, and the next write includes everything
                self._warn(error)
        if new:
            for forward in self._mirrors:
                forward({name: it.curve().points for name, it in new.items()})

    def _warn(self, error: Exception) -> None:
        kind = type(error).__qualname__
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning(
                "The metrics of the run %r are not stored yet. The next write will try again. Further errors of this "
                "kind are not shown. %s: %s",
                self._run_id,
                kind,
                error,
            )


#: By process, tracker base and run id. A forked process does not have any yet.
_logs: dict[tuple[int, str, str], StepLog] = {}


def step_log(store: Store, run_id: str, mirrors: Sequence[Forward]) -> StepLog:
    """Return the step log of this process for a run."""
    key = (os.getpid(), store.base, run_id)
    if key not in _logs:
        made = StepLog(store, run_id, mirrors)
        if _logs.setdefault(key, made) is made:
            made.start()
            _flush_at_sigterm()
    return _logs[key]


def flush(store: Store, run_id: str) -> None:
    """Write the metrics that this process has logged for a run."""
    found = _logs.get((os.getpid(), store.base, run_id))
    if found is not None:
        found.flush()


def _flush_all(timeout: float = _LAST) -> None:
    deadline = time.monotonic() + timeout
    for (pid, base, run_id), log in list(_logs.items()):
        if pid == os.getpid() and not log.flush(max(0.0, deadline - time.monotonic())):
            _logger.warning("The last metrics of the run %r are not stored under the tracker base %r.", run_id, base)


def _flush_at_sigterm() -> None:
    """Write before the process dies of SIGTERM, unless the application handles the signal itself."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def end(number: int, frame: object) -> None:
        _flush_all(_SIGTERM)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


# The first is called while threads still run, which HTTP clients need, and also in processes of multiprocessing, where
# the second is not called. It belongs to Python's concurrent.futures and does not have a public name.
getattr(threading, "_register_atexit", atexit.register)(_flush_all)
atexit.register(_flush_all)
