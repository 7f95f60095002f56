"""Servers that tests start as separate processes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
#: Seconds until a server answers, on a busy machine.
PATIENCE = 240


@contextlib.contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[str]:
    """Start a program that serves HTTP, and end it with the block.

    Args:
        command: the program; like werkzeug, it says on which address it is running.
        log: the file for its output.

    Returns:
        Its URL.
    """
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=REPOSITORY)
    try:
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(r"Running on (http://[\d.]+:\d+)", log.read_text())):
            assert process.poll() is None, f"the server ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"the server does not start: {log.read_text()}"
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait()
