"""Workspaces under a tracker base: stored once under their SHA-256, however many runs use them.

    <tracker base>/.torchx_kfp/workspaces/<digest>.tar

A submit stores an archive that is there again if it is half a day old, and ``gc`` removes none that is younger than a
day: there is enough time for the run to record that it uses the archive.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchx_kfp.common.archive import IGNORE_FILE, LARGEST, WorkspaceFile, list_workspace, pack_workspace
from torchx_kfp.common.git import GitState, read_git_state
from torchx_kfp.common.text import shown, size_text
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.contract.scripts import UNPACKER, unpacker_file
from torchx_kfp.errors import WorkspaceError
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.records import Code
from torchx_kfp.tracking.store import File, Store

_FOLDER = workspace_key("").rpartition("/")[0]
_NAME = re.compile(rf"{re.escape(_FOLDER)}/([0-9a-f]{{64}})\.tar")
#: The bytes of an archive, at most: its files, and up to as much around them.
_LARGEST_ARCHIVE = 10 * LARGEST
#: Seconds for which a submit takes an archive for fresh, and those for which gc keeps one.
FRESH, KEPT = 12 * 3600.0, 24 * 3600.0


@dataclass(frozen=True)
class PackedWorkspace:
    """The files of a folder and their archive, which ``upload`` stores.

    Attributes:
        entries: the files.
        git: the state of the repository in which the folder is, the first one of several, if it is in one.
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
        """Store the archive, and return True; False if it is there already, and was stored within the last hours.

        Raises:
            TrackerError: the store cannot be read or written.
        """
        there = find_archives(self.store).get(self.digest)
        # An archive of another size was damaged.
        if there is not None and there.size == self.size and time.time() - there.modified < FRESH:
            return False
        self.store.write(workspace_key(self.digest), self.archive)
        return True


def find_archives(store: Store) -> dict[str, File]:
    """Return the archives by their digests."""
    return {name[1]: file for file in store.list_files(_FOLDER) if (name := _NAME.fullmatch(file.key))}


def pack_folders(store: Store, folders: Mapping[str, str], without: Iterable[str] = ()) -> PackedWorkspace:
    """Pack folders, without a request to the store.

    Args:
        store: the store of the tracker base.
        folders: the folders, and the path of each in the workspace; "" is its top. As in TorchX, a file of a later one
            replaces that of an earlier one with the same name.
        without: folders that do not belong to the workspace even if they are inside. A tracker base never does.

    Raises:
        WorkspaceError: a folder cannot travel; the message says why.
    """
    base = [store.folder] if isinstance(store, DiskStore) else []
    found = {folder: list_workspace(folder, [*base, *without]) for folder in folders}
    entries = _merged(found, folders)
    total, what = sum(entry.size for entry in entries), ", ".join(map(shown, folders))
    if not entries:
        raise WorkspaceError(f"The workspace {what} has no files, or {IGNORE_FILE} or git ignores them all.")
    if total > LARGEST:
        biggest = sorted(entries, key=lambda entry: -entry.size)[:5]
        named = ", ".join(f"{entry.name} ({size_text(entry.size)})" for entry in biggest)
        raise WorkspaceError(
            f"The workspace {what} has {size_text(total)}, more than {size_text(LARGEST)}. Its largest files: {named}. "
            f"Exclude what the stages do not need in {IGNORE_FILE}."
        )
    archive = pack_workspace(entries, {UNPACKER: unpacker_file()})
    first = next(iter(folders))
    git = read_git_state(first, {entry.name for entry in found[first]})
    return PackedWorkspace(store, hashlib.sha256(archive).hexdigest(), archive, entries, git)


def _merged(found: Mapping[str, Sequence[WorkspaceFile]], places: Mapping[str, str]) -> list[WorkspaceFile]:
    """Return the files of folders with their names in the workspace, sorted."""
    files: dict[str, WorkspaceFile] = {}
    for folder, entries in found.items():
        for entry in entries:
            name = f"{places[folder]}/{entry.name}" if places[folder] else entry.name
            files[name] = replace(entry, name=name)
    for name in files:
        above = name.split("/")[:-1]
        for count in range(1, len(above) + 1):
            if (folder := "/".join(above[:count])) in files:
                raise WorkspaceError(f"{shown(folder)} is a folder of one project, and a file of another.")
    return [files[name] for name in sorted(files)]


def read_workspace(store: Store, digest: str) -> bytes:
    """Return the archive with this SHA-256.

    Raises:
        WorkspaceError: it is not there, or was changed.
        TrackerError: the store cannot be read.
    """
    key = workspace_key(digest)
    content = store.read(key, _LARGEST_ARCHIVE)
    if content is None:
        raise WorkspaceError(f"The workspace {store.location(key)} is not there any more.")
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise WorkspaceError(f"The workspace {store.location(key)} has the digest {found}: it was changed.")
    return content
