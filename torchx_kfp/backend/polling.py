"""How often a run on a host is polled: often while it changes, rarely otherwise, and never at the cost of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PollPolicy:
    """How often a run is polled. Times are in seconds.

    The wait between two polls is ``shortest`` after a change, and grows by ``factor`` up to ``longest`` while nothing
    changes. It is longer if the polls of a large run would otherwise take more than ``share`` of a core; ``credit`` is
    the CPU time that may be spent ahead. A host that reports errors, or refuses the credentials, is asked again for
    ``patience``: its database may restart, and a token may be renewed too late.
    """

    shortest: float = 1.0
    longest: float = 10.0
    factor: float = 1.4
    share: float = 0.05
    credit: float = 1.0
    patience: float = 60.0
    sleep: Callable[[float], object] = time.sleep


DEFAULT_POLICY = PollPolicy()


class PollTimer:
    """The waits between the polls of one run."""

    def __init__(self, policy: PollPolicy) -> None:
        self._policy = policy
        self._next = policy.shortest
        #: The CPU time that is left; below 0, it has to be waited for.
        self._left = policy.credit

    def wait(self, *, changed: bool, cost: float, longest: float | None = None) -> None:
        """Wait until the next poll.

        Args:
            changed: whether the last poll has found something new.
            cost: the CPU time that it took.
            longest: how long to wait at most.
        """
        policy = self._policy
        if changed:
            self._next = policy.shortest
        self._left -= cost
        seconds = max(self._next, -self._left / policy.share)
        if longest is not None:
            seconds = min(seconds, longest)
        policy.sleep(seconds)
        self._left = min(self._left + seconds * policy.share, policy.credit)
        self._next = min(self._next * policy.factor, policy.longest)
