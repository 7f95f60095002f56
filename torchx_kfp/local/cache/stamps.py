"""By what a changed file is known: its name, size and time of change."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TypeAlias

#: Path, size in bytes (of a folder: how many files), and the time of change in ns (of a folder: a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """The stamp of a file, or of all files in a folder.

    Raises:
        OSError: there is none.
        ValueError: it is no path.
    """
    path = Path(path)
    found = path.stat()
    if not path.is_dir():
        return str(path), found.st_size, found.st_mtime_ns
    digest, count = hashlib.sha256(), 0
    for place, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {file.st_size} {file.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            count += 1
    return str(path), count, int.from_bytes(digest.digest()[:7], "big")
