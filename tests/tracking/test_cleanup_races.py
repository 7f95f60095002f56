"""What gc and others do at the same time, seen from inside."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.load import attack
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.tracking import FsspecResultTracker, cleanup
from torchx_kfp.tracking.cleanup import find_old_runs, find_unused_code, remove_code, remove_runs
from torchx_kfp.tracking.store import File
from torchx_kfp.tracking.workspaces import pack_folders

DAY = 86400.0


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
    (seen,) = store.list_files()
    store.write("run/train/1", b'{"a": 2}')
    os.utime(store.location("run/train/1"), (seen.modified + 1,) * 2)
    assert not store.remove(seen)
    assert store.read("run/train/1") == b'{"a": 2}'
    assert store.remove(store.list_files()[0])
    assert store.remove(File("run/train/1", 1, 1.0)), "what is gone is gone"
    assert os.listdir(tmp_path) == []


def test_a_put_waits_for_the_instant_of_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds the key without results after the put."""
    store = FsspecResultTracker(tmp_path).store
    store.write("run/train/1", b"{}")
    (seen,) = store.list_files()
    writer = threading.Thread(target=store.write, args=("run/train/1", b'{"a": 1}'))
    unlink = os.unlink

    def late(*given: Any, **options: Any) -> None:
        writer.start()
        writer.join(0.2)
        assert store.read("run/train/1") == b"{}"
        unlink(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", late)
        assert store.remove(seen)
    writer.join()
    assert store.read("run/train/1") == b'{"a": 1}'
    assert os.listdir(tmp_path / "run/train") == ["1"]


def test_a_folder_that_a_stranger_keeps_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may lock its run's folder: the run stays, results are written, and nobody waits forever."""
    monkeypatch.setattr("torchx_kfp.common.safe_files._LOCK_SECONDS", 0.1)
    store = FsspecResultTracker(tmp_path).store
    store.write("run/train/1", b"{}")
    stranger = os.open(tmp_path / "run/train", os.O_RDONLY)
    fcntl.flock(stranger, fcntl.LOCK_EX)
    assert not store.remove(store.list_files()[0])
    store.write("run/train/1", b'{"a": 1}')
    assert store.read("run/train/1") == b'{"a": 1}'
    os.close(stranger)
    assert store.remove(store.list_files()[0])


def test_a_run_is_listed_again_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_MANY", 2)
    tracker = FsspecResultTracker(tmp_path)
    for number in range(32):
        tracker.put(f"run-{number}-20260101-120000-0a1b2c/train/1", loss=1)
    age(tmp_path, 60)
    done = remove_runs(tracker.store, find_old_runs(tracker.store, time.time() - 30 * DAY).old)
    first = next(done)
    left = tracker.keys()[-1]
    tracker.put(left.replace("/1", "/2"), loss=1)
    assert len(list(done)) == 30
    assert not left.startswith(f"{first.run}/")
    assert tracker.keys() == [left, left.replace("/1", "/2")]


def test_a_file_that_is_gone_since_it_was_listed_is_no_problem(tmp_path: Path) -> None:
    """Another gc is at work."""
    store = FsspecResultTracker(tmp_path).store
    for run in ("one", "two"):
        store.write(f"{run}-20260101-120000-0a1b2c/train/1", b"{}")
    old = find_old_runs(store, time.time() + DAY).old
    store.remove(old[0].files[0])
    assert list(remove_runs(store, old)) == list(old)


@pytest.mark.parametrize("first", ["gc", "submit"])
def test_an_archive_that_is_used_again_stays(base: str, tmp_path: Path, first: str) -> None:
    """A submit stores an archive of half a day again, and gc removes none that is younger than a day."""
    store = FsspecResultTracker(base).store
    (tmp_path / "code").mkdir()
    (tmp_path / "code/app.py").write_text("x")
    packed = pack_folders(store, {str(tmp_path / "code"): ""})
    assert packed.upload()
    assert not packed.upload(), "it is fresh"
    clock = time.time()

    def collect() -> list[str]:
        return [code.digest for code in remove_code(store, find_unused_code(store, time.time()))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: clock + 23.9 * 3600)
        assert collect() == [], "a day has not passed"
        patch.setattr(time, "time", lambda: clock + 24.1 * 3600)
        if first == "gc":
            assert collect() == [packed.digest]
        # Times of S3 are whole seconds.
        seen = [
            replace(it, archive=it.archive._replace(modified=clock - 1)) for it in find_unused_code(store, time.time())
        ]
        assert packed.upload(), "it is stored again"
        assert list(remove_code(store, seen)) == [], "since gc has looked"
    assert collect() == []
    assert store.read(workspace_key(packed.digest)) == packed.archive
