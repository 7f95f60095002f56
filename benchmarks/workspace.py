"""The time that a workspace takes: to pack and store it, and until an application has started in it.

    python -m benchmarks.workspace

There are three workspaces: a small one, one of 20,000 files, and one of 99 MB; each round measures everything in turn,
with the archives on this machine's disk. Peers: for packing and storing, ``tar`` and ``sha256sum``; for the start,
Python with fsspec, which only downloads the archive and starts the application, and a shell that unpacks the archive
with ``tar`` after ``sha256sum`` has checked it. Exits with 1 if the small workspace takes longer than its goal beside
the download, or another one than its factor times ``tar``.
"""

import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torchx_kfp.contract.scripts import workspace_words
from torchx_kfp.tracking.recorder import Recorder

#: Milliseconds that the start in the small workspace may take beside the download; factors to ``tar``.
START, START_FACTOR, STORE_FACTOR = 100.0, 3.0, 5.0
#: The number of files, their bytes, and the number of rounds.
CASES = {"small": (10, 2_000, 15), "20,000 files": (20_000, 300, 3), "99 MB": (99, 1_000_000, 3)}
UNPACK = 'sha256sum -c "$0.sum" >&2; mkdir "$1"; tar -xf "$0" -C "$1"; cd "$1"; shift; exec "$@"'
PACK = 'tar -cf "$1" -C "$0" .; sha256sum "$1"; sync "$1"'
DOWNLOAD = """import os, sys, fsspec
filesystem, path = fsspec.core.url_to_fs(sys.argv[1])
filesystem.cat_file(path)
os.execvp(sys.argv[2], sys.argv[2:])"""
#: An application that prints the time at which it runs, in nanoseconds.
APPLICATION = ("date", "+%s%N")
ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def make(folder: Path, files: int, size: int) -> None:
    for number in range(files):
        path = folder / f"package{number // 1000}" / f"folder{number // 100 % 10}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(8).hex().encode() * (size // 16 + 1))


def until_started(*command: str, folder: Path) -> float:
    """Return the milliseconds until the application runs."""
    start = time.time_ns()
    done = subprocess.run(
        command, capture_output=True, check=True, cwd=folder, env={**ENVIRON, "TORCHX_KFP_WORKSPACES": str(folder)}
    )
    return (int(done.stdout) - start) / 1e6


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def store(base: str, code: Path) -> None:
    Recorder.open(base).pack_workspace(code).upload()


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return the medians of the milliseconds for the workspace ``code`` in the folder."""
    code, made, base = folder / "code", folder / "made", folder / "base"
    packed = Recorder.open(str(base)).pack_workspace(code)
    packed.upload()
    archive = packed.url
    Path(f"{archive}.sum").write_text(f"{packed.digest}  {archive}\n")
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        made.mkdir()
        new = str(folder / "other" / str(number))
        actions: dict[str, Callable[[], float]] = {
            "store": functools.partial(milliseconds, functools.partial(store, new, code)),
            "store again": functools.partial(milliseconds, functools.partial(store, new, code)),
            "tar -c": lambda: milliseconds(
                lambda: subprocess.run(["sh", "-ec", PACK, code, made / "a.tar"], check=True, capture_output=True)
            ),
            "download": lambda: until_started("python3", "-c", DOWNLOAD, archive, *APPLICATION, folder=made),
            "start": lambda: until_started(*workspace_words(archive), *APPLICATION, folder=made),
            "tar -x": lambda: until_started(
                "sh", "-ec", UNPACK, archive, str(made / "by-tar"), *APPLICATION, folder=made
            ),
        }
        for name, action in actions.items():
            found.setdefault(name, []).append(action())
        shutil.rmtree(made)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    missed = False
    for case, (files, size, rounds) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder, "code"), files, size)
            times = measure(Path(folder), rounds)
        added, ratio = times["start"] - times["download"], times["start"] / times["tar -x"]
        stored = times["store"] / times["tar -c"]
        print(
            f"{case}: started after {times['start']:.0f} ms ({added:.0f} beside the download), with tar "
            f"{times['tar -x']:.0f}, ratio {ratio:.2f}; packed and stored in {times['store']:.0f} ms, again in "
            f"{times['store again']:.0f}, with tar {times['tar -c']:.0f}, ratio {stored:.2f}"
        )
        missed |= added > START if case == "small" else ratio > START_FACTOR or stored > STORE_FACTOR
    sys.exit(missed)


if __name__ == "__main__":
    main()
