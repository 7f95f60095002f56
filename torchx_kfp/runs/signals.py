"""Signals that end a run, and SIGCHLD, which reports the ends of its processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torchx_kfp.errors import LocalRunError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call ``handle`` with the number of each SIGINT, SIGTERM and SIGHUP while the block runs.

    A signal that is ignored (a background job's SIGINT, ``nohup``'s SIGHUP) stays ignored. Only a program's main
    thread may set handlers; in another thread, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[signal.Signals, Any] = {}
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda number, frame: handle(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def awaitable_processes() -> Iterator[None]:
    """Let this process learn how its children end, even if it was started with SIGCHLD ignored."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise LocalRunError(
            "This process ignores SIGCHLD, so it cannot learn how stages end. Only the main thread may change that: "
            "call signal.signal(signal.SIGCHLD, signal.SIG_DFL) there."
        )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def raise_for_signal(number: int) -> NoReturn:
    """End the caller as the signal would: raise KeyboardInterrupt, or SystemExit with a shell's exit code."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt from None
    raise SystemExit(128 + number) from None
