"""The time to store artifacts and to fetch them, against fsspec's own copies, on a disk and on S3.

    python -m benchmarks.artifacts [--size MB] [--files N] [--delay SECONDS]

A large file is copied in turns with fsspec (``put_file``, ``get_file``), and the best times are compared; ours include
the SHA-256. The files of a folder are stored and fetched at once, against one after the other. The S3 server is moto's,
for the folder behind a proxy that delays each request (see ``benchmarks.objects``).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import fsspec

from benchmarks.objects import delayed, timed
from tests.s3 import running
from torchx_kfp.contract import protocol
from torchx_kfp.tracking import Run, current_run


def hash_file(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def stage(base: str) -> Run:
    return current_run(protocol.encode(protocol.StageContext(base, "run/stage/1")))


def best(turns: int, *actions: Callable[[], object]) -> list[float]:
    """Return the best time of each action; they take turns, because the machine may be busy for a while."""
    found = [[timed(action)[0] for action in actions] for _ in range(turns)]
    return [min(times) for times in zip(*found, strict=True)]


def compare_file(base: str, file: Path, turns: int) -> None:
    run = stage(base)
    store, root = fsspec.core.url_to_fs(base)
    copies = file.parent / "copies"
    store.makedirs(root, exist_ok=True)

    def fetch() -> None:
        run.artifact("file").download(copies)
        shutil.rmtree(copies)

    def get() -> None:
        copies.mkdir()
        store.get_file(f"{root}/copy", str(copies / "copy"))
        shutil.rmtree(copies)

    # Before fsspec's copies, which take more.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run.add_artifact("file", file, store=True)
    fetch()
    print(f"memory: {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000:,.0f} MB more")
    stores = best(
        turns, lambda: run.add_artifact("file", file, store=True), lambda: store.put_file(str(file), f"{root}/copy")
    )
    for what, (ours, theirs) in (("store", stores), ("fetch", best(turns, fetch, get))):
        print(f"{what} the file   {ours:6.2f} s, fsspec {theirs:6.2f} s   {ours / theirs:5.2f} times")


def compare_folder(base: str, folder: Path, some: int) -> None:
    run = stage(base)
    count = len(list(folder.iterdir()))
    store, root = fsspec.core.url_to_fs(base)
    few = sorted(folder.iterdir())[:some]
    store.put_file(str(few[0]), f"{root}/warm")
    # One after the other takes long, so the time for each is taken from some of them.
    one = timed(lambda: [store.put_file(str(file), f"{root}/{file.name}") for file in few])[0] / some * count
    ours = timed(lambda: run.add_artifact("folder", folder, store=True))[0]
    print(f"store {count} files   {ours:6.2f} s, one by one {one:6.2f} s   {one / ours:5.1f} times faster")
    with tempfile.TemporaryDirectory() as copies:
        one = (
            timed(lambda: [store.get_file(f"{root}/{it.name}", f"{copies}/{it.name}") for it in few])[0] / some * count
        )
        ours = timed(lambda: run.artifact("folder").download(f"{copies}/all"))[0]
    print(f"fetch {count} files   {ours:6.2f} s, one by one {one:6.2f} s   {one / ours:5.1f} times faster")


def main() -> None:
    parser = argparse.ArgumentParser(description="Storing and fetching artifacts.")
    parser.add_argument("--size", type=int, default=1000, help="MB of the large file")
    parser.add_argument("--files", type=int, default=1000, help="files of the folder")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds until the server gets a request")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    # Moto takes long to join the parts of an upload, and fsspec's copy does not wait.
    fsspec.config.conf["s3"] = {"config_kwargs": {"read_timeout": 120}}

    with tempfile.TemporaryDirectory() as place, running(Path(place, "log")) as server:
        file, folder = Path(place, "file.bin"), Path(place, "folder")
        with file.open("wb") as out:
            for _ in range(options.size):
                out.write(os.urandom(1_000_000))
        folder.mkdir()
        for number in range(options.files):
            (folder / f"{number}.bin").write_bytes(os.urandom(1000))
        seconds = best(options.turns, lambda: hash_file(file))[0]
        print(f"on a disk (its SHA-256 takes {seconds:.2f} s)")
        compare_file(f"{place}/results", file, options.turns)
        for delay in (0.0, options.delay):
            with delayed(server, delay) as base:
                print(f"on S3, whose requests take {delay * 1000:g} ms more than those of a server on this machine")
                if delay:
                    compare_folder(base, folder, min(100, options.files))
                else:
                    compare_file(base, file, options.turns)


if __name__ == "__main__":
    main()
