"""The agenda of a run: the next actions of its only thread, with their times."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import queue
import time
from collections.abc import Callable

#: Seconds after which a wait ends by itself: a signal that arrives just before it does not interrupt it.
_LOOK_UP = 1.0


class Agenda:
    """Actions of one thread, in order of time.

    Its thread adds actions and performs them. Other threads only post them, and signal handlers put them first.
    """

    def __init__(self) -> None:
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        #: The order of actions that are due at the same time.
        self._order = itertools.count()
        #: Posted actions. None only ends a wait.
        self._posted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def add(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Add an action that is due after these seconds."""
        heapq.heappush(self._actions, (time.monotonic() + delay, next(self._order), action))

    def put_first(self, action: Callable[[], None]) -> None:
        """Add an action that comes before all others. A signal handler may call this."""
        self.add(action, -math.inf)
        self._posted.put(None)

    def post(self, action: Callable[[], None]) -> None:
        """Add an action from another thread: ``wait`` performs it."""
        self._posted.put(action)

    def act(self) -> bool:
        """Perform the first due action; return False if none is due."""
        if not self._actions or self._actions[0][0] > time.monotonic():
            return False
        heapq.heappop(self._actions)[2]()
        return True

    def wait(self, most: float = math.inf) -> None:
        """Wait up to ``most`` seconds for a posted action, which is performed, the time of an action, or a signal."""
        left = self._actions[0][0] - time.monotonic() if self._actions else most
        longest = min(most, _LOOK_UP, max(0.0, left))
        with contextlib.suppress(queue.Empty):
            if action := self._posted.get(timeout=longest):
                action()
