"""Files to which another process adds lines."""

from __future__ import annotations

from pathlib import Path


class GrowingFile:
    """Reads the lines of a file that have been added since the last call. The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read_new(self, *, is_whole: bool = False) -> list[bytes]:
        """Return the new lines, without their line breaks.

        Args:
            is_whole: whether nothing more will be added: what follows the last line break is a line, then.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                *lines, rest = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        if is_whole and rest:
            lines.append(rest)
            rest = b""
        self._offset += sum(map(len, lines)) + len(lines)
        return lines
