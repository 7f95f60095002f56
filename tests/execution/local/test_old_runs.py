"""What gc does with folders of runs that are not as usual; ``test_gc_runs`` has the usual ones."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.local.old_runs import remove, select
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished, encode
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

KEYS = {"a": "a" * 64, "bb": "b" * 64}


def make(top: Path, name: str, *, is_over: bool = True, **request: object) -> Path:
    """Make the folder of a run by hand."""
    folder = top / name
    (folder / "train_1").mkdir(parents=True)
    (folder / "train_1" / "log.txt").write_text("x" * 1000)
    events = [RunStarted("p", name, folder), RunFinished(name, State.SUCCEEDED, 1.0)][: 2 if is_over else 1]
    (folder / "events.jsonl").write_text("".join(json.dumps(encode(event)) + "\n" for event in events))
    (folder / "run.json").write_text(json.dumps({"version": 1, "run_id": name, "created": len(name), **request}))
    (folder / "lock").write_text("1\n")
    return folder


def reasons(top: Path) -> dict[str, str]:
    return {run.folder.name: run.kept for run in select(top, keep=0)}


def removed(top: Path) -> list[str]:
    return [run.folder.name for run in remove(top, select(top, keep=0))]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run whose end is recorded is known not to be running."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    make(tmp_path, "over")
    make(tmp_path, "unknown", is_over=False)
    assert reasons(tmp_path) == {"over": "", "unknown": ""}
    chosen = select(tmp_path, keep=0)
    monkeypatch.setattr(fcntl, "flock", flock)
    assert reasons(tmp_path) == {"over": "", "unknown": "whether it is running is unknown here"}
    assert [run.folder.name for run in remove(tmp_path, chosen)] == ["over"]
    assert os.listdir(tmp_path) == ["unknown"]


def test_what_is_behind_a_link_stays_and_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    elsewhere, here = make(tmp_path / "elsewhere", "far"), make(tmp_path / "runs", "near")
    (tmp_path / "runs/linked").symlink_to(elsewhere)
    (here / "data").symlink_to(elsewhere)
    sizes = {run.folder.name: run.size for run in select(tmp_path / "runs", keep=0)}
    assert (1000 < sizes["near"] < 2000, sizes["linked"]) == (True, 0)
    assert reasons(tmp_path / "runs") == {"near": "", "linked": "it is a symbolic link"}
    assert removed(tmp_path / "runs") == ["near"]
    assert os.listdir(tmp_path / "runs") == ["linked"]
    assert (elsewhere / "train_1/log.txt").exists()


def test_a_run_that_is_used_meanwhile_stays(tmp_path: Path) -> None:
    for name, more in {"a": {}, "bb": {}, "ccc": {"resumes": "a"}, "dddd": {}}.items():
        make(tmp_path, name, **more)
    chosen = select(tmp_path, keep=0)
    user = make(tmp_path, "new-run", is_over=False, resumes="ccc")
    replay = make(tmp_path / "replays", "replay", is_over=False, options={"replays": "bb/train"})
    with (user / "lock").open() as lock, (replay / "lock").open() as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert {run.folder.name for run in remove(tmp_path, chosen)} == {"dddd"}
        assert reasons(tmp_path)["bb"] == "used by replay"
    assert reasons(tmp_path)["bb"] == "", "a replay that is over does not need it"


def test_gc_waits_until_a_stage_that_was_taken_is_recorded(tmp_path: Path) -> None:
    for name in ("a", "bb"):
        make(tmp_path, name)
        end = StageResult("train", "train", State.SUCCEEDED, log_file=tmp_path / name / "train_1/log.txt")
        Cache(tmp_path / ".cache", name).put(KEYS[name], end)
    chosen = select(tmp_path, keep=0)
    gone: list[str] = []
    gc = threading.Thread(target=lambda: gone.extend(run.folder.name for run in remove(tmp_path, chosen)))
    cache = Cache(tmp_path / ".cache", "another")
    with cache.taking():
        gc.start()
        found = cache.get(KEYS["a"])
        assert found is not None
        time.sleep(0.2)
        assert (tmp_path / "bb").exists()
        taker = make(tmp_path, "ccc")
        with (taker / "events.jsonl").open("a") as file:
            file.write(json.dumps(encode(StageFinished(found))) + "\n")
    gc.join()
    assert gone == ["bb"]
    assert cache.get(KEYS["a"]) is not None, "nothing of it has gone"
    assert not list(tmp_path.glob(f".cache/*/{KEYS['bb']}.json"))


def test_a_younger_run_is_used(tmp_path: Path) -> None:
    """An old run was resumed, with stages of a younger one."""
    make(tmp_path, "b", resumes="a-younger-one")
    make(tmp_path, "a-younger-one")
    os.utime(tmp_path / "a-younger-one/events.jsonl", (1, 1))
    os.utime(tmp_path / "a-younger-one", (1, 1))
    assert {run.folder.name: run.kept for run in select(tmp_path, age=3600)} == {
        "a-younger-one": "used by b",
        "b": "not that old",
    }


def test_two_that_remove_the_same_runs(tmp_path: Path) -> None:
    """The second one waits, and finds that they are gone."""
    for number in range(20):
        make(tmp_path, f"run-{number}")
    chosen = select(tmp_path, keep=0)
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([run.folder.name for run in remove(tmp_path, chosen)]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sorted(names) for names in found] == [sorted(run.folder.name for run in chosen)] * 3
    assert os.listdir(tmp_path) == []


def test_folders_that_forbid_to_write_to_them(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that cannot be removed does not keep others. A file that is also elsewhere stays there as it is."""
    for name in ("a", "bb", "ccc"):
        make(tmp_path, name)
    (tmp_path / "bb/train_1").chmod(0o500)
    (tmp_path / "ccc/train_1/deep").mkdir()
    (tmp_path / "ccc/train_1/deep/file").write_text("x")
    shared = tmp_path_factory.mktemp("elsewhere") / "file"
    shared.touch(0o400)
    (tmp_path / "ccc/train_1/deep/link").hardlink_to(shared)
    (tmp_path / "ccc/train_1/deep").chmod(0)
    (tmp_path / "ccc/train_1").chmod(0)
    # Root, and the programs that it starts, may write to all folders unless they lose CAP_DAC_OVERRIDE and
    # CAP_DAC_READ_SEARCH: PR_CAPBSET_DROP is for the programs.
    program = (
        "import ctypes, os, sys; from tests.execution.local.test_old_runs import removed; from pathlib import Path; "
        "libc = ctypes.CDLL(None); os.geteuid() or [libc.prctl(24, number) for number in (1, 2)]; "
        "os.geteuid() or libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()); "
        "print(*removed(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"a", "bb", "ccc"}
    assert os.listdir(tmp_path) == []
    assert shared.stat().st_mode & 0o777 == 0o400


def test_deep_folders_and_pipes_are_removed(tmp_path: Path) -> None:
    """A stage may leave them: a tree deeper than Python's stack, and than a process may open folders."""
    deep = make(tmp_path, "a") / "train_1" / "made"
    deep.mkdir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=descriptor)
        above, descriptor = descriptor, os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(above)
    os.mkfifo("pipe", dir_fd=descriptor)
    os.close(descriptor)
    (tmp_path / ".cache/aa").mkdir(parents=True)
    os.mkfifo(tmp_path / ".cache/aa/entry.json")
    assert removed(tmp_path) == ["a"]
    assert os.listdir(tmp_path) == [".cache"]


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "bb", "ccc"):
        make(tmp_path, name)
    rename = Path.rename

    def refuse(folder: Path, target: Path) -> Path:
        if folder.name == "bb":  # as where a file system is mounted
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(folder, target)

    monkeypatch.setattr(Path, "rename", refuse)
    gone: list[str] = []
    with pytest.raises(ArgumentError, match=says("bb", "busy")):
        gone.extend(run.folder.name for run in remove(tmp_path, select(tmp_path, keep=0)))
    assert os.listdir(tmp_path) == ["bb"]
