"""Attempts in this process's own terminal: they read from it, write to it, and get its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchx_kfp.execution.local.executors.container import ContainerExecutor, ContainerStage
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
        """Prepare the process, which ``wait`` starts."""
        self._words, self._attempt = words, attempt
        self._mark = attempt.environ.get(RUN_MARK, "").rpartition(":")[2]
        self._process: subprocess.Popen[bytes] | None = None
        #: Signals that came while it was being started.
        self._early: list[int] = []
        self.pipe = _closed_pipe()

    def wait(self, output_closed: threading.Event) -> int:
        """Start the process, wait for its end, end everything that it started, and return its exit code.

        Raises:
            AttemptError: it cannot be started.
        """
        sys.stdout.flush()
        with ending_signals(self._pass_on):
            try:
                environ = dict(self._attempt.environ)
                self._process = subprocess.Popen(self._words, env=environ, cwd=self._attempt.directory)
            except (OSError, ValueError) as error:
                raise start_error(self._words, error) from None
            for number in self._early:
                self._pass_on(number)
            code = self._process.wait()
        if self._mark:
            kill_marked(self._mark)
        return code

    def terminate(self, grace: float) -> None:
        """Ask the process to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def describe(self, code: int, last_line: str) -> str:
        """Describe how a process with this exit code ended."""
        return describe_end(code, last_line, here=True)

    def _pass_on(self, number: int) -> None:
        if self._process is None:
            self._early.append(number)
        elif number != signal.SIGINT:
            self._process.send_signal(number)
        elif not _is_terminal(sys.stdin):
            # A terminal sends Ctrl-C to the whole process group.
            signal_marked(self._mark, signal.SIGINT)


class AttachedContainer(ContainerStage):
    """A container whose input and output are those of this process, also its terminal."""

    def __init__(self, executor: ContainerExecutor, attempt: AttemptPlan, words: Sequence[str]) -> None:
        super().__init__(executor, attempt)
        self._replayed = words

    def say(self, line: str) -> None:
        """Write a line to stderr."""
        print(line, file=sys.stderr, flush=True)

    def _words(self) -> Sequence[str]:
        return self._replayed

    def _options(self) -> list[str]:
        has_terminal = _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
        return [*super()._options(), "--interactive", *(["--tty"] if has_terminal else [])]

    def _begin(self) -> subprocess.Popen[bytes]:
        sys.stdout.flush()
        # With the usual keys, Ctrl-P would wait for another one.
        words = ["start", "--attach", "--interactive", "--detach-keys=ctrl-@,ctrl-^", self._container]
        return subprocess.Popen([self._engine.program, *words])

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        with ending_signals(lambda number: self._stop(signal.Signals(number))):
            return super()._end_of(process)


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
