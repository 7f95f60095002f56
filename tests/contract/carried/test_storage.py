"""How programs in pods open, read and write storage, as the tracker does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from tests.contract.carried.published import RUN_ID, Stage
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp.contract.carried import storage
from torchx_kfp.contract.carried.storage import write_whole
from torchx_kfp.contract.scripts import workspace_words
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.record_tracker import RecordTracker
from torchx_kfp.tracking.workspaces import pack_folders


class Elsewhere(LocalFileSystem):
    """A file system that is neither a disk of this machine nor an object store, for fsspec."""

    local_file = False
    cachable = False

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        super().pipe_file(path, value[: len(value) // 2], **options)
        self.look()
        super().pipe_file(path, value, **options)

    look: Callable[[], None] = staticmethod(lambda: None)


class RefusesToReplace(Elsewhere):
    """Like SMB."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2)


class DoesNotReplace(Elsewhere):
    """Like WebHDFS, which answers "false", and fsspec says nothing."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        if not self.exists(path2):
            super().mv(path1, path2)


@pytest.mark.parametrize("kind", [LocalFileSystem, Elsewhere, RefusesToReplace, DoesNotReplace])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reader_sees_the_old_file_or_the_new_one(kind: type[Elsewhere], wrapped: bool, tmp_path: Path) -> None:
    inner = kind()
    store = DirFileSystem(str(tmp_path), inner) if wrapped else inner
    path = "a/b [1]*" if wrapped else f"{tmp_path}/a/b [1]*"
    seen: list[str] = []
    inner.look = lambda: seen.extend(file.read_text() for file in tmp_path.glob("a/b*"))  # type: ignore[method-assign]  # called during the write
    write_whole(store, path, b"first")
    write_whole(store, path, b"second")
    assert [file.read_bytes() for file in (tmp_path / "a").iterdir()] == [b"second"], "and nothing else is left"
    assert seen == ([] if kind is LocalFileSystem else ["first"])
    with pytest.raises(IsADirectoryError):
        write_whole(store, path.rpartition("/")[0], b"third")
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b [1]*"]


def test_a_store_that_only_copies_gets_a_file_at_once() -> None:
    store = fsspec.filesystem("memory")
    write_whole(store, "/once/b [1]*", b"x")
    assert store.find("/once") == ["/once/b [1]*"]


def test_a_writer_that_was_killed_leaves_no_stage(memory_base: str) -> None:
    """What it left had an empty name in the list of stages."""
    fsspec.filesystem("memory").pipe_file(f"{memory_base}/.torchx_kfp/runs/run-1/.torchx_kfp-0123456789abcdef", b"{")
    tracker = RecordTracker(memory_base, patience=0)
    assert (tracker.run_ids(), tracker.run_ids("run-1"), tracker.keys()) == ([], [], [])


@pytest.fixture
def away(s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Make S3 break off all connections for some seconds, for other processes."""
    with Proxy(s3_server.url) as proxy:

        def go(seconds: float) -> None:
            proxy.otherwise = "cut"
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            threading.Timer(seconds, lambda: setattr(proxy, "otherwise", None)).start()

        yield go


@pytest.mark.s3
def test_a_publisher_waits_for_storage(away: Callable[[float], None], s3_base: str, tmp_path: Path) -> None:
    """It gave up after 4 seconds, right after the training."""
    FsspecResultTracker(s3_base)[RUN_ID] = {"accuracy": 0.25}
    stage = Stage(tmp_path, results={"accuracy": float}, may_fail=True)
    stage.base = s3_base
    away(8)
    stage.environ = {**stage.environ, "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"]}
    done = stage.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert stage.outputs() == {"accuracy": "0.25"}


@pytest.mark.s3
def test_a_workspace_waits_for_storage(away: Callable[[float], None], s3_base: str, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('trained')")
    packed = pack_folders(RecordTracker(s3_base, patience=0).store, {str(tmp_path / "code"): ""})
    packed.upload()
    away(8)
    command = [*workspace_words(packed.url), sys.executable, "train.py"]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.s3
def test_a_write_to_a_server_that_never_answers_ends(
    s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 1)
    with Proxy(s3_server.url, otherwise=20.0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        store, path = storage.open_storage(s3_base, 0)
        with pytest.raises(asyncio.TimeoutError):
            write_whole(store, f"{path}/run", b"{}")


def test_a_base_with_a_cache_is_refused(tmp_path: Path) -> None:
    """The exit code went into a folder of the pod, and the stage succeeded."""
    stage = Stage(tmp_path, may_fail=True)
    stage.base = f"simplecache::file://{tmp_path}/results"
    done = stage.run("sh", "-c", "exit 3")
    assert done.returncode == 1
    assert f"a cache keeps files on this machine: use file://{tmp_path}/results" in done.stderr


def test_a_folder_that_another_writer_makes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Elsewhere()
    monkeypatch.setattr(store, "isdir", lambda path: False)  # it was not there a moment ago
    write_whole(store, f"{tmp_path}/run", b"{}")
    assert (tmp_path / "run").read_bytes() == b"{}"


def test_the_latest_entry_of_a_field_counts(tmp_path: Path) -> None:
    entries = {
        "1-a.metadata": {"metadata": {"x": 1, "y": 1}},
        "2-b.started.metadata": {"metadata": {"x": 2}, "started": {"host": "h"}},
        "3-c.started": {"started": {}, "metadata": {"x": 3}},
    }
    for name, content in entries.items():
        (tmp_path / name).write_text(json.dumps(content))
    store, path = storage.open_storage(str(tmp_path))
    assert storage.fields_of(f"{path}/2-b.started.metadata") == {"started", "metadata"}
    assert storage.read_field(store, path, "metadata") == {"x": 2, "y": 1}, "the name of an entry says what it has"
    assert storage.read_field(store, f"{path}/none", "metadata") == {}
