"""Doing the same with many things at once, where a store bears it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torchx_kfp.tracking.stores.retry import Calls, join_calls

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Concurrency:
    """How many calls a store bears at once, and how many of them one thread does in a row.

    A request to an object store is worth a thread's switch; a read of a local file is not.
    """

    threads: int = 1
    batch: int = 1


def each(function: Callable[[T], R], items: Iterable[T], concurrency: Concurrency) -> Iterator[R]:
    """The function's value for each item, in order; a few are worked on ahead of what is taken.

    Raises:
        Exception: the function's, where its item is taken. The rest is given up then.
    """
    source = iter(items)
    calls = Calls()

    def work(batch: list[T]) -> list[Callable[[], R]]:
        return [_outcome(function, item) for item in batch]

    def take() -> list[T]:
        return list(itertools.islice(source, concurrency.batch))

    batches = iter(take, [])
    first = list(itertools.islice(batches, 2))
    if concurrency.threads == 1 or len(first) < 2:
        for batch in itertools.chain(first, batches):
            yield from map(function, batch)
        return
    pool = ThreadPoolExecutor(concurrency.threads, "torchx-kfp", initializer=join_calls, initargs=(calls,))
    pending: deque[Future[list[Callable[[], R]]]] = deque()
    try:
        for batch in itertools.chain(first, batches):
            pending.append(pool.submit(work, batch))
            if len(pending) >= 4 * concurrency.threads:
                yield from (outcome() for outcome in pending.popleft().result())
        while pending:
            yield from (outcome() for outcome in pending.popleft().result())
    finally:
        calls.stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(function: Callable[[T], R], item: T) -> Callable[[], R]:
    """Calls the function; what it gave or raised comes when the outcome is called."""
    try:
        value = function(item)
    except Exception as error:
        raised = error

        def fail() -> R:
            raise raised

        return fail
    return lambda: value
