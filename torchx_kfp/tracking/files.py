"""What a store tells of a file without reading it."""

from __future__ import annotations

from typing import NamedTuple


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and when it was written, in seconds since 1970."""

    key: str
    size: int
    modified: float
