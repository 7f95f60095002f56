"""Writing to a local directory: atomic, durable, and tidy, whatever happens to the writers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.facts import says
from tests.tracking.stages import stage, started
from torchx_kfp.common import safe_files
from torchx_kfp.errors import CorruptResultError, RefusedError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker

#: Puts results forever, in a form that shows whether they are complete. Arguments: base, key, writer.
WRITER = """
import itertools, sys
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import File

base, key, writer = sys.argv[1:]
tracker = FsspecResultTracker(base)
print("ready", flush=True)
for number in itertools.count(1):
    # Of changing length, so that a mixture of two shows.
    text = str(number % 10) * (number % 1000)
    tracker.put(key.replace("#", str(number)), writer=writer, number=number, text=text, length=len(text))
    if number % 50 == 0:
        print(number, flush=True)
"""


def start_writer(base: Path, key: str, writer: int) -> subprocess.Popen[str]:
    return started(WRITER, base, key, writer)


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def check_whole(results: dict[str, object]) -> None:
    assert results.keys() == {"writer", "number", "text", "length"}
    number = results["number"]
    assert isinstance(number, int)
    assert results["text"] == str(number % 10) * (number % 1000)
    assert results["length"] == number % 1000


def visible(base: Path) -> list[str]:
    """Return all files and folders that a listing of the base shows."""
    return sorted(str(path.relative_to(base)) for path in base.rglob("*"))


def test_readers_beside_writers_see_whole_results(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    writers = [start_writer(tmp_path, "run/x", writer) for writer in (1, 2)]
    seen: set[tuple[object, object]] = set()
    failures: list[BaseException] = []

    def has_seen_enough() -> bool:
        return len(seen) > 500 and {writer for writer, _ in list(seen)} == {"1", "2"}

    def read() -> None:
        try:
            while not (has_seen_enough() or failures or any(writer.poll() is not None for writer in writers)):
                results = tracker["run/x"]
                if results:
                    check_whole(results)
                    seen.add((results["writer"], results["number"]))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert all(writer.poll() is None for writer in writers), "a writer failed"
    for writer in writers:
        stop(writer)
    assert not failures
    assert has_seen_enough()
    with (tmp_path / "run/x").open() as before:
        tracker["run/x"] = {"last": 1}
        check_whole(json.loads(before.read()))  # a reader that has the file open sees the old one
    assert json.loads((tmp_path / "run/x").read_text()) == {"last": 1}
    assert tracker.keys() == ["run/x"]


def test_killed_writers_leave_whole_files(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    chance = random.Random(7)
    turns = 0
    while turns < 12 or len(tracker.keys("new")) <= 10:  # a slow disk takes more turns
        turns += 1
        same = start_writer(tmp_path, "run/x", turns)
        new = start_writer(tmp_path, f"new/{turns}-#", turns)
        time.sleep(chance.uniform(0, 0.1))
        for process in (same, new):
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        for key in tracker.keys():  # noqa: SIM118 (not a mapping)
            check_whole(tracker[key])
            assert key == "run/x" or key.startswith("new/")
    left = {name for name in visible(tmp_path) if ".torchx_kfp" in name}
    assert {file.key for file in tracker.store.list_files()} == {*visible(tmp_path)} - {"run", "new"} - left


def test_what_was_put_is_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append("content" if ".torchx_kfp" in name else os.path.relpath(name, tmp_path))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", recording)
    tracker = FsspecResultTracker(tmp_path / "base")
    tracker["a/b/run"] = {"x": 1}
    # New folders are entries of folders themselves.
    assert synced == [".", "base", "base/a", "content", "base/a/b"]
    synced.clear()
    tracker["a/b/run"] = {"x": 2}
    assert synced == ["content", "base/a/b"]


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_have_the_mode_that_open_would_give(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        tracker = FsspecResultTracker(tmp_path / "base")
        for number in range(2):  # new and replaced
            tracker["folder/run"] = {"x": number}
            assert (tmp_path / "base/folder/run").stat().st_mode & 0o777 == 0o666 & ~mask
        assert (tmp_path / "base/folder").stat().st_mode & 0o777 == 0o777 & ~mask
    finally:
        os.umask(before)


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path / "base")
    writer = start_writer(tmp_path / "base", "a/b/c", 1)
    try:
        for _ in range(200):
            for place in ("base/a/b/c", "base/a/b", "base/a"):
                path = tmp_path / place
                with contextlib.suppress(OSError):
                    path.unlink() if place.endswith("c") else path.rmdir()
            time.sleep(0.002)
        assert writer.poll() is None, "the writer failed"
        deadline = time.monotonic() + 120
        while not tracker["a/b/c"]:
            assert time.monotonic() < deadline
    finally:
        stop(writer)


def test_keys_of_other_programs_do_not_stop_a_listing(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    tracker["run"] = {"x": 1}
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff", os.O_CREAT))
    for name, place in (("link", tmp_path), ("loop", "loop"), ("nowhere", "missing")):
        (tmp_path / name).symlink_to(place)
    os.mkfifo(tmp_path / "pipe")
    assert tracker.keys() == ["run"]


def test_names_are_utf8_in_any_locale(tmp_path: Path) -> None:
    code = (
        "from torchx_kfp.tracking import *; import sys; FsspecResultTracker(sys.argv[1])['gr\\xf6\\u4e2d'] = {'x': 1}"
    )
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environ, check=True)
    assert os.listdir(os.fsencode(tmp_path)) == ["grö中".encode()]


@pytest.mark.parametrize("below", ["", "/deeper/base"])
def test_a_base_that_is_a_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("{}")
    tracker = FsspecResultTracker(f"{tmp_path}/file{below}")
    for action, verb in ((lambda: tracker.put("run", x=1), "write"), (lambda: tracker.get("run"), "read")):
        with pytest.raises(TrackerError, match=says(verb, "/run", "tracker base", "directory")) as caught:
            action()
        assert isinstance(caught.value.__cause__, NotADirectoryError)
        assert not isinstance(caught.value, RefusedError)
    with pytest.raises(TrackerError, match=says("list", "directory", "Name")):
        tracker.keys()


#: A line of a program that takes a right from root that other users do not have: to access files whatever their mode.
UNPRIVILEGED = (
    "import ctypes, os; "
    "os.geteuid() or ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"
)


def test_a_missing_permission_names_the_file_and_the_user(tmp_path: Path) -> None:
    code = f"""
