"""Stages that need not run again: those that a resumed run has already finished, and those of earlier runs.

Finished stages of earlier runs are small files in a folder, named by their keys. A key is the hexadecimal digest of
everything that determines a stage's outputs; the caller provides it. Several runs may use one folder at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx_kfp.contract import protocol
from torchx_kfp.errors import TrackerError
from torchx_kfp.files import write_file
from torchx_kfp.local.cache.keys import stamp_of
from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.runs.events import StageFinished, decode, encode
from torchx_kfp.runs.result import StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE

#: The cache's name in an output folder. The dot distinguishes it from runs.
FOLDER = ".cache"
#: The version of the entries, raised when older ones must not be used any more.
VERSION = 3

_KEY = re.compile(r"[0-9a-f]{8,128}")


class Cache:
    """Finished stages in a folder, which is created when the first one is stored. Only its owner may enter it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        # Earlier versions let everybody read it.
        with contextlib.suppress(OSError):
            mode = self.folder.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & 0o077:
                self.folder.chmod(0o700)

    def get(self, key: str) -> StageResult | None:
        """Return the stage that was last stored under the key, with ``cached_from`` set; None if there is none.

        Also return None if its log or a file of its artifacts has been removed or changed since, or if the entry
        cannot be read.

        Raises:
            ValueError: the key is not hexadecimal.
        """
        path = self._path(key)
        try:
            entry = json.loads(path.read_bytes())
            if entry["version"] != VERSION or entry["key"] != key:
                return None
            event = decode(entry["stage"])
            if not isinstance(event, StageFinished) or entry["files"] != _stamps(stamp[0] for stamp in entry["files"]):
                return None
            return dataclasses.replace(event.result, cached_from=str(entry["run_id"]))
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(self, key: str, run_id: str, result: StageResult) -> None:
        """Store how a stage of the run ended, and replace any earlier entry.

        A full disk or a folder that cannot be written is not an error: the stage runs again next time.

        Raises:
            ValueError: the key is not hexadecimal, or the stage did not succeed.
        """
        path = self._path(key)
        if result.state is not State.SUCCEEDED:
            raise ValueError(f"only a stage that has succeeded can be cached: {result.name} ({result.state})")
        entry: dict[str, Any] = {
            "version": VERSION,
            "key": key,
            "run_id": run_id,
            "files": _files(result),
            "stage": encode(StageFinished(result)),
        }
        with contextlib.suppress(OSError):
            for folder in (self.folder, path.parent):
                folder.mkdir(0o700, parents=True, exist_ok=True)
            write_file(bytes(path), json.dumps(entry).encode(), durable=False, permissions=0o600)

    def _path(self, key: str) -> Path:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is not a key of a cache: it does not have 8 to 128 hexadecimal digits.")
        # Entries are spread over several folders, since there may be many.
        return self.folder / key[:2] / f"{key}.json"


class Memory:
    """Finished stages by their keys (see ``keys``).

    Args:
        run_id: the id of the run that asks.
        finished: how its stages ended before it was resumed, by their names.
        cache: the cache of all runs; None if it is not used.
        directory: the directory in which stages run. Relative tracker bases are relative to it.
    """

    def __init__(self, run_id: str, finished: Mapping[str, StageResult], cache: Cache | None, directory: str) -> None:
        self._run_id = run_id
        self._directory = directory
        self._finished = finished
        self._cache = cache
        self._recorded: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache, so that its keys are needed."""
        return self._cache is not None

    def kept(self, name: str, key: str) -> StageResult | None:
        """Return how the stage of this name ended in this run, if it succeeded with these inputs."""
        found = self._finished.get(name)
        if found is None or not found.state.is_success or found.key != key or not self._has_results(found):
            return None
        # The stage's folder and its files may have been removed since.
        paths = [*found.files, *([str(found.log_file)] if found.log_file is not None else [])]
        return found if all(os.path.exists(path) for path in paths) else None

    def cached(self, name: str, task: str, key: str, cache_key: str) -> StageResult | None:
        """Return how a stage with this ``cache_key`` ended in another run, as the result of this stage."""
        found = self._cache.get(cache_key) if self._cache is not None and cache_key else None
        # Two equal stages of one run both run, whichever ends first.
        if found is None or found.cached_from == self._run_id or not self._has_results(found):
            return None
        return dataclasses.replace(
            found, name=name, task=task, key=key, state=State.CACHED, duration=0.0, attempts=0, started_at=time.time()
        )

    def keep(self, cache_key: str, result: StageResult) -> None:
        """Store a stage for other runs if it and its application have succeeded, and all trackers have its records."""
        has_failed = bool(result.results and result.results.get(protocol.EXIT_CODE))
        is_complete = result.state is State.SUCCEEDED and not has_failed and not result.undelivered
        if self._cache is not None and cache_key and is_complete:
            self._cache.put(cache_key, self._run_id, result)

    def _has_results(self, result: StageResult) -> bool:
        """Tell whether the results that the stage recorded are still there.

        The run ids of a pipeline run are listed in one request and remembered, so that a store is asked once for each
        earlier run, not for each stage. A store that does not answer counts as empty.
        """
        base, run_id = result.tracker_base, result.run_id
        if not result.results or run_id is None or base is None:
            return True
        place = base, run_id.partition("/")[0]
        if place not in self._recorded:
            try:
                there = base if "://" in base else os.path.join(self._directory, base)
                self._recorded[place] = frozenset(FsspecResultTracker(there, patience=SHORT_PATIENCE).keys(place[1]))
            except TrackerError:
                self._recorded[place] = frozenset()
        return run_id in self._recorded[place]


def _files(result: StageResult) -> list[list[Any]]:
    """Return stamps of the stage's log and files, if they exist on this machine (a stage need not write them)."""
    made = [item for value in result.artifacts.values() for item in _items(value)]
    paths = [*result.files, *(artifact.path for artifact in made if artifact.is_here)]
    if result.log_file is not None:
        paths.append(str(result.log_file))
    return _stamps(path for path in paths if os.path.exists(path))


def _stamps(paths: Iterable[str]) -> list[list[Any]]:
    """Return the stamps of files, as lists, so that they equal those read from JSON.

    Raises:
        OSError: a file is missing.
    """
    return [list(stamp_of(path)) for path in paths]


def _items(value: Artifact | list[Artifact]) -> list[Artifact]:
    return value if isinstance(value, list) else [value]
