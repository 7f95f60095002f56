"""An S3 server over HTTP: moto's, in a separate process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True)
class S3Server:
    """An S3 server in a separate process, and the log of its requests."""

    url: str
    log: Path

    def requests(self, action: Callable[[], object]) -> list[str]:
        """Return the method and path of each request that the action makes."""
        before = len(self._lines())
        action()
        return self._lines()[before:]

    def _lines(self) -> list[str]:
        return [
            " ".join(found) for found in re.findall(r"(GET|PUT|HEAD|POST|DELETE) (\S*) HTTP/1.1", self.log.read_text())
        ]


@contextlib.contextmanager
def running(log: Path) -> Iterator[S3Server]:
    """Start a server on a free port, which writes its requests to the log; it ends with the block."""
    with log.open("w") as output:
        command = [sys.executable, "-m", "tests.s3_server"]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=REPOSITORY)
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
