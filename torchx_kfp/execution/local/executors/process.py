"""Run stages as processes, each in its own session; all its descendants end with it.

As in a container, the processes that a stage has started are killed when its first process has ended. They are found
by two signs: the session; and, for a process that has left the session, the stage's mark in its environment.

A process that has left the session and cleared its environment survives. If the runner itself is killed (SIGKILL), all
processes survive until the run is canceled (``cancel``). The kernel could end them with the runner (PR_SET_PDEATHSIG),
but would do so when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import decode_command
from torchx_kfp.execution.local.executors.executor import (
    INSTALL,
    NOT_FOUND,
    AttemptError,
    AttemptPlan,
    RunningStage,
    is_terminal,
)
from torchx_kfp.execution.local.output import Log

# Seconds for which killing is repeated, in case processes were being started at the same time. A killed process needs
# the CPU once more, which takes a while on a busy machine. A process that is stuck in the kernel (such as on a dead NFS
# server) never ends.
_KILL_SECONDS = 5.0
# Seconds to wait for more output after its last known writer has ended.
_PATIENCE = 2.0
_READ_SIZE = 1 << 16


class StageProcess(RunningStage):
    """A process and everything that it starts. An attached one stays in this process's group and session."""

    def __init__(self, plan: AttemptPlan) -> None:
        """Start it; the last part of ``RUN_MARK`` in its environment belongs to this process only.

        Raises:
            AttemptError: there is no such command, or it cannot be started with these words.
        """
        words, environ, attached = plan.process_command, plan.environ, plan.replaces is not None
        # They keep its GPUs taken even if the runner is killed.
        locks = [lock.fileno() for lock in plan.gpus.locks] if plan.gpus is not None else []
        try:
            super().__init__(words, attached=attached, env=dict(environ), cwd=plan.directory, pass_fds=locks)
        except (OSError, ValueError) as error:
            raise start_error(words, error) from None
        pid, is_marked = self.process.pid, _has_mark(environ.get(RUN_MARK, "").rpartition(":")[2])
        in_session = (lambda _: False) if attached else _in_session(pid)
        self._is_other = lambda other: other != pid and (in_session(other) or is_marked(other))
        # Processes that are asked to end; those that have left the session are not.
        self._is_asked = self._is_other if attached else in_session
        self._attached = attached
        # The program that starts an application again passes SIGTERM on, and no process is to get it twice: the others
        # are asked to end when the program has ended.
        self._alone = decode_command(words).retries > 0
        self._lock = threading.RLock()  # a signal handler may take it once more
        self._stop_at: float | None = None

    def wait(self, log: Log) -> int:
        """Copy the output to the log until the process ends, end everything that it started, and return its exit code.

        A process that survives, because it has left the session and cleared its environment, may hold the pipe open.
        """
        pid, how = self.process.pid, os.WEXITED | os.WNOWAIT
        is_at_end = log.read(self.pipe, lambda: os.waitid(os.P_PID, pid, how | os.WNOHANG) is not None)
        # The process is not reaped yet, so its id and its session cannot belong to another one.
        os.waitid(os.P_PID, pid, how)
        if (stop_at := self._stop_at) is not None:
            # The other processes of the session have the rest of the time to end.
            if self._alone:
                for other in _living(self._is_asked):
                    _send(other, signal.SIGTERM)
            is_at_end = is_at_end or log.read(self.pipe, lambda: time.monotonic() > stop_at)
        _kill_all(self._is_other)
        if not is_at_end:
            deadline = time.monotonic() + _PATIENCE
            log.read(self.pipe, lambda: time.monotonic() > deadline)
        with self._lock:
            return self.process.wait()

    def terminate(self, grace: float) -> None:
        """Ask all processes of the stage to stop within ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self.send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes of the stage."""
        self._stop_at = time.monotonic()
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the stage that have not received it."""
        if self._attached and number is signal.SIGINT and is_terminal(sys.stdin):
            return  # the terminal has sent it to the whole process group
        with self._lock:
            if self.process.returncode is None:
                alone = self._alone and number is signal.SIGTERM
                for pid in (self.process.pid, *(() if alone else _living(self._is_asked))):
                    _send(pid, number)


def kill_marked(mark: str) -> None:
    """Kill all other processes with the mark of a run or stage in their environment."""
    _kill_all(_has_mark(mark))


def _kill_all(is_wanted: Callable[[int], bool]) -> None:
    pause, deadline = 0.005, time.monotonic() + _KILL_SECONDS
    while found := list(_living(is_wanted)):
        for pid in found:
            _send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        # The kernel removes them soon.
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _in_session(leader: int) -> Callable[[int], bool]:
    """Return a predicate for the processes of a session, except its leader.

    Process groups would miss some: ``timeout`` creates a new group.
    """
    return lambda pid: pid != leader and os.getsid(pid) == leader


def _has_mark(mark: str) -> Callable[[int], bool]:
    """Return a predicate for processes with the mark of a run or stage in their environment."""
    prefix, wanted = f"{RUN_MARK}=".encode(), mark.encode()

    def has_mark(pid: int) -> bool:
        # This runs for every process of the machine whenever a stage ends, so the cheap search comes first, and
        # one read suffices for most.
        file = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            environ = part = os.read(file, _READ_SIZE)
            while len(part) == _READ_SIZE:
                part = os.read(file, _READ_SIZE)
                environ += part
        finally:
            os.close(file)
        if not wanted or wanted not in environ:
            return False
        values = (item.removeprefix(prefix) for item in environ.split(b"\0") if item.startswith(prefix))
        return any(wanted in value.split(b":") for value in values)

    return has_mark


def _living(is_wanted: Callable[[int], bool]) -> Iterator[int]:
    """Yield all other processes for which ``is_wanted`` is true, without zombies."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and is_wanted(pid):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                        yield pid


