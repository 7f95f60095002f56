"""The command line as a user calls it, without the time that imports take: forks of a process that has imported it.

Each call is a process with its own arguments, environment, directory and output. ``test_start`` tests the imports
themselves, in new processes. Other programs can be called in the same way, and Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import pty
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

#: The path of the installed program: `python -m` would put the current directory before the standard library.
PROGRAM = str(Path(sys.executable).parent / "torchx-kfp")
ENTRY = "torchx_kfp.__main__:main"
#: The modules that commands import sooner or later; ".*" is for those below.
MODULES = (
    "torchx_kfp.entrypoints.cli.*",
    "torchx_kfp.execution.host.*",
    "torchx_kfp.execution.local.*",
    "torchx_kfp.local",
    "torchx_kfp.execution.report.*",
    "torchx_kfp.authoring.*",
    "torchx_kfp.execution.model.workflow",
    "kfp.compiler",
    "kfp.kubernetes",
    "kfp.client",
    "torchx.components.dist",
    "s3fs",
    "pandas",
    "click.shell_completion",
    "click._textwrap",
    "google.protobuf.descriptor_pb2",
    "jinja2",
    "rich.live",
    "rich.table",
)


@dataclass
class Forked:
    """A process that goes on, and a connection that gets its status at its end."""

    pid: int
    connection: socket.socket
    returncode: int | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def send_signal(self, number: int) -> None:
        """Send it a signal; do nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code; None if it has not ended."""
        with contextlib.suppress(TimeoutError):
            return self.wait(0)
        return None

    def wait(self, seconds: float = 120) -> int:
        """Return the exit code.

        Raises:
            TimeoutError: it has not ended by then.
        """
        with self._lock:
            if self.returncode is None:
                if not select.select([self.connection], [], [], seconds)[0]:
                    raise TimeoutError(f"The process {self.pid} goes on after {seconds} s.")
                self.returncode = os.waitstatus_to_exitcode(int(self.connection.recv(100)))
                self.connection.close()
            return self.returncode


@dataclass
class Started:
    """A command that goes on, in a fork. Its stderr is known at its end."""

    stdout: TextIO
    _stderr: TextIO
    _process: Forked

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def poll(self) -> int | None:
        """Return the exit code; None if it has not ended."""
        return self._process.poll()

    def wait(self) -> int:
        """Return the exit code."""
        return self._process.wait()

    def communicate(self) -> tuple[str, str]:
        """Return the rest of stdout, and all of stderr, at the command's end."""
        out = self.stdout.read()
        self.wait()
        return out, self.stderr

    @property
    def stderr(self) -> str:
        """Its output on stderr until now."""
        self._stderr.seek(0)
        return self._stderr.read()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.wait()
        for each in (self.stdout, self._stderr):
            each.close()


class Ready:
    """A process that has imported a program."""

    def __init__(self, path: str, program: str) -> None:
        self.path = path
        self.program = program

    def python(
        self, words: Sequence[str], folder: Path, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in Python: ``-c PROGRAM`` or ``-m MODULE``, and its arguments."""
        return self.call(tuple(words), folder, environ, program=sys.executable)

    def call(
        self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str], *, program: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the program, or another one, in a fork."""
        command = [program or self.program, *words]
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
            open(os.devnull) as nothing,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            connection.settimeout(120)
            connection.connect(self.path)
            request = json.dumps([command, str(folder), dict(environ), False]).encode()
            socket.send_fds(connection, [request], [nothing.fileno(), out.fileno(), err.fileno()])
            pid = int(connection.recv(100))
            try:
                code = os.waitstatus_to_exitcode(int(connection.recv(100)))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def start(self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str]) -> Started:
        """Start the program in a fork, which goes on."""
        read, write = os.pipe()
        err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read after the command has ended)
        with open(os.devnull) as nothing:
            process = Forked(*self.fork(words, folder, environ, [nothing.fileno(), write, err.fileno()]))
        os.close(write)
        return Started(open(read, encoding="utf-8"), err, process)

    def in_terminal(
        self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str], width: int
    ) -> tuple[str, int]:
        """Run the program in a terminal of this width; return its output, without carriage returns, and its code."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        variables = {name: value for name, value in environ.items() if name != "COLUMNS"}
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), theirs, theirs]
            process = Forked(*self.fork(words, folder, {**variables, "TERM": "xterm"}, streams))
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux raises this when there is no writer any more
            while read := os.read(ours, 65536):
                shown += read
        os.close(ours)
        return shown.decode().replace("\r\n", "\n"), process.wait()

    def fork(
        self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str], streams: list[int]
    ) -> tuple[int, socket.socket]:
        """Start the program in a fork.

        Args:
            words: its arguments.
            folder: its current directory.
            environ: its environment.
            streams: the descriptors of its stdin, stdout and stderr; a terminal as stdin becomes its own.

        Returns:
            The process, and a connection that gets its status at its end.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(120)
        connection.connect(self.path)
        request = json.dumps([[self.program, *words], str(folder), dict(environ), True]).encode()
        socket.send_fds(connection, [request], streams)
        return int(connection.recv(100)), connection


