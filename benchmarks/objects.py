"""The time to read many results from S3 (at once, one by one, with TorchX's tracker), and to remove them as gc does.

    python -m benchmarks.objects [--results N] [--delay SECONDS]

The server is moto's, on this machine, behind a proxy that delays each request: Amazon states 100 to 200 ms as the usual
time until S3 answers ("Performance design patterns for Amazon S3"), and a local server is much faster. Without a delay
(--delay 0), the server's own speed is measured, which is some 300 requests in a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.s3 import S3Server, running

RESULTS = {"accuracy": 0.9312, "loss": 0.123456, "epochs": 12, "note": "the best of five"}


@contextlib.contextmanager
def delayed(server: S3Server, delay: float) -> Iterator[str]:
    """Yield a tracker base in a new bucket of the server, behind the delay."""
    if not delay:
        yield new_base(server.url)
        return
    command = [sys.executable, "-m", "tests.proxy", server.url, str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield new_base(process.stdout.readline().strip())
        process.terminate()


def new_base(url: str) -> str:
    """Make fsspec's ``s3://`` the server of the URL, and return a tracker base in a new bucket."""
    import s3fs

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys, AWS_ENDPOINT_URL=url)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/results"


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value


def compare(server: S3Server, base: str, count: int, some: int) -> None:
    from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker

    from torchx_kfp.tracking import FsspecResultTracker

    tracker, torchx = FsspecResultTracker(base), TorchxTracker(base)
    keys = [f"run/train/{number:06}" for number in range(count)]
    expected = dict.fromkeys(keys, RESULTS)

    for name, its in (("torchx", torchx), ("torchx-kfp", tracker)):
        its.put("warm/1", **RESULTS)
        its.get("warm/1")
        puts = len(server.requests(lambda its=its, name=name: its.put(f"count/{name}", **RESULTS)))
        gets = len(server.requests(lambda its=its, name=name: its.get(f"count/{name}")))
        print(f"{name:22} {puts} requests for a put, {gets} for a get")

    for key in keys[:some]:
        tracker.put(key, **RESULTS)
    for _ in tracker.store.each(lambda key: tracker.put(key, **RESULTS), keys[some:]):
        pass
    # Reading one by one takes long, so the time for each is taken from some of them.
    one, _ = timed(lambda: [tracker.get(key) for key in keys[:some]])
    theirs, _ = timed(lambda: [torchx.get(key) for key in keys[:some]])
    many, found = timed(lambda: tracker.get_many(keys))
    assert found == expected
    listed, found = timed(lambda: dict(tracker.items("run")))
    assert found == expected
    for name, seconds in (
        ("one by one, torchx", theirs / some * count),
        ("one by one", one / some * count),
        ("get_many", many),
        ("items(prefix)", listed),
    ):
        ratio = seconds / (one / some * count)
        print(f"{name:22} {seconds:8.2f} s for {count} results   {ratio:6.3f} times one by one")

    files = tracker.store.files("run")
    alone, _ = timed(lambda: list(tracker.store.each(tracker.store.remove_old, files[: count // 2])))
    sent: list[str] = []
    together, _ = timed(
        lambda: sent.extend(server.requests(lambda: list(tracker.store.remove_many(files[count // 2 :]))))
    )
    assert tracker.store.files("run") == []
    print(f"gc removes {count - count // 2} with {len(sent)} requests in {together / alone:6.3f} times 64 at once")


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading and removing many results from S3.")
    parser.add_argument("--results", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds until the server gets a request")
    parser.add_argument("--some", type=int, default=100, help="results that are read one by one")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, running(Path(folder, "log")) as server:
        for delay in dict.fromkeys((options.delay, 0.0)):
            with delayed(server, delay) as base:
                print(f"each request takes {delay * 1000:g} ms more than the server on this machine")
                compare(server, base, options.results, min(options.some, options.results))


if __name__ == "__main__":
    main()
