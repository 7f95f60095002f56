"""Artifacts: files and folders that a run has registered, or stored under the tracker base."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from torchx_kfp.common.safe_files import special_kind
from torchx_kfp.common.text import shown
from torchx_kfp.contract.carried.publisher import FILES
from torchx_kfp.errors import MissingArtifactError, ResultRefusedError
from torchx_kfp.tracking.entries import add_entry, encode_json
from torchx_kfp.tracking.store import Store, key_text

if TYPE_CHECKING:
    from torchx_kfp.tracking.artifact_files import StoredFiles

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a run has created.

    Attributes:
        name: the name with which the run registered it.
        path: a local path or an fsspec URL. Empty if the artifact consists only of metadata.
        metadata: anything that JSON can represent, by name.
        stored: what is stored of it under the tracker base; None if it was only registered.
    """

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)
    stored: StoredFiles | None = None

    @property
    def url(self) -> str:
        """The path or URL of the stored file or folder, for programs that read it themselves; else ``path``."""
        return self.stored.url if self.stored is not None else self.path

    def files(self) -> dict[str, int]:
        """Return the sizes of the stored files in bytes, by their names in the folder; the name of a file is empty.

        Raises:
            MissingArtifactError: it is not stored, or was removed.
            CorruptArtifactError: the list of its files was changed.
        """
        return self._stored().sizes()

    def open(self, name: str = "") -> BinaryIO:
        """Open the stored file, or a file of the stored folder, for reading.

        The file is copied to this machine first, and its digest is checked: the reader gets the bytes that were stored,
        or an error. To read it more than once, use ``download``.

        Args:
            name: the name of a file in the folder, such as ``weights/0.bin``.

        Raises:
            MissingArtifactError: it is not stored, or was removed, or the folder does not have this file.
            CorruptArtifactError: it was changed.
        """
        return self._stored().open(name)

    def download(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Copy the stored file or folder into a folder on this machine, check its digests, and return its path there.

        It has the name that it had when it was stored, and is there completely or not at all. If it is there already,
        with the same content, nothing is copied, also if several processes ask at once.

        Args:
            folder: the folder to copy it into. It is created.
            overwrite: whether to replace something else that has its name.

        Raises:
            MissingArtifactError: it is not stored, or was removed.
            CorruptArtifactError: it was changed.
            FileExistsError: something else has its name.
            OSError: the folder cannot be written.
        """
        return self._stored().download(folder, overwrite=overwrite)

    def _stored(self) -> StoredFiles:
        if self.stored is None:
            raise MissingArtifactError(
                f"The artifact {self.name!r} is not stored: the run only registered "
                f"{f'its path {self.path!r}' if self.path else 'metadata'}. The stage that makes it can store it: "
                "current_run().add_artifact(name, path, store=True)."
            )
        return self.stored


def parse_artifact(store: Store, name: str, content: Mapping[str, Any]) -> Artifact:
    """Return the artifact in an entry. Raises KeyError, TypeError or ValueError if it is malformed."""
    artifact = Artifact(name, str(content["path"]), dict(content["metadata"]))
    if (stored := content.get("stored")) is None:
        return artifact
    from torchx_kfp.tracking.artifact_files import StoredFiles  # most stages store no files

    return replace(artifact, stored=StoredFiles.parse(store, stored))


def add_artifact(
    store: Store,
    run_id: str,
    name: str,
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None,
    *,
    stored: bool = False,
) -> str:
    """Register an artifact of a run, and return where it is. If ``stored``, store its files first.

    If nothing exists at a local path yet, a warning is logged: the file may be created later, or by another process of
    the stage.

    Raises:
        ResultRefusedError: the name or path is not text, the path leads to a FIFO, a socket or a device, or JSON cannot
            represent the metadata. Nothing was written. A file or folder cannot be stored: see ``store_files``.
    """
    if not isinstance(name, str) or not name:
        raise ResultRefusedError(f"An artifact's name is text, such as 'model'. Got: {shown(name)}.")
    text = os.fspath(path)
    content: dict[str, object] = {"path": absolute(text), "metadata": dict(metadata or {})}
    encode_json(content, f"metadata of the artifact {name!r}")  # before a long upload
    if stored:
        from torchx_kfp.tracking.artifact_files import store_files

        files = store_files(store, f"{FILES}/{key_text(run_id)}", name, text)
        content |= {"path": files.url, "stored": files.encode()}
    else:
        _look_at(name, text)
    add_entry(store, run_id, {"artifacts": {name: content}})
    return str(content["path"])


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
        _logger.warning(
            "The artifact %r is registered at %s, where nothing exists yet. Write it before the stage ends.",
            name,
            place,
        )
    except (OSError, ValueError):  # there is no permission to look, or it is not a path on this system
        return
    else:
        if kind:
            raise ResultRefusedError(
                f"The artifact {name!r} is at {place}, which is a {kind}. Register a file, a folder or a URL."
            )
