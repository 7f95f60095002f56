"""Logs of stages on a KFP host, without the lines of KFP's launcher.

The host sends the whole log of a pod each time, and does not wait for more. A finished pod's log may be unavailable:
KFP's UI has logs that Argo archived.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torchx_kfp.common.text import clean_line
from torchx_kfp.errors import (
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostRefusedError,
    HostSettingsError,
    HostUnreachableError,
    explain,
)
from torchx_kfp.execution.host.connection import V1ALPHA1, Connection
from torchx_kfp.execution.pipeline.walk import safe_name

#: A line of Argo's executor, which runs KFP's launcher. Argo 3 quotes the time and writes the level in lower case.
_ARGO = re.compile(rb'time="?\d{4}-\d\d-\d\dT[\d:.]+Z"? level=[A-Za-z]+ msg=[^\n]* argo=true\b[^\n]*\n')
#: The executor's last lines if the launcher failed.
_ARGO_ERROR = re.compile(rb'(msg="sub-process exited"[^\n]*\n(?:time=[^\n]*\n)*)Error: exit status \d+\n?')
#: A line of KFP's launcher, in the form of klog: level, date, time, process, source file, text.
_KLOG = rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +(%b) (?:%b):\d+\] ?"
_FILE = rb"[\w.-]+\.go"
#: A launcher's line at the start of a log, and one after other lines.
_FIRST = re.compile(rb"\s*" + _KLOG % (rb"\d+", _FILE))
_LATER = re.compile(rb"^" + _KLOG % (rb"\d+", rb"launcher_v2\.go"), re.MULTILINE)
#: The text of such a line; a JSON object continues on indented lines.
_TEXT = rb"(?:([^\n]*)\{[ \t\r]*\n(?s:.*?)(?:^\}[ \t\r]*\n|\Z)|([^\n]*)\n)"
#: The end of the log of a Go program that panicked, or printed its stack.
_PANIC = re.compile(
    rb"^(?:((?:panic|fatal error): [^\n]*)\n(?:\[signal [^\n]*\n|\tpanic: [^\n]*\n|\n)*)?"
    rb"goroutine \d+ [^\n]*:\n(?s:.*)\Z",
    re.MULTILINE,
)
#: The beginning of the launcher's last line if it fails.
_FAILED = re.compile("^failed to execute (?:importer )?component: ")
#: A log that takes longer than this (in seconds) is not requested again for this multiple of the time: it is always
#: sent whole.
_LONG, _REST = 0.5, 9
#: The number of logs that are requested at once.
LOGS_AT_ONCE = 8
#: The most characters of a stage's name in the name of its log file.
_LONGEST = 150


def clean_log(data: bytes) -> tuple[bytes, str]:
    """Return the application's lines of a log, and the launcher's last message about an error, or "".

    Logs from Kubernetes also have lines of Argo's executor; archived logs do not. Applications written in Go may print
    lines like the launcher's, so only those of the launcher's process are removed. If the launcher panics, its stack is
    the end of the log.
    """

    def remove(found: re.Match[bytes]) -> bytes:
        # The application's last line may be unfinished.
        return b"" if found.string[max(0, found.start() - 1) : found.start()] in (b"", b"\n") else b"\n"

    data = _ARGO.sub(remove, _ARGO_ERROR.sub(rb"\1", data))
    first = _FIRST.match(data) or _LATER.search(data)
    if first is None:
        return data, ""
    # Lines before it stay: they were written before the launcher was known.
    before, data = data[: first.start()], data[first.start() :]
    error, last = "", None
    of_launcher = re.compile(_KLOG % (re.escape(first[1]), _FILE) + _TEXT, re.MULTILINE)
    for last in of_launcher.finditer(data):
        if last[0][:1] in b"EF":
            error = _FAILED.sub("", clean_line(last[2] or last[3] or b"").strip())
    end = last.end() if last is not None else 0
    stack = _PANIC.search(data, end)
    # A stack without a reason belongs to the launcher's last line.
    if stack is not None and (stack[1] or stack.start() == end):
        error = clean_line(stack[1]).strip() if stack[1] else error
        data = data[: stack.start()]
    return before + of_launcher.sub(remove, data), error


@dataclass
class _PodLog:
    """The log of an attempt's pod, and its file. A complete log is not read again."""

    stage: str
    pod: str
    is_raw: bool
    #: The log's first line, and the number of bytes of its text that were written.
    first: bytes = b""
    written: int = 0
    #: The time of the next request for a slow log.
    due: float = 0.0
    is_complete: bool = False
    is_readable: bool = True
    launcher_error: str = ""

    def new_text(self, data: bytes) -> bytes:
        """Return the lines of a log that are not in its file."""
        first = data[: data.find(b"\n") + 1]
        if first and first != self.first:
            # Kubernetes rotates large logs (by default, after 10 MiB), and returns only the newest part.
            self.written, self.first = 0, first
        cleaned, self.launcher_error = clean_log(data)
        return (data if self.is_raw else cleaned)[self.written :]


