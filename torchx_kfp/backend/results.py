"""Results of stages that ran on KFP, read from here: often possible, never worth a long wait.

A run's author and its host name the tracker base. So a directory of this machine, or a server, is read only if the user
has named that base, too: it could be one of the user's own files, or a service that only this machine reaches.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torchx_kfp.backend.executions import Sought, find_run_ids
from torchx_kfp.backend.settings import variable
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.text import printable, shorten, shown
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
from torchx_kfp.tracking.tracker import FsspecResultTracker

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: URLs of object stores. They name a bucket, and neither a server nor, with ``::``, another URL.
_OBJECT_STORE = re.compile(
    r"(?:(?:s3a?|gs|gcs|az|abfss?)://[\w.-]+|(?:az|abfss?)://[\w.$-]+@\w+\.(?:dfs|blob)\.core\.windows\.net)(?:/.*)?",
    re.ASCII,
)


class ResultReader:
    """Reads the results of stages from tracker bases. A base that cannot be read is a sentence in ``problems``."""

    def __init__(
        self,
        named: Collection[str] = (),
        *,
        patience: float = SHORT_PATIENCE,
        deadline: float = 10.0,
        again: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set limits, in seconds.

        Args:
            named: the tracker bases that the user has named.
            patience: how long a store is asked again after errors.
            deadline: how long a caller waits, whatever the store does.
            again: how long a base that could not be read is left alone.
            clock: the time.
        """
        self._named = named
        self._patience, self._deadline, self._again, self._clock = patience, deadline, again, clock
        self._problems: dict[str, str] = {}
        self._failed_at: dict[str, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about the bases that could not be read, and why."""
        return tuple(self._problems.values())

    def read(self, base: str, sought: Collection[Sought]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return the run id of each execution under the base that can be read now, by its name, and its results."""
        if not sought or self._clock() - self._failed_at.get(base, -self._again) < self._again:
            return {}
        if problem := why_not_read(base, self._named):
            return self._fail(base, problem)
        found: list[Mapping[str, tuple[str, Mapping[str, Any]]]] = []
        problems: list[str] = []

        def read() -> None:
            try:
                tracker = FsspecResultTracker(base, patience=self._patience)
                found.append(self._read(tracker, find_run_ids(tracker.store, sought), problems))
            except TorchxKfpError as error:
                problems.append(str(error))
            except Exception as error:  # of a driver of fsspec, or a library below it
                problems.append(f"{type(error).__name__}: {error}")

        # A library that hangs cannot be interrupted, only left behind.
        thread = threading.Thread(target=read, name="torchx-kfp-results", daemon=True)
        thread.start()
        thread.join(self._deadline)
        if thread.is_alive():
            return self._fail(base, f"it has not answered within {self._deadline:g} s")
        if problems:
            self._fail(base, shorten(printable(problems[0]), 400).rstrip("."))
        elif found:
            self._problems.pop(base, None)
        return found[0] if found else {}

    def _read(
        self, tracker: FsspecResultTracker, run_ids: Mapping[str, str], problems: list[str]
    ) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Read the results of run ids; what is wrong with a file is added to the problems."""
        results = tracker.get_many(run_ids.values(), corrupt=lambda error: problems.append(str(error)))
        return {name: (run_id, results[run_id]) for name, run_id in run_ids.items() if run_id in results}

    def _fail(self, base: str, why: str) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        self._failed_at[base] = self._clock()
        self._problems[base] = missing(base, why)
        return {}


class NoResults(ResultReader):
    """Reads no results, for those who do not show any."""

    def read(self, base: str, sought: Collection[Sought]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return nothing."""
        del base, sought
        return {}


class RunIdReader(ResultReader):
    """Finds run ids, for those who read the results themselves."""

    def _read(
        self, tracker: FsspecResultTracker, run_ids: Mapping[str, str], problems: list[str]
    ) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        del tracker, problems
        return {name: (run_id, {}) for name, run_id in run_ids.items()}


def missing(base: str, why: str) -> str:
    """Return the sentence about a base that cannot be read."""
    return f"Results are missing: the tracker base {shown(base)} cannot be read here: {why}."


def why_not_read(base: str, named: Collection[str]) -> str:
    """Say why a base that a run names is not read on this machine; empty if it is.

    Args:
        base: the base.
        named: the bases that the user has named.
    """
    scheme = _SCHEME.match(base)
    protocol = scheme[1].lower() if scheme else "file"
    if protocol == "memory":
        return "it is in the memory of the stages' processes"
    if _OBJECT_STORE.fullmatch(base) and "::" not in base:
        return ""
    is_local = protocol in ("file", "local")
    if is_local and not os.path.isabs(_place(base)):
        return "it is relative to the directory in which the stages run"
    if _place(base) not in map(_place, named):
        where = "a directory of the pods" if is_local else "not in an object store"
        when = "this machine has the same volume there" if is_local else "you trust it"
        command = shorten(printable(shlex.join(["export", f"{variable('tracker_base')}={base}"])), 300)
        return f"it is {where}, and only the run names it. Use s3://bucket/results or, if {when}, name it: {command}"
    if is_local and not os.path.isdir(_place(base)):
        return "there is no such directory. Mount the same volume here at this path, or use s3://bucket/results"
    return ""


def _place(base: str) -> str:
    """Return a base so that two ways to write it are the same."""
    return re.sub(r"^(?:file|local)://", "", base).rstrip("/")
