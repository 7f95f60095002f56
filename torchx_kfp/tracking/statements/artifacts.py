"""Artifacts and metadata of a run: the files and folders that it created, and anything else that it states by name.

``torchx.tracker.AppRun`` reads and writes the same files (``backends.stage``). A stage that declares artifacts passes
them on to KFP (``publisher``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.errors import ResultRefusedError
from torchx_kfp.safe_files import special_kind
from torchx_kfp.text import shown
from torchx_kfp.tracking.statements.kinds import Kind
from torchx_kfp.tracking.stores.store import Store

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a run has created.

    Attributes:
        name: the name with which the run registered it.
        path: a local path or an fsspec URL. Empty if the artifact consists only of metadata.
        metadata: anything that JSON can represent, by name.
    """

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)


def _parse_artifact(content: Mapping[str, Any]) -> Artifact:
    return Artifact(str(content["name"]), str(content["path"]), dict(content.get("metadata") or {}))


def _join_artifacts(found: list[Artifact]) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for artifact in found:
        artifacts.pop(artifact.name, None)  # the order is that of the artifacts that count
        artifacts[artifact.name] = artifact
    return artifacts


def _join_metadata(found: list[dict[str, object]]) -> dict[str, object]:
    return {name: value for metadata in found for name, value in metadata.items()}


def _parse_undelivered(content: Mapping[str, Any]) -> tuple[str, str]:
    return str(content["tracker"]), str(content["error"])


def _join_undelivered(found: list[tuple[str, str]]) -> dict[str, str]:
    return dict(reversed(found))


#: The artifacts of a run by name. Of several with one name, the last one counts.
ARTIFACTS = Kind("artifacts", _parse_artifact, _join_artifacts)
#: The metadata of a run by name. Of several values with one name, the last one counts.
METADATA = Kind("metadata", lambda content: dict(content["metadata"]), _join_metadata)
#: The further trackers that lack records of a run (see ``forwarding``), and the first error of each.
UNDELIVERED = Kind("undelivered", _parse_undelivered, _join_undelivered)


def add_metadata(store: Store, run_id: str, metadata: Mapping[str, object]) -> None:
    """Record metadata of a run: hyperparameters, notes, anything that is not a result for other stages.

    Raises:
        ResultRefusedError: JSON cannot represent it. Nothing was written.
        TrackerError: the store failed.
    """
    METADATA.add(store, run_id, {"metadata": dict(metadata)}, f"metadata of the run {run_id!r}")


def add_artifact(
    store: Store, run_id: str, name: str, path: str | os.PathLike[str], metadata: Mapping[str, object] | None
) -> None:
    """Register an artifact of a run.

    If nothing exists at a local path yet, a warning is logged: the file may be created later, or by another process of
    the stage.

    Raises:
        ResultRefusedError: the name or path is not text, the path leads to a FIFO, a socket or a device, or JSON cannot
            represent the metadata. Nothing was written.
        TrackerError: the store failed.
    """
    if not isinstance(name, str) or not name:
        raise ResultRefusedError(f"An artifact's name is text, such as 'model'. Got: {shown(name)}.")
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ResultRefusedError(
            f"The path of the artifact {name!r} is text: a local path or an fsspec URL. Got: {shown(text)}."
        )
    _look_at(name, text)
    content = {"name": name, "path": absolute(text), "metadata": None if metadata is None else dict(metadata)}
    ARTIFACTS.add(store, run_id, content, f"metadata of the artifact {name!r}")


def absolute(path: str) -> str:
    """Return a local path as an absolute one, because readers may be in another folder. URLs stay as they are."""
    return os.path.abspath(os.path.expanduser(path)) if path and "://" not in path else path


def _look_at(name: str, path: str) -> None:
    """Report a wrong local path at once: when the stage has ended, it is too late."""
    path = path.removeprefix("file://")
    place = absolute(path)
    if not place or "://" in place:
        return
    try:
        kind = special_kind(os.stat(place).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        from_here = "" if os.path.isabs(path) else f" (the current folder is {os.getcwd()})"
        _logger.warning(
            "The artifact %r is registered at %s, where nothing exists yet%s. Write it before the stage ends.",
            name,
            place,
            from_here,
        )
    except (OSError, ValueError):  # there is no permission to look, or it is not a path on this system
        return
    else:
        if kind:
            raise ResultRefusedError(
                f"The artifact {name!r} is at {place}, which is a {kind}. Register a file, a folder or a URL."
            )
