"""Put and get of this package's tracker compared to TorchX's, on a local disk.

    python -m benchmarks.tracking [--base DIRECTORY] [--keys N] [--rounds N]

Each round puts N keys into a fresh folder with each tracker and reads them again; nothing is deleted before the end.
TorchX's tracker leaves it to the operating system when files reach the disk, while this one forces them to disk
(fsync). So the same puts are also timed without fsync: that line compares only the work of the two trackers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker

from torchx_kfp.tracking import FsspecResultTracker

RESULTS = {"accuracy": 0.9312, "loss": 0.123456, "epochs": 12, "note": "the best of five"}


@contextlib.contextmanager
def without_fsync() -> Iterator[None]:
    fsync = os.fsync
    os.fsync = lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = fsync


def seconds(action: Callable[[str], Any], keys: list[str]) -> float:
    """Return the seconds that the action takes for one key, on average."""
    start = time.perf_counter()
    for key in keys:
        action(key)
    return (time.perf_counter() - start) / len(keys)


def one_round(base: str, keys: list[str], turn: int) -> dict[str, float]:
    folder = tempfile.mkdtemp(dir=base)
    trackers: dict[str, Any] = {
        "torchx": TorchxTracker(f"{folder}/torchx"),
        "torchx-kfp": FsspecResultTracker(f"{folder}/torchx-kfp"),
        "torchx-kfp, no fsync": FsspecResultTracker(f"{folder}/no-fsync"),
    }
    times = {}
    order = list(trackers)
    for name in order[turn % 3 :] + order[: turn % 3]:
        tracker = trackers[name]
        with without_fsync() if name.endswith("no fsync") else contextlib.nullcontext():
            times[f"put {name}"] = seconds(lambda key, tracker=tracker: tracker.put(key, **RESULTS), keys)
            times[f"again {name}"] = seconds(lambda key, tracker=tracker: tracker.put(key, **RESULTS), keys)
    for name in order[:2] if turn % 2 else order[1::-1]:
        times[f"get {name}"] = seconds(trackers[name].get, keys)
        assert trackers[name].get(keys[-1]) == RESULTS
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="Put and get against TorchX's tracker, on a local disk.")
    parser.add_argument("--base", default=tempfile.gettempdir(), help="a directory on the disk to measure")
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    keys = [f"run/train/{number:06}" for number in range(options.keys)]
    with tempfile.TemporaryDirectory(dir=options.base) as base:
        one_round(base, keys[:20], 0)  # imports and caches
        rounds = [one_round(base, keys, turn) for turn in range(options.rounds)]

    def median(name: str) -> float:
        return statistics.median(times[name] for times in rounds)

    print(f"{options.keys} keys, median of {options.rounds} rounds, microseconds for one call, in {options.base}")
    for action, what in (("put", "put, new key"), ("again", "put, known key"), ("get", "get")):
        theirs = median(f"{action} torchx")
        print(f"{what:15} {'torchx':25} {theirs * 1e6:8.0f}")
        for name in ("torchx-kfp", "torchx-kfp, no fsync"):
            if f"{action} {name}" in rounds[0]:
                ours = median(f"{action} {name}")
                print(f"{what:15} {name:25} {ours * 1e6:8.0f}   {ours / theirs:5.2f} times torchx")


if __name__ == "__main__":
    main()
