"""Files of a run to which another process adds lines."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from torchx_kfp.safe_files import open_regular

#: How many bytes are read at once. A line that is longer is not read: no process writes such a line.
_STEP = 64 << 20


def open_log(path: Path) -> BinaryIO:
    """Open the log of an attempt, ``<run>/<attempt>/log.txt``, without following links below the run's folder.

    Raises:
        OSError: it is missing, is not a regular file, or cannot be read.
    """
    return open(open_regular(str(path), str(path.parent.parent)), "rb")


class GrowingFile:
    """Reads the lines of a file that have been added since the last call. The file may not exist yet."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        """Begin at the first line; links below the ``root`` are not followed: by default, as in ``open_log``."""
        self.path = path
        self._root = str(path.parent.parent if root is None else root)
        self._offset = 0

    def read_new(self, *, is_whole: bool = False) -> list[bytes]:
        """Return the new lines, without their line breaks.

        Args:
            is_whole: whether nothing more will be added: what follows the last line break is a line, then.

        Raises:
            OSError: it is not a regular file, or cannot be read.
        """
        lines: list[bytes] = []
        try:
            with open(open_regular(str(self.path), self._root), "rb") as file:
                file.seek(self._offset)
                rest = b""
                while data := file.read(_STEP):
                    *new, rest = (rest + data).split(b"\n")
                    lines += new
                    if len(rest) >= _STEP:
                        break
        except FileNotFoundError:
            return []
        self._offset += sum(map(len, lines)) + len(lines)
        if is_whole and rest:
            lines.append(rest)
            self._offset += len(rest)
        return lines
