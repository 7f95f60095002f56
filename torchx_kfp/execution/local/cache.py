"""Stages that need not run again: those of the run that is resumed, and those of other earlier runs.

In a run that is resumed, a stage of a loop that has succeeded is kept if the digest of its inputs is the same. In the
cache between runs, a stage has a key, which is equal for two stages that would produce the same outputs, as far as this
can be determined. KFP's backend considers the image, the command and the values of the
inputs, but not the environment; the code is in the image. Here, the environment counts as well, and so does the code
that a process finds on this machine (see ``pipeline.used_files``).

Finished stages of earlier runs are small files in a folder, named by their keys. Several runs may use one folder at
once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torchx_kfp.common.safe_files import read_bytes, walk, write_file
from torchx_kfp.contract import protocol
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_artifact
from torchx_kfp.execution.pipeline.spec import Component, Task
from torchx_kfp.execution.pipeline.walk import indices_of, without_indices
from torchx_kfp.execution.runs.events import StageFinished, decode, encode
from torchx_kfp.execution.runs.journal import LONGEST_LINE
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import Recorder

#: A path, its size in bytes (for a folder, the number of its files), and the time of its last change in ns (for a
#: folder, a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]
#: The version of the keys, raised when older ones must not match any more.
_VERSION = 2


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a file, or of all files in a folder.

    Raises:
        OSError: the file does not exist.
        ValueError: the text is not a path.
    """
    path = Path(path)
    found = path.stat()
    if not path.is_dir():
        return str(path), found.st_size, found.st_mtime_ns
    digest, count = hashlib.sha256(), 0
    for place, folders, names in walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {file.st_size} {file.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            count += 1
    return str(path), count, int.from_bytes(digest.digest()[:7], "big")


def input_digest(inputs: Mapping[str, Any]) -> str:
    """Return a digest of the values of all inputs, including artifacts, as hexadecimal digits."""
    return _digest({name: _input(value) for name, value in inputs.items()})


def cache_key(
    task: Task,
    component: Component,
    inputs: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    surroundings: Sequence[Any],
) -> str:
    """Return the key of a stage in the cache, as hexadecimal digits.

    Args:
        task: the task. If its author has chosen a key (``set_caching_options``), it replaces the command and inputs.
        component: the component that the task runs.
        inputs: the values of all inputs, including artifacts.
        environ: environment variables that the pipeline sets, or the user sets for it.
        surroundings: everything else that determines what the stage does.
    """
    container = component.container
    outputs = {name: kind.title for name, kind in component.artifact_outputs.items()}
    content: dict[str, Any] = {"version": _VERSION, "outputs": [dict(component.outputs), outputs]}
    if task.cache_key:
        content["chosen"] = task.cache_key
    else:
        content |= {
            "image": container.image if container is not None else "",
            "command": [*container.command, *container.args] if container is not None else [],
            "environ": dict(environ),
            "inputs": {name: [_input(value), _artifact_stamps(value)] for name, value in inputs.items()},
            "surroundings": list(surroundings),
        }
    return _digest(content)


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _input(value: Any) -> Any:
    if not is_artifact(value):
        return {"value": value}
    return [(artifact.type.title, artifact.uri, dict(artifact.metadata)) for artifact in artifacts_in(value)]


def _artifact_stamps(value: Any) -> list[Any]:
    """Return stamps of artifacts that are files here: one that no stage wrote (an importer's) may have changed."""
    stamps: list[Any] = []
    for artifact in artifacts_in(value):
        try:
            stamps.append(stamp_of(artifact.path) if artifact.is_here else None)
        except (OSError, ValueError):
            stamps.append(None)
    return stamps


#: The cache's name in an output folder. The dot distinguishes it from runs.
FOLDER = ".cache"
#: The version of the entries, raised when older ones must not be used any more.
VERSION = 3

_KEY = re.compile(r"[0-9a-f]{8,128}")


class Cache:
    """Finished stages in a folder, which is created when the first one is stored. Only its owner may enter it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> StageResult | None:
        """Return the stage that was last stored under the key, with ``cached_from`` set; None if there is none.

        Also return None if its log or a file of its artifacts has been removed or changed since, or if the entry
        cannot be read.

        Raises:
            ValueError: the key is not hexadecimal.
        """
        path = self._path(key)
        try:
            entry = json.loads(read_bytes(str(path), limit=LONGEST_LINE))
            if entry["version"] != VERSION or entry["key"] != key:
                return None
            event = decode(entry["stage"])
            if not isinstance(event, StageFinished) or entry["files"] != _stamps(stamp[0] for stamp in entry["files"]):
                return None
            return dataclasses.replace(event.result, cached_from=str(entry["run_id"]))
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Hold off gc until the caller has recorded what it takes from earlier runs."""
        with locked(self.folder, fcntl.LOCK_SH):
            yield

    def put(self, key: str, run_id: str, result: StageResult) -> None:
        """Store how a stage of the run ended, and replace any earlier entry.

        A full disk, a folder that cannot be written and a file that goes meanwhile are not errors: the stage runs
        again next time.

        Raises:
            ValueError: the key is not hexadecimal, or the stage did not succeed.
        """
        path = self._path(key)
        if result.state is not State.SUCCEEDED:
            raise ValueError(f"only a stage that has succeeded can be cached: {result.name} ({result.state})")
        # The files may change meanwhile: other processes write what a stage has registered.
        with contextlib.suppress(OSError):
            entry: dict[str, Any] = {
                "version": VERSION,
                "key": key,
                "run_id": run_id,
                "files": _stamps(path for path in _paths(result) if os.path.exists(path)),
                "stage": encode(StageFinished(result)),
            }
            for folder in (self.folder, path.parent):
                folder.mkdir(0o700, parents=True, exist_ok=True)
            write_file(path, json.dumps(entry).encode(), durable=False, permissions=0o600)

    def _path(self, key: str) -> Path:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is not a key of a cache: it does not have 8 to 128 hexadecimal digits.")
        # Entries are spread over several folders, since there may be many.
        return self.folder / key[:2] / f"{key}.json"


@contextlib.contextmanager
def locked(folder: Path, operation: int) -> Iterator[None]:
    """Hold the lock of a cache's folder: shared to take stages from runs, exclusive to remove runs.

    Without a cache, or on a file system without locks, nothing is locked.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, operation)
        yield


class EarlierResults:
    """Finished stages of earlier runs.

    Args:
        run_id: the id of the run that asks.
        reusable: how those stages of the run that it resumes ended that are kept if their inputs are the same.
        cache: the cache of all runs; None if it is not used.
        directory: the directory in which stages run. Relative tracker bases are relative to it.
    """

    def __init__(self, run_id: str, reusable: Mapping[str, StageResult], cache: Cache | None, directory: str) -> None:
        self._run_id = run_id
        self._directory = directory
        self._reusable = reusable
        self._cache = cache
        #: How stages ended, also by names without some of the last indices.
        self._executions: dict[tuple[str, tuple[int, ...]], list[StageResult]] = {}
        for end in reusable.values():
            path, indices = without_indices(end.name), indices_of(end.name)
            for count in range(len(indices) + 1):
                self._executions.setdefault((path, indices[:count]), []).append(end)
        self._recorded: dict[tuple[str, str], frozenset[str]] = {}

    def taking(self) -> contextlib.AbstractContextManager[None]:
        """Hold off gc until the caller has recorded what it takes from the cache."""
        return self._cache.taking() if self._cache is not None else contextlib.nullcontext()

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache, so that its keys are needed."""
        return self._cache is not None

    def executions(self, name: str) -> list[StageResult]:
        """Return how executions of the stage ended in the run that is resumed; the name may lack indices."""
        return self._executions.get((without_indices(name), indices_of(name)), [])

    def kept(self, name: str, input_digest: str) -> StageResult | None:
        """Return how the stage of this name ended in the run that is resumed, if its inputs were the same."""
        found = self._reusable.get(name)
        return found if found is not None and found.key == input_digest else None

    def cached(self, name: str, task: str, input_digest: str, cache_key: str) -> StageResult | None:
        """Return how a stage with this ``cache_key`` ended in another run, as the result of this stage."""
        found = self._cache.get(cache_key) if self._cache is not None and cache_key else None
        # Stages of one run never reuse each other's results.
        if found is None or found.cached_from == self._run_id or not self._has_records(found):
            return None
        return dataclasses.replace(
            found,
            name=name,
            task=task,
            key=input_digest,
            state=State.CACHED,
            duration=0.0,
            attempts=0,
            started_at=time.time(),
        )

    def store(self, cache_key: str, result: StageResult) -> None:
        """Store a stage for other runs if it and its application have succeeded."""
        has_failed = bool(result.results and result.results.get(protocol.EXIT_CODE))
        is_complete = result.state is State.SUCCEEDED and not has_failed
        if self._cache is not None and cache_key and is_complete:
            self._cache.put(cache_key, self._run_id, result)

    def _has_records(self, result: StageResult) -> bool:
        return self._has_results(result) and self._has_stored(result)

    def _has_stored(self, result: StageResult) -> bool:
        """Tell whether the artifacts that the stage stored elsewhere are still there."""
        urls = {path for path in result.files if "://" in path}
        base, run_id = result.tracker_base, result.run_id
        if not urls or run_id is None or base is None:
            return True
        try:
            found = Recorder.open(base, self._directory).record(run_id, "artifacts").artifacts.values()
            return urls <= {it.path for it in found if it.stored and it.stored.are_there()}
        except TrackerError:
            return False

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
                self._recorded[place] = frozenset(Recorder.open(base, self._directory).keys(place[1]))
            except TrackerError:
                self._recorded[place] = frozenset()
        return run_id in self._recorded[place]


def _paths(result: StageResult) -> list[str]:
    """Return the paths of the stage's log and files on this machine; a stage need not write them."""
    values = result.artifacts.values()
    made = [artifact for value in values for artifact in (value if isinstance(value, list) else [value])]
    log = [] if result.log_file is None else [str(result.log_file)]
    return [*result.files, *(artifact.path for artifact in made if artifact.is_here), *log]


def _stamps(paths: Iterable[str]) -> list[list[Any]]:
    """Return the stamps of files, as lists, so that they equal those read from JSON.

    Raises:
        OSError: a file is missing.
    """
    return [list(stamp_of(path)) for path in paths]
