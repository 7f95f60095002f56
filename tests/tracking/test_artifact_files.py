"""Files that runs store: on every kind of store, and when something goes wrong meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.facts import says
from tests.proxy import Proxy
from tests.tracking.stages import application, environ, stage, started
from torchx_kfp.errors import (
    CorruptResultError,
    NotRecordedError,
    RefusedError,
    TrackerError,
)
from torchx_kfp.tracking import Artifact, FsspecResultTracker, Run, artifacts

RUN = "p1/train/e1"


def reader(base: object) -> Run:
    return stage(base, "p1/use/e2", {"train": RUN}).parent


def keys(base: object) -> list[str]:
    """Return the keys of everything that is stored of artifacts."""
    return [file.key for file in FsspecResultTracker(str(base)).store.list_files(".torchx_kfp/files")]


def tree(folder: str | Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): b"/" if path.is_dir() else path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
    }


def content_of(artifact: Artifact, name: str = "") -> bytes:
    with artifact.open(name) as file:
        return file.read()


@pytest.mark.parametrize("size", [0, 10, 6_000_000])
def test_a_file_is_stored_and_read(base: str, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    path = tmp_path / "модель 1.bin"
    path.write_bytes(content)
    stage(base).add_artifact("model", path, store=True, epochs=3)
    path.unlink()

    found = reader(base).artifact("model")
    assert found.stored is not None
    assert (found.stored.size, found.stored.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert (found.metadata, found.files()) == ({"epochs": 3}, {"": size})
    assert found.url == found.path
    with fsspec.open(found.url) as file:
        assert file.read() == content
    with found.open() as opened:
        assert opened.read() == content
        opened.seek(0)
    assert found.download(tmp_path / "copies") == str(tmp_path / "copies" / "модель 1.bin")
    assert tree(tmp_path / "copies") == {"модель 1.bin": content}, "nothing else is left there"


def test_a_folder_keeps_its_structure(base: str, tmp_path: Path) -> None:
    folder = tmp_path / "check point"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "empty" / "inner").mkdir(parents=True)
    files = {"a/b/重み.bin": 100, "a/c.txt": 1500, "[x]*.bin": 6_000_000, ".hidden": 0, "manifest": 1, "100%": 7}
    for name, size in files.items():
        (folder / name).write_bytes(os.urandom(size))
    (folder / "last").symlink_to("a/b")
    (tmp_path / "elsewhere").write_text("text")
    (folder / "link.txt").symlink_to(tmp_path / "elsewhere")
    stage(base).add_artifact("checkpoint", folder, store=True)

    found = reader(base).artifact("checkpoint")
    assert found.files() == {**files, "last/重み.bin": 100, "link.txt": 4}
    copy = Path(found.download(tmp_path / "copies"))
    wanted = tree(folder)
    assert tree(copy) == {**wanted, "last": b"/", "last/重み.bin": wanted["a/b/重み.bin"]}
    assert not any(path.is_symlink() for path in copy.rglob("*"))
    with found.open("a/b/重み.bin") as file:
        assert file.read() == (folder / "a/b/重み.bin").read_bytes()
    with pytest.raises(NotRecordedError, match=says("'a/c.tx'", "Did you mean 'a/c.txt'?")):
        found.open("a/c.tx")
    with pytest.raises(NotRecordedError, match=says("folder of 8 files", "open(")):
        found.open()


def test_the_last_one_counts_and_earlier_ones_stay(base: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    found = []
    for content in (b"first", b"second"):
        path.write_bytes(content)
        stage(base).add_artifact("model", path, store=True)
        found.append(reader(base).artifact("model"))
    assert [content_of(it) for it in found] == [b"first", b"second"]
    stage(base).add_artifact("model", path)
    with pytest.raises(NotRecordedError, match=says("'model'", str(path), "store=True")):
        reader(base).artifact("model").open()


def test_a_changed_or_removed_file_is_an_error(base: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("a", "b"):
        (tmp_path / "model" / name).write_text(name)
    stage(base).add_artifact("model", tmp_path / "model", store=True)
    found = reader(base).artifact("model")
    store = FsspecResultTracker(base).store
    listing, first, second = (next(key for key in keys(base) if key.endswith(end)) for end in (".json", "/a", "/b"))
    store.write(first, b"A")
    for read in (lambda: found.download(tmp_path / "copies"), lambda: found.open("a")):
        with pytest.raises(CorruptResultError, match=says(store.location(first), hashlib.sha256(b"A").hexdigest())):
            read()
    assert content_of(found, "b") == b"b"
    store.write(first, b"a")
    store.remove(second)
    with pytest.raises(NotRecordedError, match=says("no longer exist", "that made them again")):
        found.download(tmp_path / "copies")
    assert tree(tmp_path / "copies") == {}
    store.write(listing, b"{}")
    with pytest.raises(CorruptResultError, match=says(store.location(listing))):
        found.files()
    store.remove(listing)
    with pytest.raises(NotRecordedError, match=says("no longer exist", "that made them again")):
        found.files()


@pytest.mark.parametrize("files", [{"": b""}, {"": b"a"}, {}, {"a": b""}, {"a": b"", "b": b"b"}])
def test_files_are_there_until_one_is_removed(base: str, tmp_path: Path, files: dict[str, bytes]) -> None:
    if "" not in files:
        (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content)
    stage(base).add_artifact("model", tmp_path / "model", store=True)
    found = reader(base).artifact("model").stored
    assert found is not None
    assert found.are_there()
    store = FsspecResultTracker(base).store
    for file in store.list_files(".torchx_kfp/files"):
        content = store.read(file.key, 1000)
        assert content is not None
        store.remove(file.key)
        assert not found.are_there(), file.key
        store.write(file.key, content)
        assert found.are_there()


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_is_copied_that_is_larger_than_the_record_says(
    base: str, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").write_bytes(b"x" * size)
    stage(base).add_artifact("model", tmp_path / "model", store=True)
    found = reader(base).artifact("model")
    [key] = keys(base)
    assert content_of(found) == b"x" * size
    assert found.stored is not None
    store = found.stored.store
    monkeypatch.setattr(store, "get_files", lambda *_: pytest.fail("it is copied"))
    for other in (b"huge" * 500_000, b"" if size else b"y"):
        store.write(key, other)
        with pytest.raises(CorruptResultError, match=says(store.location(key), f"{len(other):,} bytes")):
            found.download(tmp_path / "copies")


def test_a_download_is_made_once_and_replaces_nothing(base: str, tmp_path: Path) -> None:
    (tmp_path / "model" / "empty").mkdir(parents=True)
    (tmp_path / "model" / "a").write_text("a")
    stage(base).add_artifact("model", tmp_path / "model", store=True)
    found = reader(base).artifact("model")
    copy = Path(found.download(tmp_path / "copies"))
    before = (copy / "a").stat().st_ino
    assert found.download(tmp_path / "copies") == str(copy)
    assert (copy / "a").stat().st_ino == before
    (copy / "a").write_text("b")
    with pytest.raises(FileExistsError, match=says(str(copy))):
        found.download(tmp_path / "copies")
    assert (copy / "a").read_text() == "b"
    found.download(tmp_path / "copies", overwrite=True)
    assert tree(copy) == {"a": b"a", "empty": b"/"}


# Refused


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    run = stage(tmp_path / "results")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")

    def refused(path: object, *texts: str, **words: Any) -> None:
        with pytest.raises(RefusedError, match=says(*texts)):
            run.add_artifact("model", path, **{"store": True, **words})

    refused(tmp_path / "none", "'model'", str(tmp_path / "none"))
    refused("s3://models/1", "'s3://models/1'", "store=True")
    refused("", "''")
    refused({"weight": 1}, "'model'", "{'weight': 1}", "dict", "file", store=False)
    refused(b"models/1", "b'models/1'", "bytes")
    refused(folder, "'model'", "metadata", words={1})
    refused(folder, "store=", "'yes'", store="yes")
    os.mkfifo(folder / "pipe")
    refused(folder, "pipe", "FIFO")
    (folder / "pipe").unlink()
    (folder / "loop").symlink_to(folder)
    refused(folder, "loop", "link")
    (folder / "loop").unlink()
    (folder / "nowhere").symlink_to("none")
    refused(folder, "nowhere")
    (folder / "nowhere").unlink()
    (folder / os.fsdecode(b"\xff")).write_text("")
    refused(folder, "\\xff", "UTF-8")
    assert (run.artifacts(), keys(tmp_path / "results")) == ({}, [])


@pytest.mark.parametrize("change", ["content", "new", "gone", "all gone", "a single file"])
def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
    read = artifacts._hash

    def changing(path: str) -> Any:
        found = read(path)
        if change in ("content", "a single file"):
            (folder / "a").write_text("new")
        elif change == "new":
            (folder / "c").write_text("")
        else:
            (folder / "a").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(artifacts, "_hash", changing)
    run = stage(tmp_path / "results")
    given = folder / "a" if change in ("all gone", "a single file") else folder
    with pytest.raises(
        RefusedError,
        match=says("/folder/c'" if change == "new" else "/folder/a'", "changed during the upload", "its own file"),
    ):
        run.add_artifact("model", given, store=True)
    assert (run.artifacts(), keys(tmp_path / "results")) == ({}, [])


@pytest.mark.parametrize(
    "changed",
    [
        *({"key": key} for key in ("../../etc/passwd", ".torchx_kfp/files/../x/y", ".torchx_kfp/files/r/i/..")),
        *({"sha256": "../x"}, {"size": -1}, {"size": "1"}),
    ],
    ids=str,
)
def test_a_record_that_leads_elsewhere_is_left_out(
    tmp_path: Path, changed: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").write_text("x")
    stage(tmp_path / "base").add_artifact("model", tmp_path / "model", store=True)
    entry = change_stored(tmp_path, changed)
    with pytest.raises(NotRecordedError):
        reader(tmp_path / "base").artifact("model")
    assert re.search(says(entry), caplog.text)


def change_stored(folder: Path, changed: dict[str, object]) -> Path:
    """Change what is recorded of the stored files of the artifact ``model``."""
    [entry] = folder.glob("base/.torchx_kfp/runs/*/*/*/*.artifacts")
    record = json.loads(entry.read_text())
    record["artifacts"]["model"]["stored"].update(changed)
    entry.write_text(json.dumps(record))
    return entry


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 1) for name in ("../x", "/x", "a/../../x", "", "a//b", "a\0", "\ud800")),
        # A file with less than no bytes is neither a small nor a large one: its digest would not be checked.
        *(("x", size) for size in (-1, float("inf"), 1.5, True, "1", None)),
    ],
)
def test_a_list_of_files_that_are_none_is_corrupt(tmp_path: Path, name: str, size: object) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x").write_text("x")
    stage(tmp_path / "base").add_artifact("model", tmp_path / "model", store=True)
    [listing] = tmp_path.glob("base/.torchx_kfp/files/*/*/*/*.json")
    listing.write_text(json.dumps({"files": {name: [size, hashlib.sha256(b"x").hexdigest()]}, "folders": []}))
    change_stored(tmp_path, {"sha256": hashlib.sha256(listing.read_bytes()).hexdigest()})
    with pytest.raises(CorruptResultError, match=says("malformed")):
        reader(tmp_path / "base").artifact("model").download(tmp_path / "copy")
    assert not (tmp_path / "copy").exists() or list((tmp_path / "copy").iterdir()) == []


# Interruptions


@pytest.mark.s3
def test_lost_connections_do_not_matter(proxy: Proxy, s3_base: str, tmp_path: Path) -> None:
    content = os.urandom(12_000_000)
    (tmp_path / "model").write_bytes(content)
    run = stage(s3_base)
    proxy.faults.extend(["cut", 503, "lost"])
    run.add_artifact("model", tmp_path / "model", store=True)
    assert not proxy.faults
    proxy.faults.extend([None, None, 503, "half", "cut"])
    with run.artifact("model").open() as file:
        assert file.read() == content
    assert not proxy.faults


@pytest.mark.s3
def test_a_broken_upload_leaves_nothing(proxy: Proxy, s3_base: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(os.urandom(12_000_000))
    run = stage(s3_base)
    proxy.refused["PUT"] = 403
    with pytest.raises(TrackerError, match=says("No permission to write", s3_base)):
        run.add_artifact("model", tmp_path / "model", store=True)
    assert run.artifacts() == {}
    store: Any = fsspec.filesystem("s3")
    uploads = store.call_s3("list_multipart_uploads", Bucket=s3_base.split("/")[2]).get("Uploads", [])
    assert (keys(s3_base), uploads) == ([], [])


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_killed_upload_is_not_taken_for_whole(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = str(tmp_path / "results") if store == "disk" else request.getfixturevalue("s3_base")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text(name)
    code = """
