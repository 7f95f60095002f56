"""What a store tells of a file without reading it."""

from __future__ import annotations

import stat
from typing import NamedTuple


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and when it was written, in seconds since 1970."""

    key: str
    size: int
    modified: float


def special_kind(mode: int) -> str:
    """What a path leads to, by its mode, where it is neither file nor folder: to open or to read that may never end."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return "FIFO" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
