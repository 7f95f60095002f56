"""Run the replicas of a distributed stage as processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque

from torchx_kfp.contract.carried.replica_roles import (
    KEPT,
    Failure,
    begin_again,
    environment,
    exit_now,
    last_lines,
    say,
    show,
    tally,
    texts,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Seconds that replicas have to end after SIGTERM, on this machine.
GRACE = 10

#: The signals that end a stage, and those that it waits for.
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, *ENDING}


def run_here(spec: Any, words: Sequence[str], counts: Sequence[int], outputs: Any, /) -> int:
    """Run each replica as a process in a new session, as TorchX's local scheduler does.

    The first failure ends the others. Replicas that name the same port take turns with those of other stages.

    Returns:
        The exit code of the replica that failed first, or 128 + n if signal n ended it, or ended the stage.
    """
    # Signals are blocked and waited for: none is lost while replicas are being started.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    ports = sorted({port for role in spec["roles"] for port in role["ports"]})
    held = [hold_port(port) for port in ports]
    retries = spec.get("retries", 0)
    first = os.environ.get("TORCHX_JOB_ID", "")
    code = 0
    for attempt in range(max(spec["restarts"], retries) + 1):
        if attempt and retries:
            begin_again(spec, attempt + 1, code, outputs, first)
        elif attempt:
            say(f"starting all replicas again ({attempt} of {spec['restarts']})")
        code, stopped = Processes(spec, words, counts, mask).run()
        if not code or stopped:
            break
    for lock in held:
        lock.close()
    return code


def hold_port(port: int, /) -> socket.socket:
    """Wait until no other stage on this machine uses the port, and keep others from using it.

    The name of the socket is known only in this network, as the port is, and vanishes with the process.
    """
    waits = False
    while True:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0torchx-kfp-port-{port}")
            return lock
        except OSError:
            lock.close()
        if not waits:
            say(f"waiting for another stage on this machine that uses port {port}")
            waits = True
        ended = signal.sigtimedwait(ENDING, 0.1)
        if ended:
            exit_now(128 + ended.si_signo)


class Processes:
    """The replicas of a stage, which run once."""

    def __init__(self, spec: Any, words: Sequence[str], counts: Sequence[int], mask: Any, /) -> None:
        self._spec = spec
        self._words = words
        self._counts = counts
        #: The signals that are blocked in the replicas.
        self._mask = mask
        #: The role's number and the replica's index, by process id.
        self._running: dict[int, tuple[int, int]] = {}
        #: The replicas that have to succeed for the stage to succeed.
        self._needed: set[tuple[int, int]] = set()
        #: How often replicas of each role were started again, while the others went on.
        self._again = [0 for _ in counts]
        #: The threads that copy their output, and its last lines.
        self._readers: list[threading.Thread] = []
        self._last: dict[str, deque[bytes]] = {}
        #: The stage's exit code as soon as it is known, whether a signal has ended it, and which replica failed first.
        self._code: int | None = None
        self._stopped = False
        self._first = ""
        #: When replicas that are to end are killed.
        self._deadline = 0.0

    def _label(self, key: tuple[int, int], /) -> str:
        return f"{self._spec['roles'][key[0]]['name']}/{key[1]}"

    def _start(self, key: tuple[int, int], /) -> threading.Thread:
        """Start a replica; return the thread that will copy its output."""
        position, index = key
        role = self._spec["roles"][position]
        # This process has the variables of the first role.
        others = {name for name, parts in self._spec["roles"][0]["env"] if position and parts is None}
        child = subprocess.Popen(
            # If the application cannot be started, the shell says so and sets the exit code.
            ["sh", "-c", 'exec "$@"', "sh", *(texts(parts, self._words, str(index)) for parts in role["command"])],
            env={
                **{name: value for name, value in os.environ.items() if name not in others},
                "TORCHX_REPLICA_ID": str(index),
                "TORCHX_NUM_REPLICAS": str(self._counts[position]),
                "TORCHX_RANK0_HOST": "localhost",
                **environment(role, self._words, str(index)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._mask),
        )
        child.returncode = 0  # Popen must not wait for it
        self._running[child.pid] = key
        label = self._label(key)
        lines = self._last[label] = deque(maxlen=KEPT)
        self._readers.append(threading.Thread(target=copy_lines, args=(label, child.stdout, lines), daemon=True))
        return self._readers[-1]

    def _send(self, number: int, /) -> None:
        """Send a signal to the replicas. As in a container, only the first process of each gets it."""
        for pid in self._running:
            kill(pid, number)

    def run(self) -> tuple[int, bool]:
        """Run the replicas; return the exit code, and whether a signal to this process has ended the stage."""
        total = sum(self._counts)
        try:
            for position, replicas in enumerate(self._counts):
                for index in range(replicas):
                    self._start((position, index))
            # Not earlier: a process should not be forked while threads hold locks.
            for reader in self._readers:
                reader.start()
            self._needed = {
                key for key in self._running.values() if self._label(key).split("/")[0] in self._spec["success"]
            }
            self._wait(total)
        except (OSError, RuntimeError) as error:  # of a process or a thread
            started = f"{len(self._running)} of {total} replicas could be started on this machine"
            raise Failure(f"{started}: {error}; the stage's replicas=N can reduce their number") from None
        finally:
            for pid in self._running:
                kill(-pid, signal.SIGKILL)
        self._report(total)
        return self._code or 0, self._stopped

    def _wait(self, total: int, /) -> None:
        """Wait until all replicas have ended, and pass signals on to them."""
        told = ""
        while self._running:
            text = tally([self._label(key) for key in self._running.values()], total, total - len(self._running))
            caught = signal.sigtimedwait(SIGNALS, 0.5) if told else None
            if caught is None and self._code is None and told != text:
                told = text
                say(text)
            if caught and caught.si_signo != signal.SIGCHLD:
                self._send(caught.si_signo)
                if caught.si_signo in ENDING:
                    self._stopped = True
                    self._code = 128 + caught.si_signo if self._code is None else self._code
            if self._deadline and time.monotonic() > self._deadline:
                for pid in self._running:
                    kill(-pid, signal.SIGKILL)
            while self._running:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if not ended:
                    break
                pid = ended.si_pid
                if pid in self._running:
                    # Processes that it left running would keep its output open. Its number is not free before waitpid.
                    kill(-pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                if pid in self._running:
                    self._end(self._running.pop(pid), 128 + status % 128 if status % 128 else status // 256)

    def _end(self, key: tuple[int, int], code: int, /) -> None:
        """Take note of the end of a replica, start it again, or end the others."""
        if self._code is not None:
            return
        if not code:
            self._needed.discard(key)
            if self._needed:
                return
            if self._running:
                say("the stage has succeeded; ending the other replicas")
        else:
            how = f"{self._label(key)} failed with exit code {code}"
            most = self._spec["roles"][key[0]].get("restarts", 0)
            if self._again[key[0]] < most:
                self._again[key[0]] += 1
                say(f"{how}; starting it again ({self._again[key[0]]} of {most})")
                self._start(key).start()
                return
            self._first = self._label(key)
            say(f"{how}; ending the others" if self._running else how)
        self._code = code
        self._send(signal.SIGTERM)
        self._deadline = time.monotonic() + GRACE

    def _report(self, total: int, /) -> None:
        """Let the output be read to its end, and show the last lines of the replica that failed first."""
        patience = time.monotonic() + 2
        for reader in self._readers:
            reader.join(max(0.0, patience - time.monotonic()))
        first = self._first
        lines = last_lines(self._last[first], 8) if first else ()
        if first and (total > 1 or lines != list(self._last[first])[-8:]):
            # People look at the end of a log, where the others, or torchrun, may have printed something since.
            say(
                f"{first} failed{' first' * (total > 1)}, with exit code {self._code}"
                + "; its last lines:" * bool(lines)
            )
            for line in lines:
                show(f"  {first}", line)


def kill(pid: int, number: int, /) -> None:
    """Send a signal to a process, or to the group -pid, if it is still there."""
    with contextlib.suppress(OSError):
        (os.kill if pid > 0 else os.killpg)(abs(pid), number)


def copy_lines(label: str, stream: Any, last: deque[bytes], /) -> None:
    """Write the lines of a stream to the stage's log, each after the replica's name."""
    with stream:
        try:
            for line in iter(lambda: stream.readline(1 << 16), b""):
                last.append(line)
                show(label, line)
        except OSError:
            # Nobody reads the log: as with any program that writes to a closed pipe, the stage ends.
            kill(os.getpid(), signal.SIGTERM)
