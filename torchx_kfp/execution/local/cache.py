"""The cache of stages from earlier runs.

Two stages have the same key if they would produce the same outputs, as far as this can be determined.
KFP's backend considers the image, the command and the values of the inputs, but not the environment; the code is in the
image. A local run also considers the code that a process can use, and the variables of the user's shell that it names
(see ``own_code``).

Finished stages of earlier runs are small files in a folder, named by their keys. Next to them are the last execution
of each stage, the parts of its key, and the files of its code. Several runs may share one folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_kfp.common.safe_files import read_bytes, write_file
from torchx_kfp.contract import protocol
from torchx_kfp.errors import ArgumentError, TrackerError
from torchx_kfp.execution.local.given_keys import given_files
from torchx_kfp.execution.local.own_code import LocalCode, fingerprint
from torchx_kfp.execution.local.packages import local_state
from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_artifact, parameters_of
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.runs import events
from torchx_kfp.execution.runs.events import StageFinished
from torchx_kfp.execution.runs.journal import LONGEST_LINE
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.stage_key import StageKey, digest_of, parts_of
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, absolute_base

if TYPE_CHECKING:
    from torchx_kfp.execution.local.attempt import RunContext
    from torchx_kfp.execution.local.dag_run import TaskRun
    from torchx_kfp.execution.local.executors.executor import AttemptPlan

#: A path, its size in bytes (for a folder, the number of its files), and the time of its last change in ns (for a
#: folder, a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]
#: The version of keys and entries. It is raised when older ones must no longer match.
_VERSION = 5


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a file, or of all files in a folder.

    Raises:
        OSError: the file does not exist.
        ValueError: the text is not a path.
    """
    path = Path(path)
    status = path.stat()
    if not path.is_dir():
        return str(path), status.st_size, status.st_mtime_ns
    digest, count = hashlib.sha256(), 0
    for place, folders, names in os.walk(path):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted([*names, *links]):
            file = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {file.st_size} {file.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            count += 1
    return str(path), count, int.from_bytes(digest.digest()[:7], "big")


#: The cache's name in an output folder. The dot distinguishes it from runs.
FOLDER = ".cache"
#: Folders in it: the last executions of stages, and the files of their code.
_LAST, _CODE = "last", "code"
#: A file in it: see ``LocalCode.written``.
_WRITTEN = "written.json"


@dataclass(frozen=True)
class LastExecution:
    """The last execution of a stage.

    Attributes:
        run_id: the run.
        state: how it ended.
        parts: the parts of its key then.
        files: the files of its code.
    """

    run_id: str
    state: State
    parts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class Cache:
    """Finished stages in a folder, which is created when the first one is stored. Only its owner may enter it.

    Args:
        folder: the folder.
        run_id: the run that asks: stages of one run never reuse each other's results.
        pipeline: the name of its pipeline.
        code: finds the code of its stages; None if not needed.
        directory: the directory in which stages run. Relative tracker bases are relative to it.
        warn: receives a message about code that cannot be checked.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        run_id: str,
        pipeline: str = "",
        code: LocalCode | None = None,
        directory: str = "",
        warn: Callable[[str], object] = str,
    ) -> None:
        self.folder = Path(folder)
        self._run_id, self._pipeline, self._directory = run_id, pipeline, directory
        self._code = code
        self._warn = functools.cache(warn)  # each sentence once
        self._recorded: dict[tuple[str, str], frozenset[str]] = {}
        #: Locks for the search of code, and for requests to a store: stages are looked up in threads.
        self._looking, self._asking = threading.Lock(), threading.Lock()
        self._stamp = functools.cache(_stamp_if_there)
        self._stored: set[str] = set()
        self._written = self._read_written()
        if code is not None:
            code.written = self._written

    def key(self, plan: AttemptPlan, run: TaskRun, context: RunContext) -> StageKey | None:
        """Return the key of a stage; None if it is not cached.

        That is if its author turned caching off, if it is an exit task (which cleans up), if it uses KFP's workspace
        (which differs in each run), or if there is more code than can be checked. A key that the author has chosen
        (``set_caching_options``) replaces everything but the pipeline and the component, as in KFP's
        ``driver/cache.go`` after 2.17.
        """
        component = plan.component
        if not run.task.caches or run.task.ignores_failures or _uses_workspace(plan):
            return None
        if run.task.cache_key:
            chosen = {"pipeline": self._pipeline, "component": component.name, "cache_key": run.task.cache_key}
            return StageKey({"version": _VERSION, **chosen})
        variables = {name: text for name, text in plan.variables.items() if name != protocol.CODE_URL}
        parts: dict[str, Any] = {
            "version": _VERSION,
            **parts_of(component, {name: self._input(value) for name, value in plan.inputs.items()}),
            "variables": {
                name: {"digest": digest_of(it)} if name in plan.secrets else it for name, it in variables.items()
            },
        }
        if plan.container is not None:
            assert context.containers is not None
            parts["image here"] = context.containers.image_id(plan.image)
            parts["mounts"] = sorted(map(str, context.options.mounts))
            parts["secrets"] = digest_of(given_files(plan.component, context.given, run.dag.inputs))
            return StageKey(parts)
        assert self._code is not None
        try:
            with self._looking:
                code = self._code.of(plan)
        except ArgumentError as error:
            self._warn(f"The stages that use its files are not cached: {error}")
            return None
        parts |= {"directory": context.options.directory, "interpreter": f"{sys.prefix} {sys.version}"}
        parts["environment"] = {name: {"digest": digest_of(text)} for name, text in code.variables.items()}
        parts["packages"] = [local_state(install) for install in plan.python.installs] if plan.python else []
        return StageKey(_without(parts, self._code.workspaces_of(plan)), code)

    def get(self, key: StageKey) -> StageResult | None:
        """Return the stage of another run that was last stored under the key, with ``cached_from`` set.

        Return None if there is none, if the entry cannot be read, or if its log, an artifact's file or a result has
        since been removed or changed.
        """
        try:
            entry = json.loads(read_bytes(str(self._path(key.digest)), limit=LONGEST_LINE))
            event = events.decode_event(entry["stage"])
            if not isinstance(event, StageFinished) or entry["files"] != _stamps(stamp[0] for stamp in entry["files"]):
                return None
            result = dataclasses.replace(event.result, cached_from=str(entry["run_id"]))
            return result if result.cached_from != self._run_id and self._has_records(result) else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(
        self,
        key: StageKey | None,
        result: StageResult,
        written: Collection[str] = (),
        plan: AttemptPlan | None = None,
    ) -> None:
        """Store how a stage of the run ended; a success replaces earlier entries.

        Args:
            key: its key; without one, it is not stored.
            result: how it has ended.
            written: files that it wrote and registered as artifacts: see ``LocalCode.written``.
            plan: its plan. It is not stored if its code has changed since its key was made: it may have used the new
                files. A full disk, an unwritable folder and a file that disappears are not errors: the stage runs again
                next time.
        """
        # Other processes may change registered files meanwhile.
        with contextlib.suppress(OSError, ArgumentError):
            with self._looking:
                if self._code is not None:
                    self._code.look_again()
                new = {path: told for path in written if (told := fingerprint(path))}
                if not new.items() <= self._written.items():
                    self._written.update({**self._read_written(), **new})
                    left = {path: told for path, told in self._written.items() if fingerprint(path) == told}
                    self._write(self.folder / _WRITTEN, left)
            if key is None:
                return
            files = {} if key.code is None else key.code.files
            code = "" if key.code is None else key.code.digest
            if code and code not in self._stored:
                self._write(self._path(code, _CODE), files)
                self._stored.add(code)
            last = {"run_id": self._run_id, "state": result.judged().state, "parts": key.parts, "code": code}
            self._write(self._last_path(result.name), last)
            if code and plan is not None and self._code is not None:
                with self._looking:
                    now = self._code.of(plan).files
                if any(now.get(name) != told for name, told in files.items()):
                    return
            if result.judged().state is State.SUCCEEDED:
                stamps = _stamps(path for path in _paths(result) if os.path.exists(path))
                stage = events.encode_event(StageFinished(result))
                self._write(self._path(key.digest), {"run_id": self._run_id, "files": stamps, "stage": stage})

    def remove(self, key: StageKey | None) -> None:
        """Remove the entry of a stage with a wrong result."""
        if key is not None:
            self._path(key.digest).unlink(missing_ok=True)

    def _read_written(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError, RecursionError, TypeError):
            return dict(json.loads(read_bytes(str(self.folder / _WRITTEN), limit=LONGEST_LINE)))
        return {}

    def last(self, stage: str) -> LastExecution | None:
        """Return the last execution of a stage of the pipeline, if known. It may lack a cache entry."""
        try:
            found = json.loads(read_bytes(str(self._last_path(stage)), limit=LONGEST_LINE))
            code = self._path(found["code"], _CODE) if found["code"] else None
            files = {} if code is None else json.loads(read_bytes(str(code), limit=LONGEST_LINE))
            return LastExecution(str(found["run_id"]), State(found["state"]), dict(found["parts"]), dict(files))
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def _path(self, digest: str, kind: str = "") -> Path:
        # Spread many entries over several folders.
        return self.folder / kind / digest[:2] / f"{digest}.json"

    def _last_path(self, stage: str) -> Path:
        return self._path(digest_of([self._pipeline, stage]), _LAST)

    def _write(self, path: Path, content: Any) -> None:
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        for folder in reversed([each for each in path.parents if self.folder in each.parents]):
            folder.mkdir(0o700, exist_ok=True)
        write_file(path, json.dumps(content, default=str).encode(), durable=False, permissions=0o600)

    def _input(self, value: Any) -> Any:
        if not is_artifact(value):
            return value
        # An imported artifact may have changed.
        return [
            (
                artifact.type.title,
                artifact.uri,
                dict(artifact.metadata),
                artifact.is_local and self._stamp(artifact.path),
            )
            for artifact in artifacts_in(value)
        ]

    def _has_records(self, result: StageResult) -> bool:
        """Return whether the results that the stage recorded, and the artifacts that it stored, are still there.

        The execution ids of a pipeline run are listed in one request and remembered: one request for each earlier run,
        not for each stage. A store that does not answer counts as empty.
        """
        base, run_id = result.tracker_base, result.execution_id
        urls = {path for path in result.files if "://" in path}
        if base is None or run_id is None or not (result.results or urls):
            return True
        place = base, run_id.partition("/")[0]
        try:
            tracker = RecordTracker(absolute_base(base, self._directory), patience=SHORT_PATIENCE)
            with self._asking:
                if place not in self._recorded:
                    self._recorded[place] = frozenset()
                    self._recorded[place] = frozenset(tracker.keys(place[1]))
            artifacts = tracker.record(run_id, "artifacts").artifacts.values() if urls else ()
            there = {artifact.path for artifact in artifacts if artifact.stored and artifact.stored.are_there()}
        except TrackerError:
            return False
        return urls <= there and (not result.results or run_id in self._recorded[place])


def _without(value: Any, urls: Collection[str]) -> Any:
    """Return a value without the URLs of workspaces: any changed file changes the URL."""
    if isinstance(value, str):
        return "the workspace" if value in urls else value
    if isinstance(value, dict):
        return {name: _without(each, urls) for name, each in value.items()}
    return [_without(each, urls) for each in value] if isinstance(value, (list, tuple)) else value


def _stamp_if_there(path: str) -> Stamp | None:
    try:
        return stamp_of(path)
    except (OSError, ValueError):
        return None


def _uses_workspace(plan: AttemptPlan) -> bool:
    container, values = plan.component.container, plan.placeholders
    assert container is not None
    paths = [item.path for value in values.input_artifacts.values() for item in artifacts_in(value)]
    texts = (*container.words, *map(str, parameters_of(plan.inputs).values()), *paths)
    return any(path in text for path in (WORKSPACE, values.workspace) for text in texts)


def _paths(result: StageResult) -> list[str]:
    """Return the local paths of the stage's log and files, which may not exist."""
    values = result.artifacts.values()
    made = [artifact for value in values for artifact in (value if isinstance(value, list) else [value])]
    log = [] if result.log_file is None else [str(result.log_file)]
    return [*result.files, *(artifact.path for artifact in made if artifact.is_local), *log]


def _stamps(paths: Iterable[str]) -> list[list[Any]]:
    """Return the stamps of files as lists, to compare with those from JSON.

    Raises:
        OSError: a file is missing.
    """
    return [list(stamp_of(path)) for path in paths]
