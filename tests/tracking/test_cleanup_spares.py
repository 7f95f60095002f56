"""Files that gc spares: those that are written while it works, and those that are not results of stages."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from benchmarks.load import attack
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking.lineage import record_start
from torchx_kfp.tracking.store import File


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


def test_a_folder_in_which_somebody_writes_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchx_kfp.common import files

    store = FsspecResultTracker(tmp_path).store
    for key in ("run/train/1", "other/train/1"):
        store.write(key, b"{}")
    other, run = store.files()
    writing, going_on = threading.Event(), threading.Event()
    unnamed = files._write_unnamed

    def slow(*given: object) -> bool:
        writing.set()
        assert going_on.wait(30)
        return unnamed(*given)

    monkeypatch.setattr(files, "_write_unnamed", slow)
    writer = threading.Thread(target=store.write, args=("run/train/2", b"{}"))
    writer.start()
    assert writing.wait(30)
    assert not store.remove_old(run)
    assert store.remove_old(other)
    going_on.set()
    writer.join()
    assert store.remove_old(run)
    assert [file.key for file in store.files()] == ["run/train/2"]


#: Names of pipeline runs that engines make.
MADE = [
    "digits-20260101-120000-0a1b2c",
    "a.b-c-20260101-120000-abcdef",
    "0b54c2f6-6a5c-4a0e-9e3f-0f3a1e3c5d7b",
]
#: Other names, as in a folder of programs, for example.
OTHERS = ["a", "src", "2026-01-01", "digits-20260101", "0b54c2f6-6a5c-4a0e-9e3f", "x-20260101-120000-0A1B2C"]


@pytest.mark.parametrize("content", ["{}", '{"loss": 0.5}'])
def test_what_nothing_tells_to_be_a_result_is_left_alone(tmp_path: Path, content: str) -> None:
    store = FsspecResultTracker(tmp_path).store
    for run in (*MADE, *OTHERS):
        store.write(f"{run}/b/Makefile", content.encode())
    cleanup = Cleanup(store, time.time() + 100)
    reasons = {run: f"nothing shows that '{run}/b/Makefile' is a result of a stage" for run in OTHERS}
    assert cleanup.look().left_alone == reasons
    assert sorted(run.run for run in cleanup.remove()) == sorted(MADE)


def test_the_tracker_knows_the_stages_that_have_started(tmp_path: Path) -> None:
    store = FsspecResultTracker(tmp_path).store
    for run in ("try", "other"):
        store.write(f"{run}/app/1", json.dumps({"x": 1}).encode())
    record_start(store, "try/app/1", {})
    assert [run.run for run in Cleanup(store, time.time() + 100).remove()] == ["try"]
    assert [file.key for file in store.files()] == ["other/app/1"]
