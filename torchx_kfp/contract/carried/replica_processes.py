"""Run the replicas of a distributed stage as processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from torchx_kfp.contract.carried.replica_roles import (
    ENDING,
    KEPT,
    Failure,
    last_lines,
    say,
    show,
    show_end,
    tally,
    texts,
)

#: Seconds that replicas have to end after SIGTERM, on this machine.
GRACE = 10
#: The signals that a stage waits for.
SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, *ENDING}


def run_here(spec: Any, words: Sequence[str], counts: Sequence[int], /) -> int:
    """Run each replica as a process in a new session, as TorchX's local scheduler does.

    The first failure ends all replicas. Stages whose replicas use the same port take turns.

    Returns:
        The exit code of the replica that failed first, or 128 + n if signal n ended it. If a signal ends the stage,
        exit.
    """
    # Signals are blocked and waited for: none is lost while replicas are being started.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with contextlib.ExitStack() as held:
        for port in sorted({port for role in spec["roles"] for port in role["ports"]}):
            held.enter_context(hold_port(port))
        return Processes(spec, words, counts).run()


def hold_port(port: int, /) -> socket.socket:
    """Wait until no other stage on this machine uses the port, and keep others from using it.

    Like the port, the socket's name belongs to this network, and is freed with the process.
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
            os._exit(128 + ended.si_signo)


class Process:
    """A replica: the role's number, its name in the log, and the last lines of its output."""

    def __init__(self, position: int, label: str, /) -> None:
        self.position = position
        self.label = label
        self.lines: deque[bytes] = deque(maxlen=KEPT)


