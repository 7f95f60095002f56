"""Which archives of code gc removes, and that a submit never loses its archive to it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from torchx_kfp.errors import CorruptResultError
from torchx_kfp.tracking import FsspecResultTracker, workspaces
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking.objects import FsspecStore, open_filesystem
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.store import File, Store
from torchx_kfp.tracking.workspace_cleanup import WorkspaceCleanup
from torchx_kfp.tracking.workspaces import PackedWorkspace, pack_folders

DAY = 86400.0


def pack(store: Store, folder: Path, text: str) -> PackedWorkspace:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(text)
    return pack_folders(store, {str(folder): ""})


def age(base: Path, days: float, *names: str) -> None:
    for path in base.rglob("*"):
        if path.is_file() and any(name in str(path) for name in names or [""]):
            os.utime(path, (time.time() - days * DAY,) * 2)


def test_archives_that_no_run_uses_are_removed(tmp_path: Path) -> None:
    base = tmp_path / "base"
    recorder = Recorder.open(str(base))
    packed = {
        name: pack(recorder.store, tmp_path / "code", name) for name in ("old", "both", "unknown", "today", "scheduled")
    }
    assert all(it.upload() for it in packed.values())
    for run, its in {"old-run": ("old", "both"), "new-run": ("both",)}.items():
        recorder.add_start(run, [packed[name].code for name in its], {})
        recorder[f"{run}/train/1"] = {"x": 1}
    recorder.add_schedule("5f0c", [packed["scheduled"].code])
    recorder.store.write(".torchx_kfp/workspaces/notes.tar", b"of somebody else")
    age(base, 60)
    age(base, 0, "new-run", packed["today"].digest)
    before = time.time() - 30 * DAY

    def unused(before: float, *going: str) -> list[str]:
        found = {it.digest for it in WorkspaceCleanup(recorder.store, before).look(going)}
        return [name for name, it in packed.items() if it.digest in found]

    assert unused(before) == ["unknown"]
    assert unused(before, "old-run") == ["old", "unknown"]
    assert unused(before, "old-run", "new-run") == ["old", "both", "unknown"]
    # However short the age is, what was used within a day stays: the run may not have been recorded yet.
    age(base, 0.9, packed["today"].digest)
    assert "today" not in unused(time.time())
    age(base, 1.1, packed["today"].digest)
    assert "today" in unused(time.time())

    assert [run.run for run in Cleanup(recorder.store, before).remove()] == ["old-run"]
    gone = {it.digest for it in WorkspaceCleanup(recorder.store, before).remove()}
    assert gone == {packed["old"].digest, packed["unknown"].digest}
    left = sorted(path.name for path in (base / ".torchx_kfp/workspaces").iterdir())
    assert left == sorted(["notes.tar", *(f"{packed[name].digest}.tar" for name in ("both", "today", "scheduled"))])


def test_what_runs_have_recorded_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time in which gc may remove archives would pass with reading, if there are many."""
    monkeypatch.setattr("torchx_kfp.tracking.workspace_cleanup._MANY", 1)
    recorder = Recorder.open(str(tmp_path / "base"))
    packed = [pack(recorder.store, tmp_path / "code", str(number)) for number in range(3)]
    assert all(it.upload() for it in packed)
    for run in ("one", "two"):
        recorder.add_start(run, [packed[0].code], {})
    age(tmp_path / "base", 60)
    read: list[str] = []
    one = recorder.store.read
    monkeypatch.setattr(recorder.store, "read", lambda key, most=None: read.append(key) or one(key, most))
    cleanup = WorkspaceCleanup(recorder.store, time.time() - 30 * DAY)
    assert len(cleanup.look()) == 2
    assert {it.digest for it in cleanup.remove()} == {it.digest for it in packed[1:]}
    assert len(read) == 2


def test_code_that_cannot_be_read_stops_the_removal(tmp_path: Path) -> None:
    recorder = Recorder.open(str(tmp_path / "base"))
    pack(recorder.store, tmp_path / "code", "x").upload()
    recorder.add_facts("run", code=[{"digest": 1, "size": "much"}])
    age(tmp_path / "base", 60)
    with pytest.raises(CorruptResultError, match="run"):
        list(WorkspaceCleanup(recorder.store, time.time() - 30 * DAY).remove())
    assert len(list((tmp_path / "base/.torchx_kfp/workspaces").iterdir())) == 1


def test_an_old_archive_is_used_again_without_another_upload(tmp_path: Path) -> None:
    recorder = Recorder.open(str(tmp_path / "base"))
    packed = pack(recorder.store, tmp_path / "code", "x")
    assert packed.upload()
    age(tmp_path / "base", 60)
    [archive] = (tmp_path / "base/.torchx_kfp/workspaces").iterdir()
    before = archive.stat()
    assert not packed.upload()
    after = archive.stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, before.st_mtime)
    assert WorkspaceCleanup(recorder.store, time.time() - 30 * DAY).look() == []
    # Both files grow old, and go together.
    age(tmp_path / "base", 40)
    assert [it.digest for it in WorkspaceCleanup(recorder.store, time.time() - 30 * DAY).remove()] == [packed.digest]
    assert not archive.parent.exists()


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


def test_what_a_killed_gc_has_left_holds_up_nobody(tmp_path: Path) -> None:
    store = FsspecResultTracker(tmp_path / "base").store
    packed = pack(store, tmp_path / "code", "x")
    packed.upload()
    store.write(f".torchx_kfp/workspaces/{packed.digest}.removing", b"")
    age(tmp_path / "base", 60)
    assert not packed.upload()
    age(tmp_path / "base", 60)
    assert [it.digest for it in WorkspaceCleanup(store, time.time() - 30 * DAY).remove()] == [packed.digest]
    assert store.files() == []
