"""The time to list keys by prefix among very many, without reading them.

    python -m benchmarks.listing [--keys N] [--s3]

The keys are on a local disk and, with --s3, also on moto's server, which runs in this process so that the objects can
be created quickly. It sorts all keys for each thousand that it lists, so nearly all of the measured time is its own.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from benchmarks.objects import new_base

RUNS = 100


def measure(base: str, count: int) -> None:
    from torchx_kfp.tracking import FsspecResultTracker

    tracker = FsspecResultTracker(base)
    for prefix, expected in ((None, count), ("run007", count // RUNS)):
        start = time.perf_counter()
        keys = tracker.keys(prefix)
        seconds = time.perf_counter() - start
        assert len(keys) == expected
        print(
            f"{base.partition('://')[0] if '://' in base else 'disk':5} {len(keys):7} of {count} keys: {seconds:7.3f} s"
        )


def on_s3(keys: list[str]) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        base = new_base("http://{}:{}".format(*server.get_host_and_port()))
        bucket, _, prefix = base.removeprefix("s3://").partition("/")
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            backend.put_object(bucket, f"{prefix}/{key}", b'{"x": 1}')
        measure(base, len(keys))
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Listing very many keys.")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--s3", action="store_true", help="on an S3 server as well: two minutes for 100,000 keys")
    options = parser.parse_args()
    keys = [f"run{number % RUNS:03}/train/{number:06}" for number in range(options.keys)]

    with tempfile.TemporaryDirectory() as folder:
        for run in range(RUNS):
            Path(folder, f"run{run:03}", "train").mkdir(parents=True)
        for key in keys:
            Path(folder, key).write_bytes(b'{"x": 1}')
        measure(folder, options.keys)
    if options.s3:
        on_s3(keys)


if __name__ == "__main__":
    main()
