"""Workspaces under a tracker base: stored once under their SHA-256, however many runs use them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchx_kfp.common.archive import IGNORE_FILE, LARGEST, WorkspaceFile, list_workspace, pack_workspace
from torchx_kfp.common.git import GitState, read_git_state
from torchx_kfp.common.text import shown, size_text
from torchx_kfp.contract.carried.programs import WORKSPACE
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.contract.scripts import UNPACKER, unpacker_file
from torchx_kfp.errors import WorkspaceError
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.run_facts import Code
from torchx_kfp.tracking.store import Store


@dataclass(frozen=True)
class PackedWorkspace:
    """The files of a folder and their archive, which ``upload`` stores.

    Attributes:
        entries: the files.
        git: the state of the repository in which the folder is, if it is in one.
    """

    store: Store
    digest: str
    archive: bytes = field(repr=False)
    entries: Sequence[WorkspaceFile]
    git: GitState | None = None

    @property
    def url(self) -> str:
        """The URL that the archive has once it is stored."""
        return f"{self.store.base.rstrip('/')}/{workspace_key(self.digest)}"

    @property
    def size(self) -> int:
        """The bytes of the archive."""
        return len(self.archive)

    @property
    def code(self) -> Code:
        """What a run records about it."""
        return Code(self.digest, self.size, len(self.entries), self.git)

    def upload(self) -> bool:
        """Store the archive, and return True; False if it is there already, for which one request is sent.

        Raises:
            TrackerError: the store cannot be read or written.
        """
        key = workspace_key(self.digest)
        # An archive of another size was damaged.
        if any((file.key, file.size) == (key, self.size) for file in self.store.files(key.rpartition("/")[0])):
            return False
        self.store.write(key, self.archive)
        return True


def pack_folder(
    store: Store, folder: str | os.PathLike[str], without: Iterable[str] = (), largest: int = LARGEST
) -> PackedWorkspace:
    """Pack a folder, without a request to the store.

    Args:
        store: the store of the tracker base.
        folder: the folder.
        without: folders that do not belong to the workspace even if they are inside. A tracker base never does.
        largest: the bytes that its files may have.

    Raises:
        WorkspaceError: the folder cannot travel; the message says why.
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
    archive = pack_workspace(folder, entries, {UNPACKER: unpacker_file(WORKSPACE)})
    git = read_git_state(os.fspath(folder), {entry.name for entry in entries})
    return PackedWorkspace(store, hashlib.sha256(archive).hexdigest(), archive, entries, git)


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
