"""What gc and others do at the same time, seen from inside."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.load import attack
from tests.entrypoints.cli.conftest import Call
from tests.tracking.conftest import MADE, Gc
from tests.tracking.test_cleanup import DAY, age, fill, key_of, left, put
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.tracking import FsspecResultTracker, cleanup
from torchx_kfp.tracking.cleanup import find_old_runs, find_unused_code, remove_code, remove_runs
from torchx_kfp.tracking.store import File
from torchx_kfp.tracking.workspaces import pack_folders


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


@pytest.mark.parametrize("newer", [False, True])
def test_a_file_that_is_written_in_the_instant_of_its_removal_stays(
    newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FsspecResultTracker(tmp_path).store
    store.write("run/train/1", b"{}")
    (seen,) = store.list_files()
    rename = os.rename

    def late(*given: Any, **options: Any) -> None:
        store.write("run/train/1", b'{"a": 1}')
        rename(*given, **options)
        if newer:
            store.write("run/train/1", b'{"a": 2}')

    monkeypatch.setattr("os.rename", late)
    assert not store.remove(seen)
    assert store.read("run/train/1") == (b'{"a": 2}' if newer else b'{"a": 1}')
    assert os.listdir(tmp_path / "run/train") == ["1"]


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
        return list(remove_code(store, find_unused_code(store, time.time())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: clock + 23.9 * 3600)
        assert collect() == [], "a day has not passed"
        patch.setattr(time, "time", lambda: clock + 24.1 * 3600)
        if first == "gc":
            assert collect() == [packed.digest]
        # Times of S3 are whole seconds.
        found = find_unused_code(store, time.time())
        seen = {digest: file._replace(modified=clock - 1) for digest, file in found.items()}
        assert packed.upload(), "it is stored again"
        assert remove_code(store, seen) == {}, "since gc has looked"
    assert collect() == []
    assert store.read(workspace_key(packed.digest)) == packed.archive


# Interruptions: whatever happens in between, a second call finishes the removal, and new files stay


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "broken")], ids=["Ctrl-C", "disk"])
def test_a_second_call_finishes_the_removal(
    error: BaseException, inside: Call, gc: Gc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in range(8):
        base = tmp_path / f"base-{after}"
        for run in ("one~", "two~"):
            put(base, f"{run}/train/1", f"{run}/train/2", f"metadata:{run}/train/1", f"sources:{run}/train/2")
        age(base)
        rename = os.rename
        count = iter(range(100))

        def fail(*given: Any, count: Any = count, after: int = after, rename: Any = rename, **options: Any) -> None:
            if next(count) >= after:
                raise error
            rename(*given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail)
            done = inside("gc", "--tracker-base", str(base), "--yes", "--older-than", "30d")
            # A program waits for the pool's threads when it ends; here, they would go on beside the second call.
            for thread in threading.enumerate():
                if thread.name.startswith("torchx-kfp_"):
                    thread.join(60)
        assert done.returncode == (130 if isinstance(error, KeyboardInterrupt) else 1)
        assert done.stdout.count("not removed, or only in part: run gc again") == 2
        keys = left(base)
        assert len(keys) == 8 - after
        if any(".torchx_kfp" not in key for key in keys):
            assert sum(".sources." in key for key in keys) == 2, "there are never results whose sources are gone"
        assert gc(base)["removed"]
        assert left(base) == []


def test_a_question_explains_a_short_age(inside: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "run~/train/1")
    age(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("click.confirm", lambda question, **_: asked.append(question))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    done = inside("gc", "--tracker-base", str(tmp_path), "--older-than", "1m")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Remove 1 pipeline run, older than 1m 00s: " in asked[0]
    assert done.stderr.endswith("Nothing was removed.\n")
    assert left(tmp_path) == ["run~/train/1"]


def test_what_is_written_used_or_changed_meanwhile_stays(
    inside: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While gc asks, others go on."""
    base = tmp_path / "base"
    put(base, "again~/train/1", "used~/train/1", "other~/train/1", "goes~/train/1")
    age(base)

    def answer(question: str, **_: object) -> bool:
        assert "Remove 4 pipeline runs" in question
        fill(base, "0 again~/train/2\n0 sources:new~/s/1 < used~/train/1\n60 other~/train/1 something else")
        return True

    monkeypatch.setattr("click.confirm", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    done = inside("gc", "--tracker-base", str(base), "--older-than", "30d")
    assert "Removed 1 pipeline run, 1 file" in done.stdout, done
    assert left(base) == [
        key_of("sources:new~/s/1").replace(MADE, "~"), "again~/train/1", "again~/train/2", "other~/train/1",
        "used~/train/1",
    ]  # fmt: skip


def test_runs_of_other_users_do_not_keep_the_others(
    inside: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "mine~/train/1", "others~/train/1", "yours~/train/1", "metadata:others~/train/1")
    age(tmp_path)
    rename = os.rename

    def refuse(*names: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        if "/others-" in os.readlink(f"/proc/self/fd/{src_dir_fd}"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        rename(*names, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        done = inside("gc", "--tracker-base", str(tmp_path), "--yes", "--older-than", "30d")
    assert done.returncode == 1
    assert "No permission to remove" in done.stderr
    assert "Removed 2 pipeline runs" in done.stdout
    assert left(tmp_path) == [".torchx_kfp/runs/others~/train/1/1.metadata", "others~/train/1"]
