"""What gc and others do at the same time: every order of their steps, seen from inside."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import attack
from torchx_kfp.tracking import FsspecResultTracker, cleanup, workspaces
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking.objects import FsspecStore, open_filesystem
from torchx_kfp.tracking.store import File, Store
from torchx_kfp.tracking.workspace_cleanup import WorkspaceCleanup
from torchx_kfp.tracking.workspaces import PackedWorkspace, pack_folders

DAY = 86400.0


def pack(store: Store, folder: Path, text: str) -> PackedWorkspace:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(text)
    return pack_folders(store, {str(folder): ""})


def age(base: Path, days: float) -> None:
    for path in base.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY,) * 2)


def test_no_put_is_lost_while_gc_works(tmp_path: Path) -> None:
    lost, removed = attack(tmp_path / "base", 1500)
    assert lost == 0
    assert removed > 0, "the collectors had something to do"


def test_a_file_that_was_written_since_it_was_seen_stays(tmp_path: Path) -> None:
    store = FsspecResultTracker(tmp_path).store
    store.write("run/train/1", b'{"a": 1}')
    (seen,) = store.files()
    store.write("run/train/1", b'{"a": 2}')
    os.utime(store.location("run/train/1"), (seen.modified + 1,) * 2)
    assert not store.remove_old(seen)
    assert store.read("run/train/1") == b'{"a": 2}'
    assert store.remove_old(store.files()[0])
    assert store.remove_old(File("run/train/1", 1, 1.0)), "what is gone is gone"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("newer", [False, True])
def test_a_file_that_is_written_in_the_instant_of_its_removal_stays(
    newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FsspecResultTracker(tmp_path).store
    store.write("run/train/1", b"{}")
    (seen,) = store.files()
    rename = os.rename

    def late(*given: Any, **options: Any) -> None:
        store.write("run/train/1", b'{"a": 1}')
        rename(*given, **options)
        if newer:
            store.write("run/train/1", b'{"a": 2}')

    monkeypatch.setattr("os.rename", late)
    assert not store.remove_old(seen)
    assert store.read("run/train/1") == (b'{"a": 2}' if newer else b'{"a": 1}')
    assert os.listdir(tmp_path / "run/train") == ["1"]


def test_many_runs_are_looked_at_again_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_FILES", 2)
    tracker = FsspecResultTracker(tmp_path)
    for number in range(32):
        tracker.put(f"run-{number}-20260101-120000-0a1b2c/train/1", loss=1)
    age(tmp_path, 60)
    done = Cleanup(tracker.store, time.time() - 30 * DAY).remove()
    first = next(done)
    left = tracker.keys()[0]
    tracker.put(left.replace("/1", "/2"), loss=1)
    assert len(list(done)) == 30
    assert not left.startswith(f"{first.run}/")
    assert tracker.keys() == [left, left.replace("/1", "/2")]


def test_a_file_that_is_gone_since_it_was_listed_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gc is at work."""
    store = FsspecResultTracker(tmp_path).store
    for run in ("one", "two"):
        store.write(f"{run}-20260101-120000-0a1b2c/train/1", b"{}")
    listed = store.files()
    monkeypatch.setattr(store, "files", lambda: listed)
    store.remove(listed[0].key)
    assert not Cleanup(store, time.time() + DAY).look().left_alone


def test_an_old_archive_is_used_again_without_another_upload(tmp_path: Path) -> None:
    """Also where a gc that was killed has left the sign that it is removing the archive."""
    base = tmp_path / "base"
    store = FsspecResultTracker(base).store
    packed = pack(store, tmp_path / "code", "x")
    assert packed.upload()
    store.write(f".torchx_kfp/workspaces/{packed.digest}.removing", b"")
    age(base, 60)
    archive = base / f".torchx_kfp/workspaces/{packed.digest}.tar"
    before = archive.stat()
    assert not packed.upload()
    after = archive.stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, before.st_mtime)
    assert WorkspaceCleanup(store, time.time() - 30 * DAY).look() == []
    age(base, 40)  # all its files grow old, and go together
    assert [it.digest for it in WorkspaceCleanup(store, time.time() - 30 * DAY).remove()] == [packed.digest]
    assert store.files() == []


class Turns:
    """Lets two threads make calls in this order, and any order after it."""

    def __init__(self, order: Iterable[str]) -> None:
        self._order = deque(order)
        self._running = {"gc", "submit"}
        self._changed = threading.Condition()

    def take(self) -> None:
        name = threading.current_thread().name
        if name not in ("gc", "submit"):
            return
        with self._changed:
            while True:
                while self._order and self._order[0] not in self._running:
                    self._order.popleft()
                if not self._order or self._order[0] == name:
                    break
                self._changed.wait(60)
            if self._order:
                self._order.popleft()
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._running.discard(threading.current_thread().name)
            self._changed.notify_all()


class TurnStore(FsspecStore):
    """A store whose calls wait for their turn. Files that were there at the beginning are old."""

    def __init__(self, base: str) -> None:
        super().__init__(base, *open_filesystem(base), 5.0)
        self.turns = Turns(())
        self.old: set[str] = set()

    def files(self, prefix: str = "") -> list[File]:
        self.turns.take()
        found = super().files(prefix)
        return [file._replace(modified=file.modified - 60 * DAY) if file.key in self.old else file for file in found]

    def write(self, key: str, content: bytes) -> None:
        self.turns.take()
        super().write(key, content)
        self.old.discard(key)

    def remove(self, key: str) -> None:
        self.turns.take()
        super().remove(key)

    def keys(self, prefix: str | None) -> list[str]:
        self.turns.take()
        return super().keys(prefix)


def in_turns(store: TurnStore, order: Iterable[str], **works: Callable[[], Any]) -> dict[str, Any]:
    store.turns = Turns(order)
    ended: dict[str, Any] = {}

    def work(name: str) -> None:
        try:
            ended[name] = works[name]()
        except Exception as error:
            ended[name] = error
        finally:
            store.turns.end()

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return ended


def test_a_submit_never_loses_its_archive(memory_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of objects cannot be asked to remove only what has not changed: every order of calls must do."""
    monkeypatch.setattr(workspaces, "_PAUSE", 0.001)
    store = TurnStore(memory_base)
    packed = pack(store, tmp_path / "code", "x")
    before = time.time() - 30 * DAY
    removals = set()
    for first in range(10):
        for then in range(5):
            for again in (1, 2, 20):
                packed.store.write(packed_key := f".torchx_kfp/workspaces/{packed.digest}.tar", packed.archive)
                store.old = {packed_key}
                order = ["gc"] * first + ["submit"] * then + ["gc"] * again + ["submit"] * 20
                ended = in_turns(
                    store, order, gc=lambda: len(list(WorkspaceCleanup(store, before).remove())), submit=packed.upload
                )
                assert ended["gc"] in (0, 1), ended
                assert ended["submit"] in (True, False), ended
                assert store.read(packed_key) == packed.archive, order
                names = {file.key.rpartition(".")[2] for file in store.files(".torchx_kfp/workspaces")}
                assert names <= {"tar", "used"}, order
                removals.add((ended["gc"], ended["submit"]))
                store.remove(f".torchx_kfp/workspaces/{packed.digest}.used")
    # The orders are not all alike: gc was first, or the submit was.
    assert removals == {(0, False), (1, True)}
