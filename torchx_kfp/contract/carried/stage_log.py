"""Write to the log of a distributed stage, whose replicas have threads of the launcher that write, too."""

from __future__ import annotations

import os
import threading

#: Held while a line is written, so that lines do not mix. The handler of a signal may interrupt its holder.
LOCK = threading.RLock()


def write(stream: int, text: bytes, /) -> None:
    """Write the whole text to a descriptor."""
    with LOCK:
        while text:
            text = text[os.write(stream, text) :]


def say(*words: object) -> None:
    """Write a line to the stage's log."""
    try:  # noqa: SIM105 (shorter than contextlib)
        write(2, f"torchx-kfp: {' '.join(map(str, words))}\n".encode(errors="replace"))
    except OSError:  # nobody reads it
        pass
