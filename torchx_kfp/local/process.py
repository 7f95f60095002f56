"""Processes of stages: each is the leader of a session of its own, and ends with everything that it started.

A stage is what a container would be: when its first process has ended, what that left behind is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

#: Seconds from asking a stage to end (SIGTERM) to ending it (SIGKILL).
GRACE = 10.0
# How often killing is repeated for processes that were being started meanwhile.
_ROUNDS = 20


class StageProcess:
    """A running process. ``pipe`` is the end of its output to read."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts the command.

        Raises:
            OSError: it cannot be started.
            ValueError: a word of it holds a NUL character.
        """
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pipe = read_end
        self._lock = threading.Lock()
        self._stop_at: float | None = None

    def wait(self, output_closed: threading.Event) -> int:
        """Waits for the end of the process and of all that it started; its exit code, negative for a signal.

        Args:
            output_closed: is set when nobody holds the process's output open any more.
        """
        pid = self._process.pid
        # Not reaped yet, so its number still means this process, and its session cannot be another's.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if self._stop_at is not None:
            # The others of the session were asked to end too: they have the rest of the time for it.
            output_closed.wait(max(0.0, self._stop_at - time.monotonic()))
        _kill_all(lambda: _session(pid))
        with self._lock:
            return self._process.wait()

    def terminate(self, grace: float = GRACE) -> None:
        """Asks all processes of the stage to end; they should within ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends all processes of the stage."""
        self._stop_at = time.monotonic()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process.returncode is None:
                for pid in (self._process.pid, *_session(self._process.pid)):
                    _send(pid, number)


def kill_marked(name: str, run_id: str) -> None:
    """Ends every process whose environment has the run's id in the variable ``name``, but this one."""
    _kill_all(lambda: _marked(f"{name}=".encode(), run_id.encode()))


def _kill_all(find: Callable[[], Iterator[int]]) -> None:
    for _ in range(_ROUNDS):
        found = list(find())
        if not found:
            return
        for pid in found:
            _send(pid, signal.SIGKILL)
        # They vanish as soon as the kernel comes to them.
        time.sleep(0.005)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _session(leader: int) -> Iterator[int]:
    """The living processes of a session, but its leader. Process groups do not do: ``timeout`` makes its own."""
    for pid in _processes():
        if pid == leader:
            continue
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader and _is_alive(pid):
                yield pid


def _marked(prefix: bytes, mark: bytes) -> Iterator[int]:
    for pid in _processes():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(prefix) and mark in variable[len(prefix) :].split(b":"):
                    if _is_alive(pid):
                        yield pid
                    break


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _is_alive(pid: int) -> bool:
    """Whether it is more than a zombie that waits for its parent."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
