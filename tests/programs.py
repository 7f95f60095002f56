"""Programs as a user calls them, without the time that imports take: in forks of a process that has imported them.

Each call is a process with its own arguments, environment, directory and streams. ``test_start`` tests the imports
themselves, in new processes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import select
import selectors
import shlex
import signal
import socket
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
from typing import IO, TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tests.terminal import Terminal

#: The path of the installed program: `python -m` would put the current directory before the standard library.
PROGRAM = str(Path(sys.executable).parent / "torchx-kfp")
#: What names a host, or proves who asks, on the machine that runs the tests.
OF_USER = ("TORCHX_KFP_", "KF_PIPELINES_", "KUBECONFIG", "KUBERNETES_", "COLUMNS", "LINES", "NO_COLOR", "XDG_CONFIG")
_HIDDEN = {(name, value) for name, value in os.environ.items() if name.startswith(OF_USER)}
_ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)", re.DOTALL)
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
Done = subprocess.CompletedProcess[str]


def results_in(printed: str) -> dict[str, dict[str, object]]:
    """Return the results by run id from what ``torchx-kfp results --json`` has printed."""
    return {row["execution_id"]: row["results"] for row in json.loads(printed)}


@dataclass
class Process:
    """A process that goes on, and what is known of its output."""

    pid: int
    #: It gets the status at the end.
    _connection: socket.socket
    stdout: TextIO = field(default_factory=io.StringIO)
    _stderr: TextIO = field(default_factory=io.StringIO)
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
                if not select.select([self._connection], [], [], seconds)[0]:
                    raise TimeoutError(f"The process {self.pid} goes on after {seconds} s.")
                self.returncode = os.waitstatus_to_exitcode(int(self._connection.recv(100)))
                self._connection.close()
            return self.returncode

    @property
    def stderr(self) -> str:
        """Its output on stderr until now."""
        self._stderr.seek(0)
        return self._stderr.read()

    def communicate(self) -> tuple[str, str]:
        """Return the rest of stdout, and all of stderr, at its end."""
        out = self.stdout.read()
        self.wait()
        return out, self.stderr

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self.wait()
        self.stdout.close()
        self._stderr.close()


@dataclass(frozen=True)
class Program:
    """A program in a folder, with variables besides those of the tests that say nothing of their user."""

    #: The socket of the process that has imported it.
    path: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    #: ``sys.executable`` runs ``-c PROGRAM`` and ``-m MODULE``.
    program: str = PROGRAM

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a command."""
        own = {name: value for name, value in os.environ.items() if (name, value) not in _HIDDEN}
        return {**own, "HOME": str(self.folder / "home"), "COLUMNS": "100", **self.variables, **more}

    def __call__(self, *words: str, folder: Path | None = None, anew: bool = False, **environ: str) -> Done:
        """Run a command to its end; in a new process if it shall be, or for variables of Python."""
        command, where, variables = [self.program, *words], folder or self.folder, self.environ(**environ)
        with (
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
            open(os.devnull) as nothing,
        ):
            if anew or any(name.startswith("PYTHON") for name in environ):
                code = subprocess.run(
                    command, cwd=where, env=variables, stdin=nothing, stdout=out, stderr=err, timeout=120, check=False
                ).returncode
            else:
                with self.fork(words, [nothing, out, err], variables, where) as process:
                    code = process.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def start(self, *words: str, **environ: str) -> Process:
        """Start a command that goes on. Its stdout is a pipe, and its stderr a file."""
        read, write = os.pipe()
        err = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read after the command has ended)
        with open(os.devnull) as nothing, open(write, "w") as out:
            process = self.fork(words, [nothing, out, err], self.environ(**environ))
        process.stdout, process._stderr = open(read, encoding="utf-8"), err  # noqa: SIM115 (as long as it goes on)
        return process

    def terminal(self, columns: int, *words: str, lines: int = 50, **environ: str) -> Terminal:
        """Start a command in a terminal of this size."""
        from tests.terminal import Terminal

        return Terminal(self, columns, lines, words, environ)

    def shell(self, line: str) -> Done:
        """Run a line like a shell does."""
        words, given = shlex.split(line), {}
        while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            given[assigned[1]] = assigned[2]
            del words[0]
        is_plain = not re.search(r"[<>|$*;&~]", re.sub("'[^']*'", "", line))
        if is_plain and words[0] == Path(self.program).name:
            return self(*words[1:], **given)
        command, environ = ["sh", "-c", line], self.environ()
        return subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=120, check=False
        )

    def fork(
        self,
        words: Sequence[str],
        streams: Sequence[int | IO[str] | IO[bytes]],
        environ: Mapping[str, str],
        folder: Path | None = None,
    ) -> Process:
        """Start a command with these as stdin, stdout and stderr; a terminal as stdin becomes its own."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(120)
        connection.connect(self.path)
        request = json.dumps([[self.program, *words], str(folder or self.folder), dict(environ)]).encode()
        socket.send_fds(connection, [request], [one if isinstance(one, int) else one.fileno() for one in streams])
        return Process(int(connection.recv(100)), connection)


@contextlib.contextmanager
def imported(
    entry: str = "torchx_kfp.__main__:main",
    modules: Sequence[str] = MODULES,
    *,
    program: str = PROGRAM,
    environ: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start a process that has imported a program, and ends with the block; give its socket.

    Args:
        entry: the module and the function that are the program.
        modules: what the process imports; see ``MODULES``.
        program: the path of the program, which is its name.
        environ: the environment in which the process imports. Default: this process's.
    """
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        root = str(Path(__file__).parents[1])
        code = f"import sys; sys.path.append({root!r}); from tests import programs; programs.serve()"
        command = [sys.executable, "-c", code, f"{folder}/socket", entry, program, *modules]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environ)
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield f"{folder}/socket"
        finally:
            process.kill()
            process.communicate()


def serve() -> None:
    """Import, then fork for each request, and tell each process and its status."""
    path, entry, program, *names = sys.argv[1:]
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, selectors.DefaultSelector() as selector:
        server.bind(path)
        server.listen()
        selector.register(server, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    connection, _ = server.accept()
                    request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
                    command, folder, environ = json.loads(request)
                    if not (pid := os.fork()):
                        for each in (server, selector, connection):
                            each.close()
                        _end(main if command[0] == program else _python, command, folder, environ, streams)
                    for stream in streams:
                        os.close(stream)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
                    told = str(pid)
                else:
                    pid, connection = key.data
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    told = str(os.waitpid(pid, 0)[1])
                # A caller that has given up, after a timeout, does not get an answer.
                with contextlib.suppress(OSError):
                    connection.send(told.encode())


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


def _end(main, command, folder, environ, streams) -> None:
    """Run the program and end this process like the interpreter does."""
    code = 1
    try:
        if os.isatty(streams[0]):
            os.setsid()
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
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
