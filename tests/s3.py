"""An S3 server over HTTP: moto's, in a separate process."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.serving import serving


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
    with serving([sys.executable, "-m", "tests.s3_server"], log) as url:
        yield S3Server(url, log)
