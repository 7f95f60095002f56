"""A run's folder while it runs: who runs it, what it was asked for, and what has happened so far.

What is in it besides the stages' folders:

- ``pipeline.yaml``: the compiled pipeline.
- ``run.json``: what the run was asked for.
- ``events.jsonl``: its events, a line each, written as they happen.
- ``lock``: locked (``flock``) by the process that runs the pipeline, for as long as it lives; its text is that
  process's id.

So whatever becomes of the process, the folder tells how far it came (see ``history``), and the run can go on from
there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.files import write_file
from torchx_kfp.runs.events import Event, decode, encode

#: Version of ``run.json``. One is added where a reader of the old form would go wrong.
VERSION = 1

PIPELINE_FILE = "pipeline.yaml"
REQUEST_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
LOCK_FILE = "lock"

# Seconds for which a lock is tried: somebody who looks whether it is held holds it for an instant.
_LOCK_PATIENCE = 1.0


class Journal:
    """Writes down what happens in a run. The run's folder belongs to this process until it is closed.

    A disk that is full, or fails, does not end the run: that is said once, and what finds no place is not recorded.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        """``create`` and ``reopen`` make one."""
        self.folder = folder
        self._warn = warn
        self._warned = False
        self._lock: int | None = None
        self._events: int | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        run_id: str,
        pipeline: str,
        text: str,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> Journal:
        """The journal of a new run.

        Args:
            folder: the run's folder, which is there and belongs to nobody else.
            run_id: the run's id.
            pipeline: the pipeline's name.
            text: the compiled pipeline.
            arguments: the values of all parameters.
            options: how it is run: what a resumed run shall have again.
            warn: is called once, with a sentence, if the run cannot be recorded.
        """
        journal = cls(folder, warn)
        request = {
            "version": VERSION,
            "run_id": run_id,
            "pipeline": pipeline,
            "created": time.time(),
            "arguments": dict(arguments),
            "options": dict(options),
        }
        # Each by itself: a file system without locks takes files.
        with journal._recording():
            journal._take_lock()
        with journal._recording():
            write_file(bytes(folder / PIPELINE_FILE), text.encode(), durable=False)
            write_file(bytes(folder / REQUEST_FILE), json.dumps(request, indent=2).encode(), durable=False)
        with journal._recording():
            journal._open_events()
        return journal

    @classmethod
    def reopen(cls, folder: Path, warn: Callable[[str], None]) -> Journal:
        """The journal of a run that goes on; a line that its last process left unfinished is removed.

        Args:
            folder: the run's folder.
            warn: is called once, with a sentence, if the run cannot be recorded.

        Raises:
            ArgumentError: the run still runs, or its folder cannot be written to.
        """
        journal = cls(folder, warn)
        try:
            journal._take_lock()
            journal._open_events()
            journal._repair()
        except BlockingIOError:
            journal.close()
            pid = read_pid(folder)
            raise ArgumentError(
                f"The run {folder.name} is still running{f' (process {pid})' if pid else ''}. Wait for its end, or end "
                f"it with 'torchx-kfp cancel {folder.name}'."
            ) from None
        except OSError as error:
            journal.close()
            raise ArgumentError(f"The run in {str(folder)!r} cannot go on: {error}.") from None
        return journal

    def write(self, event: Event) -> None:
        """Appends the event. A process that is killed meanwhile leaves this line unfinished, and no other."""
        if self._events is None:
            return
        with self._recording():
            line = json.dumps(encode(event)).encode() + b"\n"
            size = os.fstat(self._events).st_size
            written = 0
            try:
                # All at once, if the disk has place for it.
                while written < len(line):
                    written += os.write(self._events, line[written:])
            except OSError:
                if written:
                    os.ftruncate(self._events, size)
                raise

    def close(self) -> None:
        """Gives the run's folder back."""
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
    def _recording(self) -> Iterator[None]:
        """What goes wrong inside is said and no more: a run is worth more than its record."""
        try:
            yield
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if not self._warned:
                self._warned = True
                reason = explain(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self._warn(
                    f"What happens in this run cannot all be recorded in {self.folder}: {reason}. It goes on; it may "
                    "look unfinished later, and what is not recorded runs again if it is resumed."
                )

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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

    def _open_events(self) -> None:
        # To be read as well: reopening looks for the end.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._events = os.open(self.folder / EVENTS_FILE, flags, 0o666)

    def _repair(self) -> None:
        assert self._events is not None
        with open(self._events, "rb", closefd=False) as file:
            lines = file.read().splitlines(keepends=True)
        while lines and not is_event(lines[-1]):
            lines.pop()
        os.ftruncate(self._events, sum(map(len, lines)))
        if lines and not lines[-1].endswith(b"\n"):
            os.write(self._events, b"\n")


def is_event(line: bytes) -> bool:
    """Whether the line is whole, also if it is an event that this version does not know."""
    try:
        decode(json.loads(line))
    except (ValueError, RecursionError):
        return False
    return True


def is_running(folder: Path) -> bool:
    """Whether a process, on this machine or another one that shares the folder, is running the pipeline."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


def read_pid(folder: Path) -> int | None:
    """The id of the process that has last run the pipeline; None where none is recorded."""
    try:
        pid = int((folder / LOCK_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    # Signals to other numbers reach groups of processes, or all.
    return pid if pid > 0 else None


def is_runner(pid: int, folder: Path) -> bool:
    """Whether the process is one of this machine that has the run's lock open: its id may be another's by now."""
    with contextlib.suppress(OSError):
        lock = os.stat(folder / LOCK_FILE)
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), lock):
                    return True
    return False