import os, sys
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import File
from torchx_kfp.errors import TrackerError

tracker = FsspecResultTracker(sys.argv[1])
tracker["run"] = {{"x": 1}}
os.chmod(sys.argv[1] + "/run", 0o000)
os.chmod(sys.argv[1], 0o555)
{UNPRIVILEGED}
for action in (lambda: tracker.put("run", x=1), lambda: tracker.put("a/b", x=1), lambda: tracker.get("run")):
    try:
        action()
    except TrackerError as error:
        print(type(error).__name__, type(error.__cause__).__name__, error)
"""
    base = tmp_path / "base"
    try:
        done = subprocess.run([sys.executable, "-c", code, str(base)], capture_output=True, text=True, check=True)
    finally:
        base.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line, what in zip(lines, (f"write {base}/run", f"write {base}/a/b", f"read {base}/run"), strict=True):
        assert line.startswith(
            f"TrackerError PermissionError No permission to {what} (Permission denied). Check that user id "
        )


def test_a_full_disk_keeps_the_old_results(tmp_path: Path) -> None:
    """A limit on the size of files simulates the disk."""
    code = """
import resource, signal, sys
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import File

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tracker = FsspecResultTracker(sys.argv[1])
tracker["run"] = {"x": 1}
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    tracker["run"] = {"x": "long" * 100}
except Exception as error:
    print(type(error).__name__, error)
assert tracker["run"] == {"x": 1}
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"TrackerError Cannot write {tmp_path}/run (File too large). Check the tracker base")
    assert visible(tmp_path) == ["run"]


