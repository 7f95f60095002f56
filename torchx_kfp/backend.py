"""The backend that ``torchx.tracker.AppRun.run_from_env()`` finds in a tracked stage: TorchX's, but for folders' names.

Artifacts, metadata and sources are kept below the tracker base, where the results' keys cannot be and no listing of
results looks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import fsspec
from fsspec.core import url_to_fs
from torchx.tracker.api import TrackerSource
from torchx.tracker.backend.fsspec import FsspecTracker

from torchx_kfp import protocol
from torchx_kfp.tracking.artifacts import TRACKER_FOLDER, absolute, folder_name, unique_name
from torchx_kfp.tracking.store import open_store

_KEEP = f"{TRACKER_FOLDER}/.keep"


class _Path:
    """TorchX's path builder, with names that file systems take for any run id."""

    def __init__(self, path: str) -> None:
        self._path = path

    def with_run_id(self, run_id: str) -> _Path:
        return self.with_subpath(folder_name(run_id))

    def with_subpath(self, name: str) -> _Path:
        return _Path(f"{self._path}/{name}")

    def with_unique_filename(self) -> _Path:
        return self.with_subpath(unique_name())

    def path(self) -> str:
        return self._path


class StageTracker(FsspecTracker):  # type: ignore[misc]
    """TorchX's backend on a tracker base."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, folder: str) -> None:
        super().__init__(filesystem, folder)
        self._path_builder = _Path(folder)

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Register an artifact; a local path is made absolute: who reads it may be in another folder."""
        super().add_artifact(run_id, name, absolute(path), metadata)

    def _load(self, run_id: str, category: str) -> Iterable[Mapping[str, object]]:
        # In the order in which they were written, so that the last one counts.
        folder = self._path_builder.with_run_id(run_id).with_subpath(category).path()
        if not self.fs.exists(folder):
            return []
        return [json.loads(self.fs.cat_file(file)) for file in sorted(self.fs.ls(folder, detail=False))]

    def _read_source_file(self, source_file: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        run_id = unquote(source_file.rpartition("/")[2])
        names = [line.strip() for line in self.fs.cat_file(source_file).decode().splitlines() if line.strip()]
        if not names:
            return [] if artifact_name else [TrackerSource(run_id, None)]
        return [TrackerSource(run_id, name) for name in names if artifact_name in (None, name)]

    def run_ids(self, parent_run_id: str | None = None, **_: object) -> Iterable[str]:
        """The ids of all runs that have anything here, or of those with this parent."""
        found = []
        for entry in self.fs.ls(self._path_builder.path(), detail=True):
            name = entry["name"].rstrip("/").rpartition("/")[2]
            parent = f"{entry['name'].rstrip('/')}/sources/{folder_name(parent_run_id or '')}"
            if entry["type"] == "directory" and (not parent_run_id or self.fs.exists(parent)):
                found.append(unquote(name))
        return found


def create(config: str | None = None) -> StageTracker:
    """The backend of this process.

    TorchX calls it through the entry point ``torchx_kfp`` of the group ``torchx.tracker``.

    Args:
        config: the tracker base; ``TORCHX_TRACKER_BASE`` otherwise.

    Raises:
        TrackerError: there is no tracker base, or one that cannot be used.
    """
    base = config or os.environ.get(protocol.TRACKER_BASE, "")
    store = open_store(base)
    # TorchX's backend looks for its folder, and on object stores a folder is what it holds.
    if store.read(_KEEP) is None:
        store.write(_KEEP, b"")
    filesystem, path = url_to_fs(base)
    return StageTracker(filesystem, f"{path.rstrip('/')}/{TRACKER_FOLDER}")
