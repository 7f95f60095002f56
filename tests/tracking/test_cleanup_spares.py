"""Files that gc spares: those that are written while it works, and those that are not results of stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking.lineage import record_start
from torchx_kfp.tracking.store import File

#: Puts results under its own keys in turn, each of which it has just made old, and checks that the results are there.
#: Every tenth time, it leaves something that stays old.
WRITER = """
import os, sys, time
from torchx_kfp.tracking import FsspecResultTracker
base, name, puts = sys.argv[1], sys.argv[2], int(sys.argv[3])
tracker = FsspecResultTracker(base)
keys = [f"{name}{number}-20200101-120000-0a1b2c/train/1" for number in range(20)]
lost = 0
for turn in range(puts):
    key = keys[turn % len(keys)]
    try:
        os.utime(tracker.location(key), (0, 0))
    except FileNotFoundError:
        pass
    if turn % 10 == 0:
        old = f"{name}old-{turn}-20200101-120000-0a1b2c/train/1"
        tracker.put(old, turn=turn)
        os.utime(tracker.location(old), (0, 0))
    tracker.put(key, turn=turn)
    lost += tracker.get(key) != {"turn": turn}
    older = (turn // 2) * 2 - 2
    if older >= 0 and turn - older < len(keys):
        lost += tracker.get(keys[older % len(keys)]) != {"turn": older}
print(lost)
"""
#: Removes everything that is older than this many seconds, again and again.
COLLECTOR = """
import select, sys, time
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking import FsspecResultTracker
removed = 0
store = FsspecResultTracker(sys.argv[1]).store
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    removed += sum(1 for _ in Cleanup(store, time.time() - 600).remove())
print(removed)
"""


def attack(base: Path, puts: int, writers: int = 3, collectors: int = 2) -> tuple[int, int]:
    """Return how many of the puts were lost, and how many runs were removed meanwhile."""

    def start(program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(base), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    base.mkdir()
    collecting = [start(COLLECTOR) for _ in range(collectors)]
    for process in collecting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    writing = [start(WRITER, f"writer-{number}-", str(puts // writers)) for number in range(writers)]
    try:
        lost = [process.communicate(timeout=280)[0] for process in writing]
        removed = [process.communicate("end\n", timeout=60)[0] for process in collecting]
    finally:
        for process in (*writing, *collecting):
            process.kill()
            process.wait()
    return sum(map(int, lost)), sum(map(int, removed))


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


if __name__ == "__main__":
    lost, removed = attack(Path(sys.argv[1]), int(sys.argv[2]))
    print(f"lost {lost}, removed {removed}")