class Processes:
    """One run of a stage's replicas."""

    def __init__(self, spec: Any, words: Sequence[str], counts: Sequence[int], /) -> None:
        self.spec = spec
        self.words = words
        self.counts = counts
        #: The replicas that run, by process id, and the threads that copy the output of all.
        self.running: dict[int, Process] = {}
        self.readers: list[threading.Thread] = []
        #: How many replicas have yet to succeed for the stage to succeed.
        pairs = zip(spec["roles"], counts)  # noqa: B905 (Python 3.8)
        self.needed = sum(count for role, count in pairs if role["name"] in spec["success"])
        #: How often replicas of each role were started again, while the others went on.
        self.again = [0 for _ in counts]
        #: The stage's exit code as soon as it is known, whether a signal has ended it, and which replica failed first.
        self.code: int | None = None
        self.stopped = False
        self.first: Process | None = None
        #: When replicas that are to end are killed.
        self.deadline = 0.0

    def start(self, position: int, index: str, /) -> threading.Thread:
        """Start a replica; return the thread that will copy its output."""
        role = self.spec["roles"][position]
        # Those without parts are this process's own, which has those of the first role.
        own = {name for name, parts in self.spec["roles"][0]["env"] if parts is None}
        others = own.difference(name for name, _ in role["env"])
        label = f"{role['name']}/{index}"
        gpus = json.loads(os.environ.get("TORCHX_KFP_REPLICA_GPUS", "{}"))
        child = subprocess.Popen(
            # If the application cannot be started, the shell says so and sets the exit code.
            ["sh", "-c", 'exec "$@"', "sh", *(texts(parts, self.words, index) for parts in role["command"])],
            env={
                **{name: value for name, value in os.environ.items() if name not in others},
                "TORCHX_REPLICA_ID": index,
                "TORCHX_NUM_REPLICAS": str(self.counts[position]),
                "TORCHX_RANK0_HOST": "localhost",
                **({"CUDA_VISIBLE_DEVICES": gpus[label]} if label in gpus else {}),
                **{name: texts(parts, self.words, index) for name, parts in role["env"] if parts is not None},
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
        )
        child.returncode = 0  # Popen must not wait for it
        replica = self.running[child.pid] = Process(position, label)
        self.readers.append(threading.Thread(target=copy_lines, args=(replica, child.stdout), daemon=True))
        return self.readers[-1]

    def send(self, number: int, /) -> None:
        """Send a signal to the replicas. As in a container, only the first process of each gets it."""
        for pid in self.running:
            kill(pid, number)

    def run(self) -> int:
        """Run the replicas, and return the stage's exit code."""
        total = sum(self.counts)
        try:
            for position, replicas in enumerate(self.counts):
                for index in range(replicas):
                    self.start(position, str(index))
            # Not earlier: a process should not be forked while threads hold locks.
            for reader in self.readers:
                reader.start()
            self.wait(total)
        except (OSError, RuntimeError) as error:  # of a process or a thread
            started = f"{len(self.running)} of {total} replicas could be started on this machine"
            raise Failure(f"{started}: {error}; the stage's replicas=N can reduce their number") from None
        finally:
            for pid in self.running:
                kill(-pid, signal.SIGKILL)
        self.report(total)
        if self.stopped:
            os._exit(self.code or 0)
        return self.code or 0

    def wait(self, total: int, /) -> None:
        """Wait for all replicas, and pass signals on to them."""
        told = ""
        while self.running:
            text = tally([replica.label for replica in self.running.values()], total, total - len(self.running))
            caught = signal.sigtimedwait(SIGNALS, 0.5) if told else None
            if caught is None and self.code is None and told != text:
                told = text
                say(text)
            if caught and caught.si_signo != signal.SIGCHLD:
                self.send(caught.si_signo)
                if caught.si_signo in ENDING:
                    self.stopped = True
                    self.code = 128 + caught.si_signo if self.code is None else self.code
            if self.deadline and time.monotonic() > self.deadline:
                for pid in self.running:
                    kill(-pid, signal.SIGKILL)
            while self.running:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if not ended:
                    break
                pid = ended.si_pid
                if pid in self.running:
                    # Processes that it left running would keep its output open. Its number is not free before waitpid.
                    kill(-pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                if pid in self.running:
                    self.end(self.running.pop(pid), 128 + status % 128 if status % 128 else status // 256)

    def end(self, replica: Process, code: int, /) -> None:
        """Record the end of a replica, and restart it or end the others."""
        if self.code is not None:
            return
        role = self.spec["roles"][replica.position]
        if not code:
            self.needed -= role["name"] in self.spec["success"]
            if self.needed:
                return
            if self.running:
                say("the stage has succeeded; stopping the other replicas")
        else:
            how = f"{replica.label} failed with exit code {code}"
            most = role.get("restarts", 0)
            if self.again[replica.position] < most:
                self.again[replica.position] += 1
                say(f"{how}; restarting it ({self.again[replica.position]} of {most})")
                self.start(replica.position, replica.label.split("/")[1]).start()
                return
            self.first = replica
            say(f"{how}; ending the others" if self.running else how)
        self.code = code
        self.send(signal.SIGTERM)
        self.deadline = time.monotonic() + GRACE

    def report(self, total: int, /) -> None:
        """Read the output to its end, and show the last lines of the replica that failed first."""
        patience = time.monotonic() + 2
        for reader in self.readers:
            reader.join(max(0.0, patience - time.monotonic()))
        if not self.first:
            return
        lines = last_lines(self.first.lines, 8)
        # People look at the end of a log, where the others, or torchrun, may have printed something since.
        if total > 1 or lines != list(self.first.lines)[-8:]:
            how = f"{self.first.label} failed{' first' * (total > 1)}, with exit code {self.code}"
            show_end(self.first.label, how, lines)


def kill(pid: int, number: int, /) -> None:
    """Send a signal to a process, or to the group -pid, if it still exists."""
    with contextlib.suppress(OSError):
        (os.kill if pid > 0 else os.killpg)(abs(pid), number)


def copy_lines(replica: Process, stream: Any, /) -> None:
    """Write a replica's output to the stage's log, each line prefixed with its name."""
    with stream:
        try:
            for line in iter(lambda: stream.readline(1 << 16), b""):
                replica.lines.append(line)
                show(replica.label, line)
        except OSError:
            # Nobody reads the log: as with any program that writes to a closed pipe, the stage ends.
            kill(os.getpid(), signal.SIGTERM)
