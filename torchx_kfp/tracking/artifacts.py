"""Artifacts of a run: files and folders that it has made, by name, where they are, and what is to be said of them.

Kept in the layout of ``backend``, one file for each registration, so that ``torchx.tracker.AppRun`` reads and writes
the same. A stage that declares them hands them on to KFP (``publisher``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchx_kfp.errors import CorruptResultError, ResultRefusedError
from torchx_kfp.tracking.keys import PRIVATE, shown
from torchx_kfp.tracking.store import Store

#: Below the tracker base: where the backend of ``torchx.tracker`` keeps what it stores.
TRACKER_FOLDER = f"{PRIVATE}/tracker"


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a run has made. ``path`` is a local path or an fsspec URL; empty: metadata alone."""

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)


def folder_name(run_id: str) -> str:
    """The run's folder in the backend's: one name, that ``urllib.parse.unquote`` reads back.

    TorchX's own backend has base32, which is more than a file system takes (255 bytes) for run ids of a cluster.
    ``publisher`` has the same rule, for run ids that a stage makes: those have no ``%``.
    """
    return run_id.replace("%", "%25").replace("/", "%2F")


def absolute(path: str) -> str:
    """The path, absolute where it is a local one: who reads it may be in another folder."""
    return os.path.abspath(path) if path and "://" not in path else path


def unique_name() -> str:
    """A name for the file of one entry, which sorts by time; two that are written at once get two names."""
    return f"{time.time_ns()}-{os.urandom(4).hex()}"


def add_artifact(store: Store, run_id: str, artifact: Artifact) -> None:
    """Register an artifact of the run; of several under one name, the last one counts.

    Raises:
        ResultRefusedError: the name or path is no text, or JSON cannot hold the metadata. Nothing was written.
        TrackerError: the store failed.
    """
    if not isinstance(artifact.name, str) or not artifact.name:
        raise ResultRefusedError(f"An artifact's name is text, such as 'model'. Got: {shown(artifact.name)}.")
    path = os.fspath(artifact.path) if isinstance(artifact.path, os.PathLike) else artifact.path
    if not isinstance(path, str):
        raise ResultRefusedError(
            f"The path of the artifact {artifact.name!r} is text: a local path or an fsspec URL. Got: {shown(path)}."
        )
    try:
        text = json.dumps({"name": artifact.name, "path": absolute(path), "metadata": dict(artifact.metadata)})
        content = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultRefusedError(
            f"The metadata of the artifact {artifact.name!r} cannot be written as JSON: {error}. Use dicts with str "
            "keys, lists, numbers and text."
        ) from None
    store.write(f"{_folder(run_id)}/{unique_name()}", content)


def read_artifacts(store: Store, run_id: str) -> dict[str, Artifact]:
    """The artifacts of the run by name; of several under one name, the last one that was registered.

    Raises:
        CorruptResultError: what is stored is no artifact.
        TrackerError: the store failed.
    """
    artifacts = {}
    for key in store.keys(_folder(run_id)):
        content = store.read(key)
        try:
            entry = json.loads(content or b"")
            artifact = Artifact(str(entry["name"]), str(entry["path"]), dict(entry.get("metadata") or {}))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptResultError(
                f"{store.location(key)} is not an artifact's entry: {error!r}. Something else wrote it: remove it."
            ) from None
        artifacts[artifact.name] = artifact
    return artifacts


def _folder(run_id: str) -> str:
    return f"{TRACKER_FOLDER}/{folder_name(run_id)}/artifacts"
