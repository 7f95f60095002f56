"""The cache between runs: stages of earlier runs that need not run again.

A stage has a key, which is equal for two stages that would produce the same outputs, as far as this can be determined.
KFP's backend considers the image, the command and the values of the inputs, but not the environment; the code is in the
image. Here, the environment counts as well, and so does the code that a process finds on this machine (see
``pipeline.used_files``).

Finished stages of earlier runs are small files in a folder, named by their keys. Several runs may use one folder at
once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_kfp.common.safe_files import read_bytes, walk, write_file
from torchx_kfp.contract import command, protocol
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.local.given_keys import given_files
from torchx_kfp.execution.local.packages import local_state
from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_artifact, parameters_of
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.used_files import AllFiles, code_here
from torchx_kfp.execution.runs.events import StageFinished, decode, encode
from torchx_kfp.execution.runs.journal import LONGEST_LINE
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import SHORT_PATIENCE, Recorder, absolute_base

if TYPE_CHECKING:
    from torchx_kfp.execution.local.attempt import RunContext
    from torchx_kfp.execution.local.dag_run import TaskRun
    from torchx_kfp.execution.local.executors.executor import AttemptPlan

#: A path, its size in bytes (for a folder, the number of its files), and the time of its last change in ns (for a
#: folder, a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]
#: The version of keys and entries, raised when older ones must not match any more.
_VERSION = 3


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


def cache_key(plan: AttemptPlan, run: TaskRun, context: RunContext) -> str:
    """Return the key of a stage in the cache, as hexadecimal digits; empty if it must not be taken from the cache.

    It is empty if the task's author has turned caching off, for exit tasks (which clean up), if the stage uses the
    workspace (which differs in each run), and if there is more code than can be checked. A key that the author has
    chosen (``set_caching_options``) replaces the command and inputs.
    """
    component, container = plan.component, plan.component.container
    assert container is not None
    if not run.task.caches or run.task.runs_always or _uses_workspace(plan):
        return ""
    try:
        surroundings = _surroundings(plan, run, context)
    except AllFiles:
        return ""
    outputs = {name: kind.title for name, kind in component.artifact_outputs.items()}
    content: dict[str, Any] = {"version": _VERSION, "outputs": [dict(component.outputs), outputs]}
    if run.task.cache_key:
        content["chosen"] = run.task.cache_key
    else:
        content |= {
            "image": container.image,
            "command": container.words,
            "environ": {name: text for name, text in plan.variables.items() if name != protocol.CODE_URL},
            "inputs": {name: [_input(value), _artifact_stamps(value)] for name, value in plan.inputs.items()},
            "surroundings": surroundings,
        }
    return _digest(content)


def _surroundings(plan: AttemptPlan, run: TaskRun, context: RunContext) -> list[Any]:
    """Return what else determines what a stage does.

    Raises:
        AllFiles: there is more code than can be checked.
    """
    if plan.container is not None:
        assert context.containers is not None
        files = given_files(plan.component, context.given, run.dag.inputs)
        return ["container", context.containers.image_id(plan.image), sorted(map(str, context.options.mounts)), files]
    directory, words = context.options.directory, command.decode(plan.words).words
    installed = [local_state(install) for install in plan.python.installs] if plan.python is not None else []
    stamps = code_here(words, directory, plan.environ.get("PYTHONPATH", ""))
    if any(map(protocol.is_workspace, words)):  # its files take the place of those here
        stamps = [stamp for stamp in stamps if not stamp[0].startswith(os.path.join(directory, ""))]
    return ["process", directory, sys.prefix, sys.version, stamps, installed]


def _uses_workspace(plan: AttemptPlan) -> bool:
    container, facts = plan.component.container, plan.facts
    assert container is not None
    paths = [item.path for value in facts.input_artifacts.values() for item in artifacts_in(value)]
    texts = (*container.words, *map(str, parameters_of(plan.inputs).values()), *paths)
    return any(path in text for path in (WORKSPACE, facts.workspace) for text in texts)


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


class Cache:
    """Finished stages in a folder, which is created when the first one is stored. Only its owner may enter it.

    Args:
        folder: the folder.
        run_id: the run that asks: stages of one run never reuse each other's results.
        directory: the directory in which stages run. Relative tracker bases are relative to it.
    """

    def __init__(self, folder: str | os.PathLike[str], run_id: str, directory: str = "") -> None:
        self.folder = Path(folder)
        self._run_id, self._directory = run_id, directory
        self._recorded: dict[tuple[str, str], frozenset[str]] = {}

    def get(self, key: str) -> StageResult | None:
        """Return the stage of another run that was last stored under the key, with ``cached_from`` set.

        Return None if there is none, if its log, a file of its artifacts or a result has been removed or changed since,
        and if the entry cannot be read.
        """
        try:
            entry = json.loads(read_bytes(str(self._path(key)), limit=LONGEST_LINE))
            event = decode(entry["stage"])
            if not isinstance(event, StageFinished) or entry["files"] != _stamps(stamp[0] for stamp in entry["files"]):
                return None
            found = dataclasses.replace(event.result, cached_from=str(entry["run_id"]))
            return found if found.cached_from != self._run_id and self._has_records(found) else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(self, key: str, result: StageResult) -> None:
        """Store a stage of the run if it and its application have succeeded, in place of any earlier entry.

        A full disk, a folder that cannot be written and a file that goes meanwhile are not errors: the stage runs
        again next time.
        """
        if result.state is not State.SUCCEEDED or (result.results and result.results.get(protocol.EXIT_CODE)):
            return
        path = self._path(key)
        # The files may change meanwhile: other processes write what a stage has registered.
        with contextlib.suppress(OSError):
            entry: dict[str, Any] = {
                "run_id": self._run_id,
                "files": _stamps(path for path in _paths(result) if os.path.exists(path)),
                "stage": encode(StageFinished(result)),
            }
            for folder in (self.folder, path.parent):
                folder.mkdir(0o700, parents=True, exist_ok=True)
            write_file(path, json.dumps(entry).encode(), durable=False, permissions=0o600)

    def remove(self, key: str) -> None:
        """Forget a stage that turned out to be wrong."""
        if key:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        # Entries are spread over several folders, since there may be many.
        return self.folder / key[:2] / f"{key}.json"

    def _has_records(self, result: StageResult) -> bool:
        """Tell whether the results that the stage recorded, and the artifacts that it stored, are still there.

        The run ids of a pipeline run are listed in one request and remembered, so that a store is asked once for each
        earlier run, not for each stage. A store that does not answer counts as empty.
        """
        base, run_id = result.tracker_base, result.run_id
        urls = {path for path in result.files if "://" in path}
        if base is None or run_id is None or not (result.results or urls):
            return True
        place = base, run_id.partition("/")[0]
        try:
            recorder = Recorder(absolute_base(base, self._directory), patience=SHORT_PATIENCE)
            if place not in self._recorded:
                self._recorded[place] = frozenset()
                self._recorded[place] = frozenset(recorder.keys(place[1]))
            artifacts = recorder.record(run_id, "artifacts").artifacts.values() if urls else ()
            there = {artifact.path for artifact in artifacts if artifact.stored and artifact.stored.are_there()}
        except TrackerError:
            return False
        return urls <= there and (not result.results or run_id in self._recorded[place])


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
