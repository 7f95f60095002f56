"""The tracker beside TorchX's and fsspec's own copies: time on a disk, requests on S3, and artifacts of a gigabyte.

The S3 server is moto's, in a process of this machine. TorchX's tracker leaves it to the operating system when files
reach the disk, while this one forces them to disk: without fsync, only the work of the two trackers is compared.
"""

import os
import resource
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker

from dev.benchmarks import in_turn, medians, show, timed
from tests.proxy import Proxy
from tests.s3 import S3Server, running
from tests.tracking.stages import stage
from torchx_kfp.tracking import FsspecResultTracker

RESULTS: dict[str, Any] = {"accuracy": 0.9312, "loss": 0.123456, "epochs": 12, "note": "the best of five"}
#: MB of an artifact; results that are read at once, and the seconds until S3 answers, as Amazon states them.
SIZE, MANY, DELAY = 1000, 500, 0.1


def new_base(url: str) -> str:
    """Make fsspec's ``s3://`` the server of the URL, and return a tracker base in a new bucket."""
    import s3fs

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys, AWS_ENDPOINT_URL=url)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/results"


def on_a_disk(folder: str) -> None:
    ours, theirs = FsspecResultTracker(f"{folder}/ours"), TorchxTracker(f"{folder}/torchx")
    turns = iter(range(1_000_000))

    def calls(action: Callable[[str], object]) -> Callable[[], float]:
        return lambda: 1e6 * timed(lambda: [action(f"run/train/{next(turns):06}") for _ in range(100)]) / 100

    def put(tracker: Any) -> Callable[[], float]:
        return calls(lambda key: tracker.put(key, **RESULTS))

    peer, forced = medians(7, put(theirs), put(ours))
    show("put on a disk", forced, "us", peer=("TorchX", peer))
    with mock.patch("os.fsync", return_value=None):
        peer, plain = medians(7, put(theirs), put(ours))
    show("put on a disk without fsync", plain, "us", peer=("TorchX", peer))
    theirs.put("known", **RESULTS)
    ours.put("known", **RESULTS)
    peer, got = medians(7, calls(lambda _: theirs.get("known")), calls(lambda _: ours.get("known")))
    show("get on a disk", got, "us", peer=("TorchX", peer))


def on_s3(server: S3Server) -> None:
    base = new_base(server.url)
    ours, theirs = FsspecResultTracker(base), TorchxTracker(base)
    counts = {}
    for tracker in (ours, theirs):
        tracker.put("warm", **RESULTS)
        tracker.get("warm")
        puts = len(server.requests(lambda tracker=tracker: tracker.put("count", **RESULTS)))
        counts[tracker] = puts, len(server.requests(lambda tracker=tracker: tracker.get("count")))
    for number, what in enumerate(("put", "get")):
        show(f"{what} on S3", counts[ours][number], "requests", most=1, peer=("TorchX", counts[theirs][number]))
    keys = [f"run/train/{number:06}" for number in range(MANY)]
    for _ in ours.store.each(lambda key: ours.put(key, **RESULTS), keys):
        pass
    with Proxy(server.url, DELAY) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        ours, theirs = FsspecResultTracker(base), TorchxTracker(base)
        many = timed(lambda: ours.get_many(keys))
        each = timed(lambda: [theirs.get(key) for key in keys[:20]]) / 20 * MANY
    os.environ["AWS_ENDPOINT_URL"] = server.url
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    show(f"{MANY} results from S3 that answers in {DELAY} s", many, "s", peer=("TorchX, one by one", each))


def artifacts(what: str, base: str, file: Path, most: float | None) -> None:
    """Store and fetch a file in turns with fsspec (``put_file``, ``get_file``); ours include the SHA-256."""
    run = stage(base, "run/stage/1")
    store, root = fsspec.core.url_to_fs(base)
    copies = file.parent / "copies"
    store.makedirs(root, exist_ok=True)

    def into_copies(fetch: Callable[[], object]) -> float:
        copies.mkdir()
        seconds = timed(fetch)
        shutil.rmtree(copies)
        return seconds

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000

    before = peak()
    run.add_artifact("file", file, store=True)
    show(f"memory to store a file {what}", max(peak() - before, 0), "MB more")
    actions: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "store": (
            lambda: timed(lambda: run.add_artifact("file", file, store=True)),
            lambda: timed(lambda: store.put_file(str(file), f"{root}/copy")),
        ),
        "fetch": (
            lambda: into_copies(lambda: run.artifact("file").download(copies)),
            lambda: into_copies(lambda: store.get_file(f"{root}/copy", str(copies / "copy"))),
        ),
    }
    for name, both in actions.items():
        ours, theirs = (min(found) for found in in_turn(3, *both))
        limit = None if most is None else most * theirs
        show(f"{name} {SIZE} MB {what}", ours, "s", most=limit, peer=("fsspec", theirs))


def main() -> None:
    # Moto takes long to join the parts of an upload, and fsspec's copy does not wait.
    fsspec.config.conf["s3"] = {"config_kwargs": {"read_timeout": 120}}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder, "log")) as server:
        on_a_disk(folder)
        on_s3(server)
        file = Path(folder, "file.bin")
        with file.open("wb") as out:
            for _ in range(SIZE):
                out.write(os.urandom(1_000_000))
        artifacts("on a disk", f"{folder}/results", file, None)
        artifacts("on S3", new_base(server.url), file, 1.0)
