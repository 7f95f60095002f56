"""Writes what a process logs while its training goes on: behind its back, and never a request for each step.

Logging appends to a queue. A thread of its own takes from there and writes the process's entry anew: after two seconds,
then every five, and later ever more seldom, up to once a minute. So a process that is killed loses what it has logged
since. One that ends, or is asked to end with SIGTERM, writes the rest first.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torchx_kfp.errors import ResultRefusedError
from torchx_kfp.text import shown
from torchx_kfp.tracking.forwarding import FurtherTracker
from torchx_kfp.tracking.statements.entries import STEPS, add_entry, time_name
from torchx_kfp.tracking.steps import MAX_NAMES, MAX_POINTS, Point, Series, check_step, encode_series, points_for_each
from torchx_kfp.tracking.stores.store import Store

#: Seconds before the first write; between two at least and at most; the part of the time since the first value, and how
#: many times as long as a write takes, between these.
_FIRST, _LEAST, _MOST, _PART, _TIMES = 2.0, 5.0, 60.0, 1 / 20, 20
#: Values that wait for the thread before it is woken, and before a process that logs faster has to wait for it.
_MANY, _TOO_MANY = 10_000, 200_000
#: Seconds for which an ending process waits for the last write: a store that fails is tried for a minute.
_LAST = 120.0
#: Seconds for which SIGTERM is put off: engines kill some seconds after it.
_SIGTERM = 5.0

_logger = logging.getLogger(__name__)


class StepLog:
    """What one process logs of one run. Only its thread touches what is kept: no lock can be left held."""

    def __init__(self, store: Store, run_id: str, further: Sequence[FurtherTracker]) -> None:
        self._store = store
        self._run_id = run_id
        self._further = further
        self._name = time_name()
        self._names: set[str] = set()
        self._waiting: deque[tuple[int, float, dict[str, float]]] = deque()
        # Of a plain queue: an Event's own lock may be held by what a signal has interrupted.
        self._asked: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._series: dict[str, Series] = {}
        self._new: dict[str, Series] = {}  # for further trackers, which get each once
        self._unsaved = False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="torchx-kfp-steps", daemon=True)

    def start(self) -> None:
        """Start the thread; where Python takes no more threads, as at its end, ``flush`` does without."""
        try:
            self._thread.start()
        except RuntimeError as error:
            _logger.debug("Steps are written without a thread: %s", error)

    def log(self, step: object, metrics: Mapping[str, Any]) -> None:
        """Take these in; see ``Run.log``."""
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
        """Write what was logged; False where that failed, or took longer."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            done = threading.Event()
            self._asked.put(done)
            done.wait(timeout)
        else:
            self._take()
            self._write()
        return not (self._unsaved or self._waiting)

    def _work(self) -> None:
        # Clients of some stores are for one thread.
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
                self._series.setdefault(name, Series()).add(point, points_for_each(len(self._series)))
                if self._further:
                    self._new.setdefault(name, Series()).add(point, MAX_POINTS)

    def _write(self) -> None:
        new, self._new = self._new, {}
        if self._unsaved:
            try:
                add_entry(self._store, STEPS, self._run_id, encode_series(self._series), "steps", self._name)
                self._unsaved = False
            except Exception as error:  # the training goes on, and the next write has it all
                self._warn(error)
        if new:
            for tracker in self._further:
                tracker.log_steps({name: series.kept() for name, series in new.items()})

    def _warn(self, error: Exception) -> None:
        kind = type(error).__qualname__
        if kind not in self._said:
            self._said.add(kind)
            _logger.warning(
                "What the run %r has logged is not stored yet; the next write will try again. Further errors of this "
                "kind are not shown. %s: %s",
                self._run_id,
                kind,
                error,
            )


#: Of each process and run; a process that was forked from one has none of its own yet.
_logs: dict[tuple[int, str, str], StepLog] = {}


def step_log(store: Store, run_id: str, further: Sequence[FurtherTracker]) -> StepLog:
    """What this process logs of the run."""
    key = (os.getpid(), store.base, run_id)
    if key not in _logs:
        made = StepLog(store, run_id, further)
        if _logs.setdefault(key, made) is made:
            made.start()
            _flush_at_sigterm()
    return _logs[key]


def flush(store: Store, run_id: str) -> None:
    """Write what this process has logged of the run."""
    found = _logs.get((os.getpid(), store.base, run_id))
    if found is not None:
        found.flush()


def _flush_all(timeout: float = _LAST) -> None:
    deadline = time.monotonic() + timeout
    for (pid, base, run_id), log in list(_logs.items()):
        if pid == os.getpid() and not log.flush(max(0.0, deadline - time.monotonic())):
            _logger.warning("The last of what the run %r has logged is not under the tracker base %r.", run_id, base)


def _flush_at_sigterm() -> None:
    """Write before the process dies of SIGTERM, unless the application itself says what becomes of the signal."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def end(number: int, frame: object) -> None:
        _flush_all(_SIGTERM)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


# The first is called while there still are threads, which HTTP clients need, and in processes of multiprocessing, for
# which the second is not. It is Python's own, for concurrent.futures, and has no public name.
getattr(threading, "_register_atexit", atexit.register)(_flush_all)
atexit.register(_flush_all)
