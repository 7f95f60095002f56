"""Logs of stages on a KFP host: new lines of a pod, without those of the launcher with which KFP starts it.

The host sends the whole log each time, and never waits for more.
"""

from __future__ import annotations

import io
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
from torchx_kfp.execution.host.archived_logs import ArchivedLog
from torchx_kfp.execution.host.connection import V1ALPHA1, Connection
from torchx_kfp.execution.pipeline.walk import safe_name

#: The lines of KFP's launcher, in the form of klog: level, date, time, process, source file, text.
_KLOG = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +(\d+) ([\w.-]+\.go):\d+\] ?(.*)", re.DOTALL)
#: The source file of the launcher itself, if its lines are not the first ones.
_LAUNCHER = b"launcher_v2.go"
#: How the launcher begins its last line if it fails.
_FAILED = re.compile("^failed to execute (?:importer )?component: ")
#: How many bytes are cleaned at once.
_PIECE = 1 << 20
#: A log that takes longer than this (in seconds) is left alone for so many times as long: it is sent whole each time.
_LONG, _REST = 0.5, 9
#: How many logs are asked for at once.
LOGS_AT_ONCE = 8
#: The longest part of a log file's name that is made of the stage's.
_LONGEST = 150


class Cleaner:
    """Removes the lines of KFP's launcher from a log, which arrives in pieces of whole lines."""

    def __init__(self) -> None:
        #: The launcher's process: an application that is written in Go may print such lines, too.
        self._launcher: bytes | None = None
        self._in_block = False
        self._has_begun = False
        #: The launcher's last line about an error; empty without one.
        self.error = ""

    def clean(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines of the application."""
        return [part for line in lines for part in self._parts(line) if not self._is_launchers(part)]

    def _parts(self, line: bytes) -> list[bytes]:
        """Split a line that the application has not ended, so that the launcher's follows in it."""
        if self._launcher is None or self._in_block:
            return [line]
        places = (found.start() for found in _KLOG.finditer(line) if found[1] == self._launcher)
        place = next(places, 0)
        return [line[:place], line[place:]] if place else [line]

    def _is_launchers(self, line: bytes) -> bool:
        if self._in_block:
            # The text of the launcher's line goes on, indented, until the JSON object ends.
            self._in_block = line.rstrip() != b"}"
            return True
        found = _KLOG.match(line)
        if found and self._launcher is None and (not self._has_begun or found[2] == _LAUNCHER):
            self._launcher = found[1]
        self._has_begun = self._has_begun or bool(line.strip())
        if not found or found[1] != self._launcher:
            return False
        self._in_block = found[3].rstrip().endswith(b"{")
        if found[0][:1] in b"EF":
            self.error = _FAILED.sub("", clean_line(found[3]).strip())
        return True


class PodLog:
    """The log of one pod, and how much of it has been read."""

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        pod: str,
        *,
        raw: bool = False,
        archived: Callable[[str], ArchivedLog | None] = lambda pod: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Name the pod. Nothing is read yet.

        Args:
            connection: the host.
            run_id: the run.
            pod: the pod's name.
            raw: whether to keep the lines of KFP's launcher.
            archived: returns where the log of a pod that has ended is archived, if it is.
            clock: the time, in seconds.
        """
        self._connection = connection
        self._path = f"{V1ALPHA1}/runs/{quote(run_id, safe='')}/nodes/{quote(pod, safe='')}/log"
        self._run_id, self._pod = run_id, pod
        self._cleaner = Cleaner()
        self._is_raw = raw
        self._archived = archived
        self._clock = clock
        #: How many bytes have been read, and the first line of them.
        self._read, self._first = 0, b""
        #: When a log that takes long is to be asked for again.
        self._due = 0.0

    def read_new(self, *, is_over: bool) -> bytes:
        """Return the whole lines that have been added since the last call; none if a large log was read just now.

        Args:
            is_over: whether the pod has ended, so that its last line is whole even without a line break.

        Raises:
            HostError: the log cannot be read; the message names the way out.
        """
        began = self._clock()
        if not is_over and began < self._due:
            return b""
        try:
            data = self._connection.log(self._path)
        except (HostUnreachableError, HostCredentialsError, HostSettingsError):
            raise
        except HostError as error:
            data = self._from_archive(error, is_over=is_over)
        now = self._clock()
        self._due = now + _REST * (now - began) if now - began > _LONG else 0.0
        return self._added(data, is_over=is_over)

    def _from_archive(self, error: HostError, *, is_over: bool) -> bytes:
        """Return the log that Argo has archived; ``error`` says why the host does not give it."""
        archived = self._archived(self._pod) if is_over else None
        try:
            if archived is not None:
                return archived.read()
        except HostError as other:
            raise type(error)(self._explain(error, str(other))) from error
        raise type(error)(self._explain(error)) from error

    def _added(self, data: bytes, *, is_over: bool) -> bytes:
        first = data[: data.find(b"\n") + 1]
        if first and first != self._first:
            # Kubernetes begins a large log anew (by default, after 10 MiB), and shows only what comes after that.
            self._read, self._first = 0, first
        end = len(data) if is_over else data.rfind(b"\n") + 1
        new = data[self._read : end]
        self._read = max(self._read, end)
        if new and not new.endswith(b"\n"):
            new += b"\n"
        stream, cleaned = io.BytesIO(new), []
        # A list of all lines of a large log would take several times its size.
        while lines := stream.readlines(_PIECE):
            cleaned.append(b"".join(line + b"\n" for line in self._cleaner.clean([line[:-1] for line in lines])))
        return new if self._is_raw else b"".join(cleaned)

    @property
    def launcher_error(self) -> str:
        """The message of KFP's launcher about its failure, as far as the log was read; empty if it has not failed.

        It is ``exit status 3`` if the application has run and ended with that.
        """
        return self._cleaner.error

    def _explain(self, error: HostError, about_archive: str = "") -> str:
        link = self._connection.link(self._run_id)
        namespace = self._connection.settings.namespace or self._connection.settings.service_namespace
        # kubectl also finds a pod that the host has lost sight of; the UI also finds logs that Argo has archived.
        # The host's words go into a command that users copy.
        command = shlex.join(["kubectl", "logs", "-n", namespace, self._pod, "-c", "main"])
        ways = command + (f", or look at {link}" if link else "")
        why = "the host has no such log" if isinstance(error, HostNotFoundError) else "the host does not give it"
        if about_archive:
            why += f"; {about_archive}"
        return f"The log of the pod {self._pod} cannot be read, because {why}. Try: {ways}. ({error})"


def _temporary_folder() -> str:
    """Return the folder for temporary files, also if nothing can be written there."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"


@dataclass
class _LogFile:
    """The log of an attempt at a stage, and what of it is not in its file yet; a complete one is not read again."""

    stage: str
    log: PodLog
    unwritten: bytes = b""
    is_complete: bool = False
    is_readable: bool = True


class StageLogs:
    """The log files of a run's stages, in a folder that is removed at the end of the process."""

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        say: Callable[[str], object],
        *,
        raw: bool,
        archived: Callable[[str], ArchivedLog | None],
    ) -> None:
        """Name the run. Nothing is read yet.

        Args:
            connection: the host.
            run_id: the run.
            say: gets sentences about logs that cannot be read, each once.
            raw: whether to keep the lines of KFP's launcher.
            archived: returns where the log of a pod that has ended is archived, if it is.
        """
        self._connection, self._run_id, self._say, self._is_raw = connection, run_id, say, raw
        self._archived = archived
        #: The folder is made with the first log.
        self._folder = Path(_temporary_folder(), f"torchx-kfp-{secrets.token_hex(8)}")
        self._has_folder = False
        #: Several logs are fetched at once.
        self._lock = threading.Lock()
        self._logs: dict[Path, _LogFile] = {}
        self._said: set[str] = set()

    def add(self, stage: str, pod: str, *, is_of_kfp: bool = False) -> Path:
        """Return the log file of another attempt of a stage; all lines are KFP's if its pod runs nothing else."""
        # Indices tell the iterations of a loop apart; safe_name alone would make train[1,2] and train[1]-2 the same.
        name = f"{safe_name(stage)[:_LONGEST]}-{zlib.crc32(stage.encode()):08x}"
        path = self._folder / f"{name}-{len(self._logs) + 1}.log"
        raw = self._is_raw or is_of_kfp
        log = PodLog(self._connection, self._run_id, pod, raw=raw, archived=self._archived)
        self._logs[path] = _LogFile(stage, log)
        return path

    def fetch_all(self, wanted: Collection[tuple[Path, bool]]) -> bool:
        """Fetch several logs; the items are the arguments of ``fetch``."""
        if len(wanted) < 2:
            return all(self.fetch(*one) for one in wanted)
        with ThreadPoolExecutor(min(LOGS_AT_ONCE, len(wanted))) as pool:
            return all(list(pool.map(lambda one: self.fetch(*one), wanted)))

    def fetch(self, path: Path, is_over: bool) -> bool:
        """Add the new lines of a pod to a log file; return False if they cannot be read.

        Args:
            path: the log file, from ``add``.
            is_over: whether the pod has ended.
        """
        file = self._logs[path]
        if file.is_complete:
            return file.is_readable
        try:
            file.unwritten += file.log.read_new(is_over=is_over)
        except (HostUnreachableError, HostCredentialsError, HostSettingsError) as error:
            self.say_once("host", str(error))
            return False
        except HostError as error:
            if is_over:
                file.is_complete, file.is_readable = True, False
                self.say_once(str(path), f"{file.stage}: {error}")
            elif isinstance(error, HostRefusedError):
                # KFP's API server may not read the logs of pods, and Argo archives them when pods end.
                self.say_once(f"{path} so far", f"{file.stage}: The output comes after the pod's end. {error}")
            else:
                return True  # the container of a pod that has just begun is still being created
            return False
        try:
            self._append(path, file.unwritten)
        except OSError as error:
            self.say_once(
                "folder",
                f"Logs cannot be kept in {self._folder.parent}: {explain(error)}. Name another folder: TMPDIR=...",
            )
            return False  # the lines are written the next time
        file.unwritten, file.is_complete = b"", is_over
        return True

    def _append(self, path: Path, new: bytes) -> None:
        """Add all of the bytes to a log file, or none of them."""
        with self._lock:
            if not self._has_folder:
                self._folder.mkdir(mode=0o700)
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
                self._has_folder = True
        with path.open("ab", buffering=0) as file:
            size, rest = file.tell(), memoryview(new)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)
                raise

    def launcher_error(self, path: Path) -> str:
        """Return ``PodLog.launcher_error`` of a log that was fetched."""
        return self._logs[path].log.launcher_error

    def say_once(self, key: str, sentence: str) -> None:
        """Say a sentence, once for each key."""
        if key not in self._said:
            self._said.add(key)
            self._say(sentence)

    def close(self) -> None:
        """Remove the log files."""
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)
