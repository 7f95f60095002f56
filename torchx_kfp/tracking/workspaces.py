"""Workspaces under a tracker base: stored once under their SHA-256, however many runs use them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.common.archive import IGNORE_FILE, LARGEST, WorkspaceFile, list_workspace, pack_workspace
from torchx_kfp.common.text import shown, size_text
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.errors import WorkspaceError
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.store import Store


@dataclass(frozen=True)
class StoredWorkspace:
    """A stored folder: the URL and the size of its archive in bytes, its files, and whether it was uploaded now."""

    url: str
    size: int
    entries: Sequence[WorkspaceFile]
    is_new: bool


def store_workspace(
    store: Store, folder: str | os.PathLike[str], without: Iterable[str] = (), largest: int = LARGEST
) -> StoredWorkspace:
    """Pack a folder and store it. For an archive that is there already, one request is sent.

    Args:
        store: the store of the tracker base.
        folder: the folder.
        without: folders that do not belong to the workspace even if they are inside. A tracker base never does.
        largest: the bytes that its files may have.

    Raises:
        WorkspaceError: the folder cannot travel; the message says why.
        TrackerError: the store cannot be read or written.
    """
    base = [store.folder] if isinstance(store, DiskStore) else []
    entries = list_workspace(folder, [*base, *without])
    total = sum(entry.size for entry in entries)
    if total > largest:
        biggest = sorted(entries, key=lambda entry: -entry.size)[:5]
        named = ", ".join(f"{entry.name} ({size_text(entry.size)})" for entry in biggest)
        raise WorkspaceError(
            f"The workspace {shown(os.fspath(folder))} has {size_text(total)}, more than {size_text(largest)}. Its "
            f"largest files: {named}. Exclude what the stages do not need in {IGNORE_FILE}."
        )
    out = io.BytesIO()
    digest = pack_workspace(folder, entries, out)
    key, size = workspace_key(digest), out.tell()
    place = key.rpartition("/")[0]
    # An archive of another size was damaged.
    is_new = not any((file.key, file.size) == (key, size) for file in store.files(place))
    if is_new:
        store.write(key, out.getvalue())
    return StoredWorkspace(f"{store.base.rstrip('/')}/{key}", size, entries, is_new)


def read_workspace(store: Store, digest: str) -> bytes:
    """Return the archive with this SHA-256.

    Raises:
        WorkspaceError: it is not there, or was changed.
        TrackerError: the store cannot be read.
    """
    key = workspace_key(digest)
    content = store.read(key)
    if content is None:
        raise WorkspaceError(f"The workspace {store.location(key)} is not there any more.")
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise WorkspaceError(f"The workspace {store.location(key)} has the digest {found}: it was changed.")
    return content