def start_error(command: Sequence[str], error: Exception) -> AttemptError:
    """Return the error of an attempt whose command could not be started."""
    word = command[0]
    if isinstance(error, UnicodeEncodeError):
        return AttemptError(
            "could not be started: its command or environment contains a character that UTF-8 cannot encode "
            f"({error.object[error.start]!r}, a surrogate)"
        )
    if isinstance(error, ValueError):
        return AttemptError("could not be started: a word of its command contains a NUL character")
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT and os.sep not in word:
        return AttemptError(f"could not be started: there is no command {word!r} on this machine. {INSTALL}", NOT_FOUND)
    if number == errno.ENOENT:
        return AttemptError(
            f"could not be started: there is no file {word!r} on this machine, or its interpreter is missing",
            NOT_FOUND,
        )
    if number in (errno.EACCES, errno.ENOEXEC):
        return AttemptError(f"could not be started: {word!r} is not a program that this machine can run", 126)
    if number == errno.E2BIG:
        longest = max(len(os.fsencode(word)) for word in command)
        return AttemptError(
            f"could not be started: its command is too long (its longest argument has {longest} bytes; the system "
            "accepts 128 KiB in one argument)"
        )
    return AttemptError(f"could not be started: {error}")


#: A variable that every process of a run has, so that processes that have left their stage's session can be found: the
#: run's mark, a colon, and the stage's mark. A run that is started inside a stage adds its own after another colon.
RUN_MARK = protocol.LOCAL_RUN

_PYTHONS = ("python", "python3")


def run_mark(folder: Path) -> str:
    """Return the mark of the run in this folder. It moves with the folder; a copy of the folder has another one."""
    status = os.stat(folder)
    return f"{status.st_dev:x}-{status.st_ino:x}"


def stage_environment(folder: Path, mark: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that all stages of a run share.

    They are the runner's variables, except those that describe a stage (the runner itself may run in one). ``python``
    and ``python3`` are the running interpreter. Python's output is unbuffered, to be visible while a stage runs.

    Args:
        folder: the run's folder. Scripts named ``python`` and ``python3`` are put there unless the interpreter's own
            folder has these names.
        mark: the run's mark.
        environ: the runner's environment variables.
    """
    configs = map(protocol.tracker_config_variable, protocol.decode_trackers(environ))
    own = {protocol.PIPELINE_RUN, protocol.POD_NAME, protocol.POD_UID, protocol.IMAGE}
    leaking = {*protocol.VARIABLES, *configs, *own, *protocol.OF_LAUNCHERS, *protocol.OF_REPLICAS}
    shared = {name: value for name, value in environ.items() if name not in leaking}
    shared.setdefault("PYTHONUNBUFFERED", "1")
    shared["PATH"] = os.pathsep.join([_python_folder(folder), shared.get("PATH") or os.defpath])
    outer = shared.get(RUN_MARK)
    shared[RUN_MARK] = f"{outer}:{mark}" if outer else mark
    return shared


def stage_mark(environ: Mapping[str, str], pod_name: str) -> str:
    """Return the value of ``RUN_MARK`` for one stage."""
    return f"{environ[RUN_MARK]}:{environ[RUN_MARK].rpartition(':')[2]}/{pod_name}"


def _python_folder(folder: Path) -> str:
    own = os.path.dirname(os.path.abspath(sys.executable))
    programs = [os.path.join(own, name) for name in _PYTHONS]
    if all(
        os.path.realpath(path) == os.path.realpath(sys.executable) and os.access(path, os.X_OK) for path in programs
    ):
        return own
    # Use a script: if it were started through a link, Python would not find its virtual environment.
    shims = folder.absolute() / "bin"
    shims.mkdir(exist_ok=True)
    for name in _PYTHONS:
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        shim.chmod(0o755)
    return str(shims)
