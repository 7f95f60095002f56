"""Stores to test trackers on: a local directory, memory, and S3 over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fsspec.asyn import sync


def pytest_configure() -> None:
    """Programs that tests start end by Ctrl-C, also where the tests run in a background that ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class S3Server:
    """An S3 server in a process of its own, and the log of the requests that it got."""

    url: str
    log: Path

    def requests(self, action: Callable[[], object]) -> list[str]:
        """Method and path of each request that the action makes."""
        before = len(self._lines())
        action()
        return self._lines()[before:]

    def _lines(self) -> list[str]:
        return [
            " ".join(found) for found in re.findall(r"(GET|PUT|HEAD|POST|DELETE) (\S*) HTTP/1.1", self.log.read_text())
        ]


@pytest.fixture(scope="session")
def _s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"Running on (http://[\d.]+:\d+)", log.read_text())):
            assert process.poll() is None, f"the S3 server ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"the S3 server does not start: {log.read_text()}"
            time.sleep(0.1)
        yield S3Server(found[1], log)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def s3_server(_s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server on a free port, which fsspec's ``s3://`` reaches through the environment."""
    s3fs = pytest.importorskip("s3fs")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", _s3_process.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    # fsspec keeps file systems by their arguments, and the endpoint is none of them.
    s3fs.S3FileSystem.clear_instance_cache()
    yield _s3_process
    for filesystem in list(s3fs.S3FileSystem._cache.values()):
        # s3fs gives this a tenth of a second, and leaves connections open on a machine that is busy.
        if filesystem._pid == os.getpid() and filesystem._s3 is not None:
            sync(filesystem.loop, filesystem._s3creator.__aexit__, None, None, None, timeout=30)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3_base(s3_server: S3Server) -> str:
    """A tracker base in a new bucket."""
    import s3fs

    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/results"


@pytest.fixture
def memory_base() -> Iterator[str]:
    """A tracker base in memory, which is empty again afterwards."""
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://results"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
