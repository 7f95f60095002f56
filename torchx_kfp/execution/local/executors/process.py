"""Stages as processes: each leads its own session, and ends with everything that it started.

As in a container, the processes that a stage has started are killed when its first process has ended. They are found
by three signs: the session; for a process that has left the session, the stage's mark in its environment; and for one
that has also cleared its environment, a mark in a limit that every process inherits and hardly any uses: how long it
may keep a CPU with a real-time priority (RLIMIT_RTTIME; the mark is some ten thousand years).

A process survives if it has left the session, cleared its environment and changed that limit. If the runner itself is
killed (SIGKILL), all processes survive until the run is resumed or canceled. The kernel could end them with the runner
(PR_SET_PDEATHSIG), but it would end them as soon as the thread that started them has ended.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import decode
from torchx_kfp.execution.local.executors.executor import AttemptPlan, RunningStage, StartError, missing_module
from torchx_kfp.execution.runs.result import describe_exit

# Seconds for which killing is repeated, in case processes were being started at the same time. A killed process needs
# the CPU once more, which takes a while on a busy machine. A process that is stuck in the kernel (such as on a dead NFS
# server) never ends.
_PATIENCE = 5.0
#: Python's exit code for a script that it cannot open, among other things.
_USAGE = 2
#: The exit code of a shell, and of ``env``, for a command that they do not find.
_NOT_FOUND = 127
_INSTALL = "Install it, put its folder into PATH, or run the stage in its image (--docker)"
#: The shell program of ``dist.ddp``, and its script.
_TORCHRUN = re.compile(r"torchrun .*? (?!-)([^\s'\"]+\.py)(?: |$)")
#: A command line without anything that a shell would treat specially.
_PLAIN = re.compile(r"[\w./@%+=:,-]+( [\w./@%+=:,-]+)+")
_PYTHON = re.compile(r"python[\d.]*")
# Python's options without a value.
_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+")
#: The last line of a program that has imported another module than it meant.
_LACKS_NAME = re.compile(
    r"(?:ImportError: cannot import name .*? from (?:partially initialized module )?|AttributeError: .*?module )"
    r"'(?P<name>\w+)'.*?(?:\((?P<file>/[^()]*\.py)\))?$"
)
#: Modules of Python, this package and its dependencies, which a user's file must not hide.
_IMPORTED_BY_ALL = {*sys.stdlib_module_names, "fsspec", "torchx", "torchx_kfp"}
#: The names of the folders of Python's own modules, and of installed packages.
_OF_PYTHON = re.compile(r"(python|pypy)\d[\d.]*t?|(site|dist)-packages")
# A bit that is set in the limits of stages, and of no other processes; in microseconds.
_LIMIT = 1 << 58
# Held while a limit is marked: another stage that is started meanwhile would inherit the mark.
_starting = threading.Lock()


class StageProcess:
    """A running process. Its output is read from ``pipe``."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], directory: Path) -> None:
        """Start the command; the last part of ``RUN_MARK`` in its environment belongs to this process only.

        Raises:
            OSError: it cannot be started.
            ValueError: one of its words contains a NUL character.
        """
        read_end, write_end = os.pipe()
        try:
            with _marked_limit(environ.get(RUN_MARK, "")):
                self._process = subprocess.Popen(
                    command,
                    env=dict(environ),
                    cwd=directory,
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
        self._command, self._directory = command, directory
        self._workspaces = environ.get(protocol.WORKSPACES, "")
        self._mark = environ.get(RUN_MARK, "").rpartition(":")[2]
        # The program that starts an application again passes SIGTERM on, and no process is to get it twice: the others
        # are asked to end when the program has ended.
        self._alone = decode(command).retries > 0
        self._lock = threading.Lock()
        self._stop_at: float | None = None

    def wait(self, output_closed: threading.Event) -> int:
        """Wait for the end of the process, end everything that it started, and return its exit code.

        Args:
            output_closed: an event that is set when no process holds the output open any more.
        """
        pid = self._process.pid
        # The process is not reaped yet, so its id and its session cannot belong to another one.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if self._stop_at is not None:
            # The other processes of the session have the rest of the time to end.
            if self._alone:
                for other in _session(pid):
                    _send(other, signal.SIGTERM)
            output_closed.wait(max(0.0, self._stop_at - time.monotonic()))
        _kill_all(lambda: _session(pid))
        if self._mark:
            kill_marked(self._mark)
        with self._lock:
            return self._process.wait()

    def terminate(self, grace: float) -> None:
        """Ask all processes of the stage to end within ``grace`` seconds."""
        self._stop_at = time.monotonic() + grace
        self._signal(signal.SIGTERM, alone=self._alone)

    def kill(self) -> None:
        """Kill all processes of the stage."""
        self._stop_at = time.monotonic()
        self._signal(signal.SIGKILL)

    def describe(self, code: int, last_line: str) -> str:
        """Describe how a process with this exit code, and this last line of its log, ended."""
        return describe_process(self._command, self._directory, self._workspaces, code, last_line)

    def _signal(self, number: signal.Signals, *, alone: bool = False) -> None:
        with self._lock:
            if self._process.returncode is None:
                for pid in (self._process.pid, *(() if alone else _session(self._process.pid))):
                    _send(pid, number)


def _hiding_file(directory: Path, workspaces: str, last_line: str) -> Path | None:
    """Return the user's file that Python has imported in place of a module of others, if the last line says so.

    The user's files are those in the working directory, or in the workspace that was unpacked for the stage.
    """
    found = _LACKS_NAME.match(last_line)
    if found is None or found["name"] not in _IMPORTED_BY_ALL:
        return None
    name = f"{found['name']}.py"
    folders = [directory, *(Path(workspaces).glob("workspace-*") if workspaces else ())]
    if found["file"] is None:
        return next((file for folder in folders if (file := folder / name).is_file()), None)
    file = Path(found["file"])
    place = file.parent.resolve()
    # An environment in the working directory has Python's own modules.
    is_own = file.name == name and not _OF_PYTHON.fullmatch(place.name)
    is_here = any(place.is_relative_to(folder.resolve()) for folder in folders)
    return file if is_own and is_here and file.is_file() else None


def describe_process(command: Sequence[str], directory: Path, workspaces: str, code: int, last_line: str) -> str:
    """Describe how a process ended.

    Args:
        command: its command.
        directory: its working directory.
        workspaces: the folder in which it unpacks workspaces; empty if there is none.
        code: its exit code, negative for a signal.
        last_line: the last line of its log.
    """
    if code == _NOT_FOUND:
        way_out = next(filter(None, map(_split_entrypoint, decode(command).words)), _INSTALL)
        return f"{describe_exit(code)}: this machine lacks a command that it calls. {way_out}"
    if module := missing_module(last_line):
        return (
            f"{describe_exit(code)}: there is no Python module {module!r} here. Install it, start the run where it "
            "is (--directory), or run the stage in its image (--docker)"
        )
    if hiding := _hiding_file(directory, workspaces, last_line):
        return f"{describe_exit(code)}: {hiding} hides the Python module of this name. Give the file another name"
    script = _missing_script(command, directory, torchrun=code != _USAGE)
    if script is None:
        return describe_exit(code)
    return (
        f"{describe_exit(code)}: there is no {script!r} in {directory}, where stages run; --directory names "
        "another folder"
    )


def _split_entrypoint(word: str) -> str:
    """Say how to write an entrypoint that is a whole command line; empty if the word does not look like one."""
    program, *args = word.split(" ")
    if not args or not _PLAIN.fullmatch(word) or shutil.which(program) is None:
        return ""
    return (
        f"If {word!r} is an entrypoint, that is one program: its arguments belong in args, "
        f"entrypoint={program!r}, args={args!r}"
    )


def _missing_script(command: Sequence[str], directory: Path, *, torchrun: bool = False) -> str | None:
    """Return the script that Python, or torchrun in a shell program, should have run and that is not there."""
    words = decode(command).words
    if torchrun:
        scripts = (found[1] for word in words if (found := _TORCHRUN.match(word)))
        return next((script for script in scripts if not (directory / script).exists()), None)
    for place, program in enumerate(words):
        if _PYTHON.fullmatch(os.path.basename(program)):
            rest = itertools.dropwhile(_OPTION.fullmatch, words[place + 1 :])
            script = next(rest, "")
            if script.endswith(".py"):
                return None if (directory / script).exists() else script
    return None


def kill_marked(mark: str) -> None:
    """Kill every process, except this one, that has the mark of a run or stage in its environment or limits."""
    _kill_all(lambda: itertools.chain(_marked(mark), _limited(mark)))


def signal_marked(mark: str, number: signal.Signals) -> None:
    """Send a signal to every process, except this one, that has the mark of a run or stage in its environment."""
    for pid in _marked(mark):
        _send(pid, number)


def _marked(mark: str) -> Iterator[int]:
    prefix = f"{RUN_MARK}=".encode()
    return _living(lambda pid: _has_mark(pid, prefix, mark.encode()))


def _kill_all(find: Callable[[], Iterator[int]]) -> None:
    pause, deadline = 0.005, time.monotonic() + _PATIENCE
    while found := list(find()):
        for pid in found:
            _send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        # They disappear as soon as the kernel gets to them.
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _session(leader: int) -> Iterator[int]:
    """Find the living processes of a session, except its leader.

    Process groups would miss some: ``timeout`` creates a new group.
    """
    return _living(lambda pid: pid != leader and os.getsid(pid) == leader)


def _has_mark(pid: int, prefix: bytes, mark: bytes) -> bool:
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        environ = file.read()
    # This runs for every process of the machine whenever a stage ends, so the cheap search comes first.
    if mark not in environ:
        return False
    values = (item.removeprefix(prefix) for item in environ.split(b"\0") if item.startswith(prefix))
    return any(mark in value.split(b":") for value in values)


@contextlib.contextmanager
def _marked_limit(mark: str) -> Iterator[None]:
    """Mark this process's limit while a stage is started, so that the stage and its children inherit the mark."""
    *_, run_id, stage = ("", *mark.split(":"))
    if not stage or not hasattr(resource, "prlimit"):
        yield
        return
    with _starting:
        soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        if hard == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_RTTIME, (_LIMIT | _limit_of(run_id)[0] | _limit_of(stage)[1], hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def _limit_of(mark: str) -> tuple[int, int]:
    """Return the bits of the limit for a run's id (bits 30 to 57) and for a stage's mark (the 30 bits below)."""
    number = int.from_bytes(hashlib.sha256(mark.encode("utf-8", "surrogateescape")).digest()[:8], "big")
    return (number % 2**28) << 30, number % 2**30


def _limited(mark: str) -> Iterator[int]:
    """Find the living processes that have the mark of a run or stage in their limit."""
    if not hasattr(resource, "prlimit"):
        return iter(())
    run, part = _limit_of(mark)
    wanted = (_LIMIT | part, ~(2**58 - 2**30)) if "/" in mark else (_LIMIT | run, ~(2**30 - 1))
    # Another thread may have started a process of this session while the limit was marked.
    return _living(
        lambda pid: (
            resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] & wanted[1] == wanted[0] and os.getsid(pid) != os.getsid(0)
        )
    )


def _living(is_wanted: Callable[[int], bool]) -> Iterator[int]:
    """Yield the processes, except this one, that are wanted and not just zombies."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and is_wanted(pid):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                        yield pid


class ProcessExecutor:
    """Attempts as processes of this machine."""

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Start the process.

        Raises:
            StartError: there is no such command, or it cannot be started with these words.
        """
        try:
            return StageProcess(attempt.process_command, attempt.environ, attempt.directory)
        except (OSError, ValueError) as error:
            raise start_error(attempt.process_command, error) from None

    def image_id(self, image: str) -> str:
        """Return an empty id: a process has no image."""
        return ""


def start_error(command: Sequence[str], error: Exception) -> StartError:
    """Return what an error at the start of a command means for the attempt."""
    word = command[0]
    if isinstance(error, UnicodeEncodeError):
        return StartError(
            "could not be started: its command or environment contains a character that UTF-8 cannot encode "
            f"({error.object[error.start]!r}, a surrogate)"
        )
    if isinstance(error, ValueError):
        return StartError("could not be started: a word of its command contains a NUL character")
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT and (os.sep not in word or _split_entrypoint(word)):
        way_out = _split_entrypoint(word) or _INSTALL
        return StartError(f"could not be started: there is no command {word!r} on this machine. {way_out}", _NOT_FOUND)
    if number == errno.ENOENT:
        return StartError(
            f"could not be started: there is no file {word!r} on this machine, or its interpreter is missing",
            _NOT_FOUND,
        )
    if number in (errno.EACCES, errno.ENOEXEC):
        return StartError(f"could not be started: {word!r} is not a program that can be run here", 126)
    if number == errno.E2BIG:
        longest = max(len(os.fsencode(word)) for word in command)
        return StartError(
            f"could not be started: its command is too long (its longest argument has {longest} bytes; the system "
            "accepts 128 KiB in one argument)"
        )
    return StartError(f"could not be started: {error}")


#: A variable that every process of a run has, so that processes that have left their stage's session can be found: the
#: run's mark, a colon, and the stage's mark. A run that is started inside a stage adds its own after another colon.
RUN_MARK = protocol.LOCAL_RUN

_PYTHONS = ("python", "python3")


def run_mark(folder: Path) -> str:
    """Return the mark of the run in this folder, which moves with the folder; a copy of the folder has another one."""
    found = os.stat(folder)
    return f"{found.st_dev:x}-{found.st_ino:x}"


def stage_environment(folder: Path, mark: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that all stages of a run share.

    They are the runner's variables, except those that describe a stage (the runner itself may run in one). ``python``
    and ``python3`` are the running interpreter. Python does not buffer output, so that it is seen while a stage runs.

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
