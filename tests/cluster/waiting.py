"""Waiting for what a control plane does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until(look: Callable[[], Value], seconds: float = 60) -> Value:
    """Return what the function returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(0.03)
    return value