import sys, time
from torchx_kfp.tracking import artifacts, current_run
def hanging(*_):
    print("ready", flush=True)
    time.sleep(600)
artifacts._verify_unchanged = hanging
current_run().add_artifact("model", sys.argv[1], store=True)
"""
    with started(code, folder, variables=environ(base, RUN)) as process:
        process.kill()
    assert stage(base).artifacts() == {}
    stage(base).add_artifact("model", folder, store=True)
    assert tree(reader(base).artifact("model").download(tmp_path / "copies")) == tree(folder)


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(bytes(9 << 20))
    code = """
import resource, signal, sys
from torchx_kfp.tracking import current_run
run = current_run()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    run.add_artifact("model", sys.argv[1], store=True)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = application(code, environ(tmp_path / "results", RUN), str(tmp_path / "model"), check=True)
    assert done.stdout.startswith("TrackerError Cannot write"), done
    assert "File too large" in done.stdout
    assert (stage(tmp_path / "results").artifacts(), keys(tmp_path / "results")) == ({}, [])


def test_threads_that_want_the_same_file_copy_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").write_text("model")
    stage(tmp_path / "results").add_artifact("model", tmp_path / "model", store=True)
    found = reader(tmp_path / "results").artifact("model")
    fetched = []
    fetch: Callable[..., None] = artifacts.StoredFiles.fetch

    def slowly(it: artifacts.StoredFiles, *words: Any) -> None:
        fetched.append(1)
        time.sleep(0.2)
        fetch(it, *words)

    monkeypatch.setattr(artifacts.StoredFiles, "fetch", slowly)
    threads = [threading.Thread(target=found.download, args=(tmp_path / "copies",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [1]