def test_keys_of_more_parts_than_python_has_stack(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    key = "/".join(["a"] * 1500)
    try:
        tracker[key] = {"x": 1}
        assert tracker.keys() == [key]
    finally:
        # pytest would tidy up with Python's rmtree, which is recursive.
        subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)


@pytest.mark.parametrize("kind", ["FIFO", "symbolic link", "socket"])
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    tracker = FsspecResultTracker(tmp_path)
    path = tmp_path / "a" / "b"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "FIFO":
            os.mkfifo(path)
        elif kind == "socket":
            bound.bind(str(path))
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(CorruptResultError, match=says("a/b", kind)):
            tracker.get("a/b")
        assert len(tracker.get_many(["a/b"]).problems) == 1
        assert dict(tracker.items()) == {}
        tracker.update("a/b", accuracy=0.5)
    assert tracker["a/b"] == {"accuracy": 0.5}, "as what else is no result, it is replaced"
    assert os.path.isfile(path)
    assert not path.is_symlink()


def test_a_tracker_base_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("~/results", "file://~/results"):
        FsspecResultTracker(base)["a"] = {"x": 1}
    assert (tmp_path / "results" / "a").is_file()
    with pytest.raises(TrackerError, match=says("'~nobody-of-that-name/x'", "'~'", "folder", "Write")):
        FsspecResultTracker("~nobody-of-that-name/x")


def test_a_folder_that_is_read_as_results_leaves_no_descriptor_open(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    tracker["run/a"] = {"x": 1}
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(RefusedError, match="'run'"):
            tracker.get("run")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_another_client_of_nfs_has_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = FsspecResultTracker(tmp_path)
    tracker["run"] = {"x": 1}
    stale = iter([OSError(errno.ESTALE, os.strerror(errno.ESTALE))])
    opened = safe_files.open_regular

    def open_stale(*given: Any) -> int:
        for error in stale:
            raise error
        return opened(*given)

    monkeypatch.setattr("torchx_kfp.tracking.disk.open_regular", open_stale)
    assert tracker["run"] == {"x": 1}


class TestLinks:
    """A base may be somebody else's: what is read there is in it."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Path:
        folder = tmp_path / "elsewhere"
        (folder / "train").mkdir(parents=True)
        (folder / "train" / "1").write_text('{"secret": 1}')
        return folder

    @pytest.mark.parametrize("place", ["run", "run/train", "run/train/1"])
    def test_those_that_lead_out_of_a_base_are_not_read(self, tmp_path: Path, elsewhere: Path, place: str) -> None:
        tracker = FsspecResultTracker(tmp_path / "base")
        tracker["other"] = {"x": 1}
        link = tmp_path / "base" / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(elsewhere / os.path.relpath(place, "run"))
        with pytest.raises(TrackerError, match="is a symbolic link out of"):
            tracker.get("run/train/1")
        assert tracker.keys() == ["other"]
        assert tracker.keys("run") == tracker.keys("run/train") == tracker.keys("run/train/1") == []
        assert dict(tracker.items()) == {"other": {"x": 1}}

    def test_a_base_may_be_reached_through_one(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to("disk")
        for base in ("link", "link/new/base"):
            tracker = FsspecResultTracker(tmp_path / base)
            tracker["run/train/1"] = {"x": 1}
            tracker["run/train/1"] = {"x": 2}
            assert tracker.keys("run") == ["run/train/1"]
            assert json.loads((tmp_path / base.replace("link", "disk") / "run/train/1").read_text()) == {"x": 2}
            tracker.store.remove("run/train/1")
            assert tracker.keys() == []


@pytest.mark.parametrize("mode", [0o777, 0o2775, 0o755])
def test_folders_have_the_mode_of_the_base(mode: int, tmp_path: Path) -> None:
    """Otherwise, a stage whose image has another user cannot record."""
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(mode)
    run = stage(base)
    run.put(loss=0.5)
    (tmp_path / "file").touch()
    run.add_artifact("model", tmp_path / "file", store=True)
    folders = [path for path in base.rglob("*") if path.is_dir()]
    assert len(folders) > 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {mode}
