"""Attempts in this process's own terminal: they read from it, write to it, and get its signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchx_kfp.execution.local.executors.docker_stage import ContainerStage, DockerExecutor
from torchx_kfp.execution.local.executors.executor import describe_end
from torchx_kfp.execution.local.executors.process import (
    RUN_MARK,
    kill_marked,
    signal_marked,
    start_error,
)
from torchx_kfp.execution.runs.watch import ending_signals

if TYPE_CHECKING:
    from torchx_kfp.execution.local.executors.executor import AttemptPlan


class AttachedProcess:
    """A child process that shares this process's streams and its process group, so that Ctrl-C reaches it directly."""

    def __init__(self, words: Sequence[str], attempt: AttemptPlan) -> None:
        """Start the process.

        Raises:
            StartError: it cannot be started.
        """
        self._mark = attempt.environ.get(RUN_MARK, "").rpartition(":")[2]
        sys.stdout.flush()
        try:
            self._process = subprocess.Popen(words, env=dict(attempt.environ), cwd=attempt.directory)
        except (OSError, ValueError) as error:
            raise start_error(words, error) from None
        self.pipe = _closed_pipe()

    def wait(self, output_closed: threading.Event) -> int:
        """Wait for the end of the process, end everything that it started, and return its exit code."""
        with ending_signals(self._pass_on):
            code = self._process.wait()
        if self._mark:
            kill_marked(self._mark)
        return code

    def terminate(self, grace: float) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def describe(self, code: int, last_line: str) -> str:
        """Describe how a process with this exit code ended."""
        return describe_end(code, last_line, here=True)

    def _pass_on(self, number: int) -> None:
        if number != signal.SIGINT:
            self._process.send_signal(number)
        elif not _is_terminal(sys.stdin):
            # A terminal sends Ctrl-C to the whole process group.
            signal_marked(self._mark, signal.SIGINT)


class AttachedContainer(ContainerStage):
    """A container whose input and output are those of this process."""

    def __init__(self, executor: DockerExecutor, attempt: AttemptPlan, words: Sequence[str]) -> None:
        super().__init__(executor, attempt)
        self._words = words
        self._is_terminal = _is_terminal(sys.stdin) and _is_terminal(sys.stdout)

    def say(self, line: str) -> None:
        """Write a line to stderr."""
        print(line, file=sys.stderr, flush=True)

    def _start(self, has_init: bool) -> str:
        attempt, program = self._attempt, self._words
        identifier: str = self._client.create_container(
            attempt.image,
            entrypoint=list(program[:1]),
            command=list(program[1:]) or None,
            environment=dict(attempt.environ),
            user=self._plan.user,
            labels=self._executor.labels(attempt.stage),
            tty=self._is_terminal,
            stdin_open=True,
            host_config=self._host_config(has_init),
        )["Id"]
        try:
            streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._socket = self._client.attach_socket(identifier, params=streams)
            self._client.start(identifier)
        except BaseException:
            self._remove(identifier)
            raise
        self._container = identifier
        return identifier

    def _follow(self, identifier: str) -> int:
        """Copy between the container and this process's streams until the container ends; return its exit code."""
        from docker.utils.socket import frames_iter

        stopped, wake = os.pipe()
        writer = threading.Thread(target=self._copy_input, args=(stopped,), daemon=True)
        with ending_signals(lambda number: self._end(signal.Signals(number).name)), self._raw_terminal(identifier):
            writer.start()
            try:
                for stream, data in frames_iter(self._socket, tty=self._is_terminal):
                    _write(2 if stream == 2 else 1, data)
                code = int(self._client.wait(identifier, timeout=None)["StatusCode"])
            finally:
                os.write(wake, b"x")
                writer.join()
                for descriptor in (stopped, wake):
                    os.close(descriptor)
                self._container = None
                self._socket.close()
                self._remove(identifier)
        return code

    def _copy_input(self, stopped: int) -> None:
        connection = getattr(self._socket, "_sock", self._socket)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no input
            source = sys.stdin.fileno()
            while True:
                ready, _, _ = select.select([source, stopped], [], [])
                if stopped in ready:
                    return
                data = os.read(source, 1 << 16)
                if not data:
                    break
                connection.sendall(data)
            connection.shutdown(1)  # no more input

    @contextlib.contextmanager
    def _raw_terminal(self, identifier: str) -> Iterator[None]:
        """Leave keys such as Ctrl-C to the container's terminal, which gets the size of this one."""
        if not self._is_terminal:
            yield
            return
        before = termios.tcgetattr(sys.stdin)
        resized = signal.getsignal(signal.SIGWINCH)
        is_main = threading.current_thread() is threading.main_thread()

        def resize(*_: Any) -> None:
            size = os.get_terminal_size(sys.stdout.fileno())
            with contextlib.suppress(Exception):  # the container may have ended
                self._client.resize(identifier, size.lines, size.columns)

        resize()
        try:
            tty.setraw(sys.stdin)
            if is_main:
                signal.signal(signal.SIGWINCH, resize)
            yield
        finally:
            if is_main:
                signal.signal(signal.SIGWINCH, resized)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _closed_pipe() -> int:
    """Return the end of a pipe from which nothing can be read: the output goes to the terminal."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    return read_end


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
