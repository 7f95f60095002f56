"""The local runner compared to kfp.local on the same pipelines: seconds, overhead, memory, processor time.

    python -m benchmarks.local

Both run Python components as processes. Container components are processes here, and containers under kfp.local if a
Docker engine answers. There are limits for the eight stages that sleep for two seconds, and for the overhead per stage.
"""

import contextlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from torchx_kfp.local import Event, RunResult, StageFinished, Watch, run

EIGHT_LIMIT = 2.5
OVERHEAD_LIMIT = 30.0


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def nap(seconds: float):
    import time

    time.sleep(seconds)


@dsl.container_component
def sleep(seconds: str):
    return dsl.ContainerSpec(image="busybox", command=["sleep", seconds])


@dsl.container_component
def true(word: str = ""):
    return dsl.ContainerSpec(image="busybox", command=["true", word])


@dsl.pipeline
def python_stages():
    for _ in range(8):
        nap(seconds=2.0)


@dsl.pipeline
def python_loop():
    with dsl.ParallelFor([2.0] * 8) as seconds:
        nap(seconds=seconds)


@dsl.pipeline
def container_stages():
    for _ in range(8):
        sleep(seconds="2")


@dsl.pipeline
def container_loop():
    with dsl.ParallelFor(["2"] * 8) as seconds:
        sleep(seconds=seconds)


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
def long_loop():
    with dsl.ParallelFor([str(number) for number in range(1000)]) as word:
        true(word=word)


PIPELINES = {name: globals()[name] for name in ("python_stages", "python_loop", "container_stages", "container_loop")}


def ours(pipeline: Any, folder: str, **options: Any) -> tuple[RunResult, float, float]:
    """Return the run, its seconds, and the seconds of processor time that the runner itself took."""
    path = str(Path(folder, "pipeline.yaml"))
    compiler.Compiler().compile(pipeline, path)
    started, used = time.perf_counter(), time.process_time()
    options.setdefault("watch", Watch())
    result = run(path, output_dir=folder, **options)
    result.raise_for_failure()
    return result, time.perf_counter() - started, time.process_time() - used


def theirs(name: str, folder: str) -> float | None:
    """Return the seconds that kfp.local takes in a separate process; None if it cannot run the pipeline."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.local", "kfp.local", name]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def run_theirs(name: str) -> None:
    from kfp import local

    runner = local.DockerRunner() if name.startswith("container") else local.SubprocessRunner(use_venv=False)
    with contextlib.redirect_stdout(io.StringIO()):
        local.init(runner, raise_on_error=True)
        started = time.perf_counter()
        PIPELINES[name]()
    print(time.perf_counter() - started)


def resident() -> float:
    """Return the megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def memory(folder: str) -> dict[str, float]:
    """Run a loop of 1,000 items; return its seconds, and the megabytes after the first, the 500th and the last."""
    megabytes: list[float] = []

    class Measure(Watch):
        def on_event(self, event: Event) -> None:
            if isinstance(event, StageFinished):
                megabytes.append(resident())

    _, seconds, used = ours(long_loop, folder, watch=Measure())
    return {"seconds": seconds, "first": megabytes[0], "half": megabytes[499], "last": megabytes[-1], "used": used}


def main() -> None:
    if sys.argv[1:2] == ["kfp.local"]:
        run_theirs(sys.argv[2])
        return
    too_slow = False
    for name, pipeline in PIPELINES.items():
        with tempfile.TemporaryDirectory() as folder:
            _, seconds, used = ours(pipeline, folder, parallelism=8)
            other = theirs(name, folder)
        beside = f"kfp.local {other:.1f} s, ratio {other / seconds:.1f}" if other else "kfp.local cannot run it here"
        print(f"{name}: {seconds:.2f} s (limit {EIGHT_LIMIT:g}), runner {used:.2f} s of processor; {beside}")
        too_slow |= name.startswith("container") and seconds > EIGHT_LIMIT
    for label, pipeline, count in (("100 in a row", chain, 100), ("500 at once", wide, 500)):
        with tempfile.TemporaryDirectory() as folder:
            result, seconds, used = ours(pipeline, folder)
        each = result.duration * 1000 / count
        print(f"{label}: {seconds:.2f} s, {each:.1f} ms each (limit {OVERHEAD_LIMIT:g}), {used:.2f} s of processor")
        too_slow |= each > OVERHEAD_LIMIT
    with tempfile.TemporaryDirectory() as folder:
        loop = memory(folder)
    print(
        f"loop of 1000: {loop['seconds']:.2f} s, {loop['used']:.2f} s of processor; "
        f"memory {loop['first']:.0f} MB, {loop['half']:.0f} MB at 500, {loop['last']:.0f} MB at the end"
    )
    with tempfile.TemporaryDirectory() as folder:
        _, seconds, used = ours(container_stages, folder, parallelism=1)
    print(f"waiting: {used:.2f} s of processor in {seconds:.1f} s of one sleeping stage after another")
    sys.exit(too_slow)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
