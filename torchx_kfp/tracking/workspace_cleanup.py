"""Remove archives of code that no run uses any more; how that and a submit get along is in ``workspaces``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torchx_kfp.tracking.run_facts import CODE, RUN_FACTS, SCHEDULE_FACTS
from torchx_kfp.tracking.statements import StatementCache
from torchx_kfp.tracking.store import File, Store
from torchx_kfp.tracking.workspaces import (
    ARCHIVE,
    KEPT,
    REMOVAL,
    REMOVING,
    USED,
    file_key,
    find_archives,
    last_used,
)

#: How many archives are removed at once.
_MANY = 64


@dataclass(frozen=True)
class UnusedWorkspace:
    """An archive that no run uses, and when it was used last, in seconds since 1970."""

    digest: str
    archive: File
    used: float


class WorkspaceCleanup:
    """Finds and removes the archives that no run or schedule has recorded, and that no submit has used for some time.

    Args:
        store: the store of the tracker base.
        before: archives that were used after this time are kept, in seconds since 1970; those of the last day always.
    """

    def __init__(self, store: Store, before: float) -> None:
        self._store = store
        self._before = min(before, time.time() - KEPT)
        self._facts = [StatementCache(kind, store) for kind in (RUN_FACTS, SCHEDULE_FACTS)]

    def look(self, going: Collection[str] = ()) -> list[UnusedWorkspace]:
        """Return the archives that are unused now. What runs have recorded is read once.

        Args:
            going: the runs that are about to be removed.

        Raises:
            CorruptResultError: the code of a run cannot be read, so it is not known which archives are used.
            TrackerError: the store failed.
        """
        # Archives first: a run that has recorded one since then is seen below.
        old = {
            digest: files
            for digest, files in sorted(find_archives(self._store).items())
            if ARCHIVE in files and last_used(files) < self._before
        }
        if not old:
            return []
        runs, schedules = (cache.read(self._store.files(cache.folder)) for cache in self._facts)
        users = [*schedules.values(), *(its for run, its in runs.items() if run not in going)]
        used = {code.digest for its in users for code in its.get(CODE, ())}
        return [
            UnusedWorkspace(digest, files[ARCHIVE], last_used(files))
            for digest, files in old.items()
            if digest not in used
        ]

    def remove(self) -> Iterator[UnusedWorkspace]:
        """Remove the unused archives, and yield each that is gone. One that is used meanwhile stays."""
        found = iter(self.look())
        while batch := list(itertools.islice(found, _MANY)):
            yield from self._remove(batch)

    def _remove(self, batch: Sequence[UnusedWorkspace]) -> list[UnusedWorkspace]:
        store = self._store
        said = [file_key(workspace.digest, REMOVING) for workspace in batch]
        start = time.monotonic()

        def remove(workspace: UnusedWorkspace) -> bool:
            # A submit does not wait for longer. The rest of the time is for the request.
            is_late = time.monotonic() - start > REMOVAL / 2
            if is_late or workspace not in unused or not store.remove_old(workspace.archive):
                return False
            store.remove(file_key(workspace.digest, USED))
            return True

        try:
            list(store.each(lambda key: store.write(key, b""), said))
            unused = self.look()
            gone = list(store.each(remove, batch))
        finally:
            list(store.each(store.remove, said))
        return [workspace for workspace, is_gone in zip(batch, gone, strict=True) if is_gone]