class StageLogs:
    """The log files of a run's stages, in a folder that is removed at the end of the process."""

    def __init__(self, connection: Connection, run_id: str, say: Callable[[str], object], *, raw: bool = False) -> None:
        """Create the files' folder lazily; nothing is read yet.

        Args:
            say: receives messages about logs that cannot be read, each once.
            raw: keep the lines of KFP's launcher.
        """
        self._connection, self._run_id, self._say, self._is_raw = connection, run_id, say, raw
        self._folder = Path(_temporary_folder(), f"torchx-kfp-{secrets.token_hex(8)}")
        #: Removes the folder, which is created with the first log.
        self._remove: Callable[[], object] | None = None
        #: Several logs are fetched at once.
        self._lock = threading.Lock()
        self._logs: dict[Path, _PodLog] = {}
        self._said: set[str] = set()

    def add(self, stage: str, pod: str, *, is_of_kfp: bool = False) -> Path:
        """Return the log file of a new attempt; ``is_of_kfp`` keeps all lines, because its pod runs only KFP's code."""
        # safe_name alone would map train[1,2] and train[1]-2 to the same name.
        name = f"{safe_name(stage)[:_LONGEST]}-{zlib.crc32(stage.encode()):08x}"
        path = self._folder / f"{name}-{len(self._logs) + 1}.log"
        self._logs[path] = _PodLog(stage, pod, self._is_raw or is_of_kfp)
        return path

    def fetch_all(self, wanted: Collection[tuple[Path, bool]]) -> bool:
        """Fetch several logs; items are arguments of ``fetch``."""
        if len(wanted) < 2:
            return all(self.fetch(*one) for one in wanted)
        with ThreadPoolExecutor(min(LOGS_AT_ONCE, len(wanted))) as pool:
            return all(list(pool.map(lambda one: self.fetch(*one), wanted)))

    def fetch(self, path: Path, is_over: bool) -> bool:
        """Append the pod's new complete lines to its log file; return False if they cannot be read.

        A slow log that was read recently is skipped.

        Args:
            path: the log file, from ``add``.
            is_over: whether the pod has ended: its last line is then complete even without a line break.
        """
        log, began = self._logs[path], time.monotonic()
        if log.is_complete:
            return log.is_readable
        if not is_over and began < log.due:
            return True
        try:
            data = self.ask(log.pod)
        except (HostUnreachableError, HostCredentialsError, HostSettingsError) as error:
            self.say_once("host", str(error))
            return False
        except HostError as error:
            if is_over:
                log.is_complete, log.is_readable = True, False
                self.say_once(str(path), f"{log.stage}: {error}")
            elif isinstance(error, HostRefusedError):
                # KFP's API server may lack access to the logs of pods; Argo archives them when pods end.
                why = "the host does not return logs of running pods"
                sentence = (
                    f"{log.stage}: The output appears when the pod ends: {why}. Until then, {self._ways(log.pod)}."
                )
                self.say_once(f"{path} so far", sentence)
            else:
                return True  # the pod's container is still being created
            return False
        if not data.endswith(b"\n"):
            data = data + b"\n" if is_over and data else data[: data.rfind(b"\n") + 1]
        new = log.new_text(data)
        try:
            self._append(path, new)
        except OSError as error:
            self.say_once(
                "folder",
                f"Logs cannot be written to {self._folder.parent}: {explain(error)}. Set another folder: TMPDIR=...",
            )
            return False  # they are written next time
        log.written += len(new)
        log.is_complete = is_over
        took = time.monotonic() - began
        log.due = began + (1 + _REST) * took if took > _LONG else 0.0
        return True

    def ask(self, pod: str) -> bytes:
        """Return the log of a pod from the host.

        Raises:
            HostError: it cannot be read; the message names alternatives.
        """
        try:
            path = f"{V1ALPHA1}/runs/{quote(self._run_id, safe='')}/nodes/{quote(pod, safe='')}/log"
            return self._connection.log(path)
        except (HostUnreachableError, HostCredentialsError, HostSettingsError):
            raise
        except HostError as error:
            why = "the host has no such log" if isinstance(error, HostNotFoundError) else "the host does not return it"
            raise type(error)(
                f"The log of the pod {pod} cannot be read: {why}. Try: {self._ways(pod)}. ({error})"
            ) from error

    def _ways(self, pod: str) -> str:
        """Return alternatives: kubectl for pods that the host cannot see, and the UI for logs archived by Argo."""
        link = self._connection.link(self._run_id)
        # Names from the host become a part of a command that users copy.
        command = shlex.join(["kubectl", "logs", "-n", self._connection.pods, pod, "-c", "main"])
        return command + (f", or look at {link}" if link else "")

    def _append(self, path: Path, new: bytes) -> None:
        """Append all the bytes to a log file, or none."""
        with self._lock:
            if self._remove is None:
                self._folder.mkdir(mode=0o700)
                self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        with path.open("ab", buffering=0) as file:
            size, rest = file.tell(), memoryview(new)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)
                raise

    def launcher_error(self, path: Path) -> str:
        """Return the launcher's message about its failure in a fetched log, or "".

        If the application itself exited with 3, the message is ``exit status 3``.
        """
        return self._logs[path].launcher_error

    def say_once(self, key: str, sentence: str) -> None:
        """Report a message, once for each key."""
        if key not in self._said:
            self._said.add(key)
            self._say(sentence)

    def close(self) -> None:
        """Remove the log files."""
        if self._remove is not None:
            self._remove()


def _temporary_folder() -> str:
    """Return the folder for temporary files, even if it is not writable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"
