"""Faults that a test switches on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Fault:
    """A fault for the next requests: for ``times`` of those that match.

    With a ``status``, they are answered with it. ``seconds`` delays the answer. ``cut`` closes the connection after
    that share of the answer, from 0 (before anything was handled: the request has no effect) to below 1.
    """

    status: int = 0
    times: float = 1
    path: str = ""
    method: str = ""
    seconds: float = 0.0
    cut: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The body of the answer; by default what KFP or the proxy before it would send.
    body: str | None = None

    def takes(self, method: str, target: str) -> bool:
        """Return whether the fault happens to a request, and count it."""
        if self.times <= 0 or self.method not in ("", method) or not re.search(self.path, target):
            return False
        self.times -= 1
        return True


@dataclass(frozen=True)
class Request:
    """A request that was received, and the status of its answer (0: the connection was cut)."""

    method: str
    path: str
    query: Mapping[str, str]
    #: On the monotonic clock, in seconds.
    time: float
    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
