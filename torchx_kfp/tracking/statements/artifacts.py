"""Artifacts of a run: files and folders that it has made, by name, where they are, and what is to be said of them.

``torchx.tracker.AppRun`` reads and writes the same (``trackers.stage``). A stage that declares them hands them on to
KFP (``publisher``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchx_kfp.errors import ResultRefusedError
from torchx_kfp.files import special_kind
from torchx_kfp.text import shown
from torchx_kfp.tracking.statements.entries import ARTIFACTS, Entry, add_entry, no_entry, read_entries
from torchx_kfp.tracking.stores.store import Store

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a run has made. ``path`` is a local path or an fsspec URL; empty: metadata alone."""

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)


def absolute(path: str) -> str:
    """The path, absolute where it is a local one: who reads it may be in another folder."""
    return os.path.abspath(os.path.expanduser(path)) if path and "://" not in path else path


def add_artifact(
    store: Store, run_id: str, name: str, path: str | os.PathLike[str], metadata: Mapping[str, object] | None
) -> None:
    """Register an artifact of the run; of several under one name, the last one counts.

    A local path where nothing is yet is a warning in the log and no error: what makes it may come later, or be another
    process of the stage.

    Raises:
        ResultRefusedError: the name or path is no text, the path leads to a FIFO, a socket or a device, or JSON cannot
            hold the metadata. Nothing was written.
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
    entry = {"name": name, "path": absolute(text), "metadata": None if metadata is None else dict(metadata)}
    add_entry(store, ARTIFACTS, run_id, entry, f"metadata of the artifact {name!r}")


def _look_at(name: str, path: str) -> None:
    """Say at once what is wrong with a local path: when the stage has ended, it is too late."""
    path = path.removeprefix("file://")
    place = absolute(path)
    if not place or "://" in place:
        return
    try:
        kind = special_kind(os.stat(place).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        from_here = "" if os.path.isabs(path) else f" (the current folder is {os.getcwd()})"
        _logger.warning(
            "The artifact %r is registered at %s, and nothing is there yet%s. Write it before the stage ends.",
            name,
            place,
            from_here,
        )
    except (OSError, ValueError):  # no permission to look, or no path of this system
        return
    else:
        if kind:
            raise ResultRefusedError(
                f"The artifact {name!r} is at {place}, which is a {kind}. Register a file, a folder or a URL."
            )


def read_artifacts(store: Store, run_id: str) -> dict[str, Artifact]:
    """The artifacts of the run by name; of several under one name, the last one that was registered.

    Raises:
        CorruptResultError: what is stored is no artifact.
        TrackerError: the store failed.
    """
    return read_artifacts_of(store, [run_id]).get(run_id, {})


def read_artifacts_of(store: Store, run_ids: Iterable[str]) -> dict[str, dict[str, Artifact]]:
    """The artifacts of each of these runs that has any, as ``read_artifacts`` gives them."""
    found = read_entries(store, ARTIFACTS, run_ids)
    return {run_id: _decode(store, entries) for run_id, entries in found.items()}


def _decode(store: Store, entries: Iterable[Entry]) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for entry in entries:
        try:
            artifact = Artifact(
                str(entry.content["name"]), str(entry.content["path"]), dict(entry.content.get("metadata") or {})
            )
        except (KeyError, TypeError, ValueError) as error:
            raise no_entry(store, entry.key, error) from None
        artifacts.pop(artifact.name, None)  # the order is that of what counts
        artifacts[artifact.name] = artifact
    return artifacts
