"""The output of a container, as the kubelet shows it."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO


class Log:
    """Lines with the time at which each was written."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, bytes]] = []
        self._ended = False
        self._changed = threading.Condition()

    def fill(self, output: BinaryIO) -> None:
        """Add the lines of a stream until it ends."""
        for line in output:
            with self._changed:
                self._lines.append((time.time_ns(), line))
                self._changed.notify_all()

    def end(self) -> None:
        """Say that nothing comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """Everything until now."""
        with self._changed:
            return b"".join(line for _, line in self._lines).decode()

    def read(self, options: Mapping[str, str]) -> Iterator[bytes]:
        """Yield what a request with these options gets: follow, timestamps, sinceTime, tailLines."""
        since = _nanoseconds(options["sinceTime"]) if "sinceTime" in options else 0
        follow, stamps = options.get("follow") == "true", options.get("timestamps") == "true"
        next_line = 0
        if "tailLines" in options:
            with self._changed:
                next_line = max(0, len(self._lines) - int(options["tailLines"]))
        while True:
            with self._changed:
                lines, ended = self._lines[next_line:], self._ended
                if not lines and follow and not ended:
                    self._changed.wait(1)
                    continue
            next_line += len(lines)
            for written, line in lines:
                if written >= since:
                    yield (_stamp(written) + b" " + line) if stamps else line
            if not follow or (ended and not lines):
                return


def _stamp(nanoseconds: int) -> bytes:
    """Return a time as the kubelet writes it: with all nine digits."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z".encode()


def _nanoseconds(text: str) -> int:
    whole, _, rest = text.replace("Z", "+00:00").partition(".")
    if rest:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        whole += rest[len(digits) :]
    else:
        digits = ""
    seconds = int(datetime.datetime.fromisoformat(whole).timestamp())
    return seconds * 10**9 + int((digits or "0").ljust(9, "0")[:9])
