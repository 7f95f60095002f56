"""Record a run in its folder: its process, options and events.

Besides the folders of stages, it contains:

- ``pipeline.yaml``: the compiled pipeline.
- ``run.json``: the arguments and options of the run.
- ``events.jsonl``: the run's events, one on each line, written as they happen.
- ``lock``: locked (``flock``) by the process that runs the pipeline for as long as that process lives; it contains the
  process's id.

However the process ends, the folder shows the progress of the run (see ``history``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torchx_kfp.common.safe_files import open_regular, read_bytes, write_file
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.events import Event, encode_event

#: The version of ``run.json``. It increases by one with each change that readers of the old form would misread.
VERSION = 1

PIPELINE_FILE = "pipeline.yaml"
REQUEST_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
LOCK_FILE = "lock"
#: The log in the folder of each attempt at a stage.
LOG_FILE = "log.txt"

#: The longest line of events, in bytes.
LONGEST_LINE = 64 << 20
#: A file with more lines than this that are not events is not the record of a run.
MOST_BAD_LINES = 1000

# Seconds for which the lock is tried: a process that checks whether it is taken holds it for an instant, which a busy
# machine makes longer.
_LOCK_PATIENCE = 5.0


@dataclass(frozen=True)
class CommandLine:
    """The command line that started a run: the words after the program's name, and the directory."""

    words: tuple[str, ...] = ()
    directory: str = ""


class Journal:
    """Records a run's events. The run's folder belongs to this process until the journal is closed.

    A full or failing disk does not end the run. The journal warns once, and drops the events that it cannot write.
    """

    def __init__(
        self,
        folder: Path,
        pipeline: Pipeline,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
        warn: Callable[[str], None],
        command: CommandLine | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Make a run's folder, named by its id, and open its journal.

        Args:
            folder: the run's folder.
            pipeline: the pipeline.
            arguments: the values of all parameters.
            options: its options.
            warn: receives one message if the run cannot be recorded.
            command: the command line that started it; None for a run from Python.
            exist_ok: whether the folder may be there already, if no other process uses it.

        Raises:
            ArgumentError: the folder cannot be made; or the disk is full, and the folder is removed.
        """
        make_folder(folder, "output_dir (--output-dir)", exist_ok=exist_ok)
        self.folder = folder
        self._warn = warn
        self._warned = False
        self._lock: int | None = None
        self._events: int | None = None
        request = {
            "version": VERSION,
            "run_id": folder.name,
            "pipeline": pipeline.name,
            "created": time.time(),
            "arguments": dict(arguments),
            "options": dict(options),
            **({"command": asdict(command)} if command is not None else {}),
        }
        # Each step may fail separately: a file system without locks can still store files.
        with self._recording():
            self._take_lock()
        try:
            with self._recording(OSError):
                write_file(folder / PIPELINE_FILE, pipeline.text.encode(), durable=False)
                write_file(folder / REQUEST_FILE, f"{json.dumps(request, indent=2)}\n".encode(), durable=False)
        except OSError as error:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)  # the run is unreadable without these files
            raise ArgumentError(
                f"The run cannot be recorded in {str(folder)!r}: {explain(error)}. Free space, or name another place "
                "for it (output_dir, or --output-dir on the command line)."
            ) from None
        with self._recording():
            self._events = self._open(EVENTS_FILE, os.O_WRONLY | os.O_APPEND)

    def write(self, event: Event) -> None:
        """Append the event. If the process is killed, only this line stays unfinished."""
        if self._events is None:
            return
        with self._recording():
            line = json.dumps(encode_event(event)).encode() + b"\n"
            size = os.fstat(self._events).st_size
            written = 0
            try:
                # This is one write, unless the disk is nearly full.
                while written < len(line):
                    written += os.write(self._events, line[written:])
            except OSError:
                if written:
                    os.ftruncate(self._events, size)
                raise

    def close(self) -> None:
        """Release the run's folder."""
        for descriptor in (self._events, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._events = self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _recording(self, *raised: type[Exception]) -> Iterator[None]:
        """Turn errors in the block, except ``raised``, into one warning: the run continues without its record."""
        try:
            yield
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if isinstance(error, raised):
                raise
            if not self._warned:
                self._warned = True
                reason = explain(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._warn(
                    f"Some events of this run cannot be recorded in {self.folder}: {reason}. The run continues, but "
                    "may look unfinished later."
                )

    def _take_lock(self) -> None:
        self._lock = self._open(LOCK_FILE, os.O_RDWR)
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    def _open(self, name: str, flags: int) -> int:
        return os.open(self.folder / name, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)


def make_folder(folder: Path, argument: str, *, exist_ok: bool = True) -> None:
    """Create a folder that an argument of ``run`` names, or raise ArgumentError."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=exist_ok)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"The folder {str(folder)!r} cannot be created: {reason}. Name another place for it: {argument}."
        ) from None


def is_running(folder: Path) -> bool:
    """Return whether a process is running the pipeline, on this machine or on another one that shares the folder.

    It is False on a file system without locks.
    """
    try:
        lock = open_regular(str(folder / LOCK_FILE), str(folder))
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def read_pid(folder: Path) -> int | None:
    """Return the id of the process that last ran the pipeline; None if none is recorded."""
    try:
        pid = int(read_bytes(str(folder / LOCK_FILE), str(folder), limit=32))
    except (OSError, ValueError):
        return None
    # A signal to 0 or a negative number would reach several processes. Linux has no larger ids.
    return pid if 0 < pid < 2**31 else None


def is_runner(pid: int, folder: Path) -> bool:
    """Return whether this process has the run's lock open. Otherwise, its id now belongs to another process."""
    with contextlib.suppress(OSError):
        lock = os.stat(folder / LOCK_FILE)
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), lock):
                    return True
    return False
