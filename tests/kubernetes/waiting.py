"""Waiting for what a control plane does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until_it_answers(ask: Callable[[], object], check: Callable[[], None], what: str, seconds: float) -> None:
    """Ask until there is an answer; ``check`` raises if there will never be one."""
    deadline = time.monotonic() + seconds
    while True:
        check()
        try:
            ask()
            return
        except Exception as error:  # refused, reset or not yet served: whatever it is, the last one is told
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} does not answer") from error
        time.sleep(0.05)


def until(look: Callable[[], Value], seconds: float = 200) -> Value:
    """Return what the function returns once it is true."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while not (value := look()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.2)
    return value
