"""The command line as a user calls it, without the time that imports take: forks of a process that has imported it.

Each call is a process with its own arguments, environment, directory and output. ``test_start`` tests the imports
themselves, in new processes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

#: The path of the installed program: `python -m` would put the current directory before the standard library.
PROGRAM = str(Path(sys.executable).parent / "torchx-kfp")
#: The modules that commands import sooner or later.
MODULES = ("kfp.compiler", "kfp.kubernetes", "torchx.components.dist", "s3fs", "pandas", "torchx_kfp.adapter")


class Ready:
    """A process that has imported the command line."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(
        self, words: tuple[str, ...], folder: Path, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line in a fork."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
            open(os.devnull) as nothing,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            connection.settimeout(120)
            connection.connect(self.path)
            request = json.dumps([words, str(folder), dict(environ)]).encode()
            socket.send_fds(connection, [request], [nothing.fileno(), out.fileno(), err.fileno()])
            pid = int(connection.recv(100))
            try:
                code = os.waitstatus_to_exitcode(int(connection.recv(100)))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess([PROGRAM, *words], code, out.read(), err.read())


@contextlib.contextmanager
def ready() -> Iterator[Ready]:
    """Start such a process, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        path = f"{folder}/socket"
        root = str(Path(__file__).parents[2])
        command = [
            sys.executable,
            "-c",
            f"import sys; sys.path.append({root!r}); from tests.cli import ready; ready.serve()",
        ]
        process = subprocess.Popen([*command, path], cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Ready(path)
        finally:
            process.kill()
            process.communicate()


def serve() -> None:
    """Import, then fork for each request."""
    from torchx_kfp.__main__ import main
    from torchx_kfp.sdk import import_kfp

    path = sys.argv[1]
    # In the installed program, too, its own folder comes first.
    sys.path[:] = [str(Path(PROGRAM).parent), *sys.path[1:-1]]
    import_kfp()
    importlib.import_module("torchx_kfp.cli")
    for name in MODULES:
        importlib.import_module(name)
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
            words, folder, environ = json.loads(request)
            pid = os.fork()
            if not pid:
                server.close()
                connection.close()
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                _end(main, words, folder, environ)
            for descriptor in descriptors:
                os.close(descriptor)
            # A caller that has given up, after a timeout, does not get an answer.
            with contextlib.suppress(OSError):
                connection.send(str(pid).encode())
            code = os.waitpid(pid, 0)[1]
            with contextlib.suppress(OSError):
                connection.send(str(code).encode())
            connection.close()


def _end(main, words, folder, environ) -> None:
    """Run the program and end this process like the interpreter does."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = [PROGRAM, *words]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
