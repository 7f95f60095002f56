"""The local runner beside kfp.local on the same pipelines; a loop's memory, a run from the cache.

Both run Python components as processes.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from dev.benchmarks import medians, show, timed
from torchx_kfp.local import RunResult, Watch, run

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.executable).parent / "torchx-kfp")


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def nap(seconds: float):
    import time

    time.sleep(seconds)


@dsl.container_component
def true(word: str = ""):
    return dsl.ContainerSpec(image="busybox", command=["true", word])


@dsl.pipeline
def eight_naps():
    for _ in range(8):
        nap(seconds=2.0)


@dsl.pipeline
def chain():
    before = true()
    for _ in range(99):
        before = true().after(before)


@dsl.pipeline
def wide():
    for _ in range(500):
        true()


@dsl.pipeline
def one():
    true()


@dsl.pipeline
def loop():
    with dsl.ParallelFor([str(number) for number in range(1000)]) as word:
        true(word=word)


def ours(pipeline: Any, **options: Any) -> tuple[RunResult, float]:
    """Return the run, and the seconds of ``run``."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "pipeline.yaml"))
        compiler.Compiler().compile(pipeline, path)
        found: list[RunResult] = []
        seconds = timed(lambda: found.append(run(path, output_dir=folder, watch=Watch(), **options)))
        found[0].raise_for_failure()
        return found[0], seconds


def theirs() -> float:
    """Return the seconds that kfp.local takes for the naps in a separate process."""
    code = (
        "import warnings; warnings.simplefilter('ignore'); from kfp import local; from dev.benchmarks.local import *;"
        "local.init(local.SubprocessRunner(use_venv=False), raise_on_error=True); print(timed(eight_naps))"
    )
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environ, check=True, capture_output=True)
    return float(done.stdout.split()[-1])


def memory(pipeline: Any) -> float:
    """Return the most megabytes that the command ``run`` takes, which reads YAML and imports no kfp."""
    # A process has at least the peak of the one that started it: this one has imported kfp.
    code = """if True:
        import resource, subprocess, sys
        subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
        """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/pipeline.yaml"
        compiler.Compiler().compile(pipeline, path)
        command = [sys.executable, "-c", code, PROGRAM, "run", path, "--quiet", "--output-dir", folder]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def from_the_cache() -> None:
    """Time ``torchx-kfp run`` of the digits pipeline, whose Python file needs a process that imports kfp."""

    def command(*words: str) -> float:
        return timed(lambda: subprocess.run(words, check=True, cwd=REPOSITORY, capture_output=True))

    with tempfile.TemporaryDirectory() as folder:
        compiled = f"{folder}/digits.yaml"
        where = ["--tracker-base", f"{folder}/base", "--output-dir", f"{folder}/runs"]
        command(PROGRAM, "compile", "pipelines/digits.py", "-o", compiled)
        command(PROGRAM, "run", compiled, *where)
        kfp = [sys.executable, "-W", "ignore", "-c", "import kfp"]
        cached, peer = medians(7, lambda: command(PROGRAM, "run", compiled, *where), lambda: command(*kfp))
    show("digits.yaml, all cached", cached, "s", most=0.65, peer=("import kfp", peer))


def main() -> None:
    show("eight naps of 2 s", ours(eight_naps, parallelism=8)[1], "s", peer=("kfp.local", theirs()))
    for label, pipeline, count, most in (("100 in a row", chain, 100, 5.1), ("500 at once", wide, 500, 4.8)):
        show(f"{label}, each", ours(pipeline)[0].duration * 1000 / count, "ms", most=most)
    show("memory of a loop of 1,000", memory(loop), "MB", most=105, peer=("of one stage", memory(one)))
    from_the_cache()
