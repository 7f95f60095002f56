"""The time that the command line takes to show a help text, compared to TorchX's, in milliseconds.

    python -m benchmarks.help

All programs run in turn, as installed. The benchmark prints a line for each: the fastest and the median run, and the
ratio of the medians.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from torchx_kfp.entrypoints.cli import cli

ROUNDS = 15
LIMIT = 100.0


def milliseconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([str(Path(sys.executable).parent / words[0]), *words[1:]], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def main() -> None:
    commands = cli.list_commands(None)  # type: ignore[arg-type]  # it asks no context
    programs = [["torchx"], ["torchx-kfp"], *(["torchx-kfp", command] for command in commands)]
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(ROUNDS):
        for program, found in zip(programs, times, strict=True):
            found.append(milliseconds([*program, "--help"]))
    torchx = statistics.median(times[0])
    for program, found in zip(programs, times, strict=True):
        median = statistics.median(found)
        limit = "" if program == ["torchx"] else f" (limit {LIMIT:g} on a quiet machine)"
        print(
            f"{' '.join([*program, '--help']):28}  best {min(found):5.0f} ms, median {median:5.0f} ms{limit}, "
            f"ratio {median / torchx:.2f}"
        )
    # The fastest run is the one that other programs on the machine have disturbed least.
    sys.exit(any(min(found) > LIMIT for found in times[1:]))


if __name__ == "__main__":
    main()