@contextlib.contextmanager
def ready(
    entry: str = ENTRY,
    modules: Sequence[str] = MODULES,
    *,
    program: str = PROGRAM,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Ready]:
    """Start such a process, which ends with the block.

    Args:
        entry: the module and the function that are the program.
        modules: what the process imports; see ``MODULES``.
        program: the path of the program, which is its name.
        environ: the environment in which the process imports. Default: this process's.
    """
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        path = f"{folder}/socket"
        root = str(Path(__file__).parents[3])
        command = [
            sys.executable,
            "-c",
            f"import sys; sys.path.append({root!r}); from tests.entrypoints.cli import ready; ready.serve()",
        ]
        process = subprocess.Popen(
            [*command, path, entry, program, *modules], cwd=folder, stdout=subprocess.PIPE, text=True, env=environ
        )
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Ready(path, program)
        finally:
            process.kill()
            process.communicate()


def serve() -> None:
    """Import, then fork for each request."""
    from torchx_kfp.common.sdk import import_kfp

    path, entry, program, *names = sys.argv[1:]
    if any(name.partition(".")[0] == "kfp" for name in names):
        import_kfp()
    for name in names:
        package = importlib.import_module(name.removesuffix(".*"))
        if name.endswith(".*"):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    module, _, function = entry.partition(":")
    main = getattr(importlib.import_module(module), function)
    # In the installed program, too, its own folder comes first.
    sys.path[:] = [str(Path(program).parent), *sys.path[1:-1]]
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            called, folder, environ, goes_on = json.loads(request)
            # Another process waits for a command that goes on; it is a child of none that waits for it.
            waits = not goes_on or not _fork_apart()
            if waits:
                runs = main if called[0] == program else _python
                _run(runs, called, folder, environ, descriptors, connection, server)
            else:
                for descriptor in descriptors:
                    os.close(descriptor)
            connection.close()
            if waits and goes_on:
                os._exit(0)


def _fork_apart() -> int:
    """Fork a process whose parent does not wait for it; return 0 in that process."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return pid
    if os.fork():
        os._exit(0)
    # Whoever started this program may wait for the end of its output.
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    return 0


def _run(main, command, folder, environ, descriptors, connection, server) -> None:
    """Run the program in a fork, and tell the process and its status."""
    pid = os.fork()
    if not pid:
        server.close()
        connection.close()
        if os.isatty(descriptors[0]):
            os.setsid()
            fcntl.ioctl(descriptors[0], termios.TIOCSCTTY, 0)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _end(main, command, folder, environ)
    # The end of its output is that of the program.
    for descriptor in descriptors:
        os.close(descriptor)
    # A caller that has given up, after a timeout, does not get an answer.
    with contextlib.suppress(OSError):
        connection.send(str(pid).encode())
    code = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        connection.send(str(code).encode())


def _python() -> None:
    """Run a program like the interpreter does."""
    _, option, given, *words = sys.argv
    sys.argv[:] = [option, *words]
    sys.path[0] = os.getcwd() if option == "-m" else ""
    if option == "-m":
        runpy.run_module(given, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(given, "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))  # noqa: S102 (python -c)
    else:
        raise ValueError(f"{option}: only -c and -m can be run here")


def _end(main, command, folder, environ) -> None:
    """Run the program and end this process like the interpreter does."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = command
        try:
            sys.exit(main())
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
