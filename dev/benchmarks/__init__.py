"""Benchmarks: figures that the docs and the issues state, each beside a peer in the same run where there is one.

    python -m dev.benchmarks [CASE ...]

Without cases, all run. A line has a figure, its limit, and the peer with the ratio to it. The limits hold for two quiet
cores; the program exits with 1 if a figure is over its limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

#: The figures over their limits.
missed: list[str] = []


def show(
    what: str, value: float, unit: str, *, most: float | None = None, peer: tuple[str, float] | None = None
) -> None:
    """Print a figure, and remember it if it is over its limit.

    Args:
        what: what it is.
        value: the figure.
        unit: its unit, and the peer's.
        most: its limit.
        peer: what is measured beside it, and its figure.
    """
    line = f"{what}: {_number(value)} {unit}"
    if most is not None:
        line += f" (limit {_number(most)})"
    if peer is not None:
        line += f"; {peer[0]} {_number(peer[1])} {unit}, ratio {value / peer[1]:.2f}"
    if most is not None and value > most:
        missed.append(line)
        line += "  OVER THE LIMIT"
    print(line, flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def timed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that an action takes."""
    start = clock()
    action()
    return clock() - start


def in_turn(rounds: int, *actions: Callable[[], float]) -> list[list[float]]:
    """Return what each action measures. They take turns, because the machine may be busy for a while."""
    found = [[action() for action in actions] for _ in range(rounds)]
    return [list(measured) for measured in zip(*found, strict=True)]


def medians(rounds: int, *actions: Callable[[], float]) -> list[float]:
    """Return the median of what each action measures."""
    return [statistics.median(found) for found in in_turn(rounds, *actions)]
