"""The time of ``torchx-kfp run`` on the digits pipeline when every stage comes from the cache, in seconds.

    python -m benchmarks.cached

The pipeline is run once, and then again from the cache: as compiled YAML and as the Python file. The peer is a process
that only imports kfp, which is necessary to run the Python file. The benchmark prints a line for each: the fastest and
the median run, the processor time of the median, and the ratio of the medians.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 7
REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAM = str(Path(sys.executable).parent / "torchx-kfp")


def seconds(words: list[str]) -> tuple[float, float]:
    """Return the seconds on the clock, and those of processors."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiled = os.path.join(folder, "digits.yaml")
        where = ["--tracker-base", f"{folder}/results", "--output-dir", f"{folder}/runs"]
        seconds([PROGRAM, "compile", "pipelines/digits.py", "-o", compiled])
        whole, _ = seconds([PROGRAM, "run", compiled, *where])
        programs = {
            "import kfp": [sys.executable, "-W", "ignore", "-c", "import kfp"],
            "run digits.yaml": [PROGRAM, "run", compiled, *where],
            "run digits.py": [PROGRAM, "run", "pipelines/digits.py", *where],
        }
        seconds(programs["run digits.py"])  # the stages cached for the YAML are then cached for it, too
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(ROUNDS):
            for name, words in programs.items():
                times[name].append(seconds(words))
    print(f"{'run digits.yaml, nothing cached':32} {whole:6.2f} s")
    peer = statistics.median(clock for clock, _ in times["import kfp"])
    for name, found in times.items():
        clock = statistics.median(clock for clock, _ in found)
        processor = statistics.median(processor for _, processor in found)
        print(
            f"{name:32} best {min(found)[0]:.2f} s, median {clock:.2f} s, processor {processor:.2f} s, "
            f"ratio {clock / peer:.2f}"
        )


if __name__ == "__main__":
    main()
