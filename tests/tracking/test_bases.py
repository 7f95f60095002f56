"""Tracker bases: their forms, those that are refused, and what a store of each kind needs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import hypothesis
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import strategies as st

from tests.facts import says
from tests.tracking.stages import stage
from torchx_kfp.errors import MissingCredentialsError, RefusedError, TrackerBaseError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker, open_run, open_tracker

pytestmark = pytest.mark.lowest


@pytest.mark.usual  # memory of the lowest fsspec does not list keys with "://"
@pytest.mark.parametrize("form", ["Path", "file://", "memory://"])
def test_every_form_of_a_base_keeps_results(form: str, tmp_path: Path, memory_base: str) -> None:
    base = {"file://": f"file://{tmp_path}/results", "memory://": form}.get(form, tmp_path / "results")
    tracker = FsspecResultTracker(base)
    keys = ["100% [a]#1?", "a/b/1", "a/b/2", "a:b", "local_cwd://session/app-1"]
    for key in keys:
        tracker.put(key, old="x" * 1000)
        tracker.put(key, key=key)
    assert {key: tracker[key] for key in keys} == {key: {"key": key} for key in keys}
    assert [results["key"] for _, results in tracker.items()] == keys
    assert tracker.keys("a") == ["a/b/1", "a/b/2"]
    actions = (lambda: tracker.put("a/b", x=1), lambda: tracker.get("a:b/c"), lambda: tracker.get("a/../b"))
    for action in actions[2:] if form == "memory://" else actions:
        with pytest.raises(RefusedError, match="The key "):
            action()
    tracker.store.remove("a/b/1")
    assert tracker.store.read("a/b/1") is None
    assert tracker.store.location("run") == {"memory://": "memory:///run"}.get(form, f"{tmp_path}/results/run")
    with pytest.raises(TrackerError, match=says("a:b'", "tracker base")):
        FsspecResultTracker(f"{base}/a:b" if form != "memory://" else "memory://a:b")["run"] = {"x": 1}


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("", says("''", "/tmp/results", "s3://")),
        ("  ", says("'  '", "Use")),
        ("a\0b", says("'a\\x00b'", "tracker base", "Use")),
        (b"/tmp", says("b'/tmp'", "tracker base", "directory")),
        (
            "nope://x",
            says("'nope://x'", "tracker base", "directory", "Use"),
        ),
        ("s3:/b/x", says("'s3:/b/x'", "'s3://b/x'", "'./s3:/b/x'")),
        ("s3://", says("'s3://'", "s3://bucket/results")),
        *(
            (f"{chain}::s3://b/x", says(f"'{chain}::s3://b/x'", "cache", "Use 's3://b/x'"))
            for chain in ("simplecache", "filecache", "blockcache", "cached", "dir::simplecache")
        ),
    ],
)
def test_bases_that_are_refused(base: Any, message: str) -> None:
    with pytest.raises(TrackerBaseError, match=message):
        FsspecResultTracker(base)


def test_a_base_that_is_read_is_there(tmp_path: Path) -> None:
    """A typo was an empty frame."""
    FsspecResultTracker(tmp_path / "results")["run/train/1"] = {"loss": 1}
    assert list(open_tracker(tmp_path / "results").keys()) == ["run/train/1"]
    with pytest.raises(TrackerBaseError, match=says("There is no directory", "reslts'", "Did you mean", "results'?")):
        open_tracker(tmp_path / "reslts")


#: Bases of all forms: paths, URLs of files, and what looks like one of them.
FORMS = ["file://", "file:", "local://", "/", "~", ".", "..", "a", "é", " ", "%20", "*", "[", "?", "#"]
BASES = st.builds("".join, st.lists(st.sampled_from(FORMS)))


@pytest.mark.usual  # the lowest fsspec keeps a dot at the end of a path
@hypothesis.given(base=BASES)
@hypothesis.example(base=".")
@hypothesis.example(base="./~")
@hypothesis.example(base="~/a/")
@hypothesis.example(base="file:///~/a//")
def test_a_directory_is_that_of_fsspec(base: str) -> None:
    try:
        store = FsspecResultTracker(base).store
    except TrackerBaseError:
        return
    filesystem, path = fsspec.core.url_to_fs(base)
    assert isinstance(filesystem, LocalFileSystem)
    assert os.path.dirname(store.location("key")) == (path.rstrip("/") or "/")


@pytest.mark.parametrize(
    ("base", "module", "install"),
    [
        ("s3://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("s3a://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("gs://bucket/x", "gcsfs", 'pip install "torchx-kfp[gcs]"'),
        ("gcs://bucket/x", "gcsfs", 'pip install "torchx-kfp[gcs]"'),
        ("dir::s3://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("abfs://bucket/x", "adlfs", "adlfs"),
    ],
)
def test_a_missing_package_is_named(base: str, module: str, install: str) -> None:
    code = """
import sys
sys.modules[sys.argv[2]] = None  # as if it were not installed
from torchx_kfp.tracking import FsspecResultTracker, open_tracker
from torchx_kfp.tracking.store import File
try:
    FsspecResultTracker(sys.argv[1])
except Exception as error:
    print(type(error).__name__, isinstance(error.__cause__, ImportError), error)
"""
    done = subprocess.run([sys.executable, "-c", code, base, module], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"TrackerBaseError True The tracker base {base!r} needs a package that is missing: ")
    assert install in done.stdout


LACKS_RANGES = pytest.mark.skipif(
    "cat_ranges" not in vars(fsspec.get_filesystem_class("dir")), reason="this fsspec cannot read several through dir::"
)


@LACKS_RANGES
def test_a_file_system_with_folders_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For fsspec, it is neither local nor an object store, like SFTP and HDFS."""
    (tmp_path / "base").mkdir()
    tracker = FsspecResultTracker(f"dir::file://{tmp_path}/base")
    tracker["a/b"] = {"x": 1}
    assert tracker["a/b"] == {"x": 1}
    assert tracker["missing"] == {}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]
    for key in ("a", "a/b/c"):
        with pytest.raises(RefusedError, match=says(f"'{key}'", "folder", "'dir::")):
            tracker[key] = {"x": 1}
    with pytest.raises(RefusedError, match=says("too long", "Shorten")):
        tracker["n" * 300] = {"x": 1}
    # On SFTP, makedirs asks for each folder of the path: it is left out where the folder is there.
    monkeypatch.setattr(fsspec.get_filesystem_class("dir"), "makedirs", None)
    tracker["a/b"] = {"x": 2}
    assert tracker["a/b"] == {"x": 2}


@LACKS_RANGES
def test_a_file_system_that_lists_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like SFTP and SMB: a list of the files at a file ended in a KeyError, and so did the read of an artifact."""
    listed = LocalFileSystem.ls

    def ls(self: LocalFileSystem, path: str, detail: bool = False, **options: Any) -> Any:
        if os.path.isfile(path):
            raise NotADirectoryError(path)
        return listed(self, path, detail, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    monkeypatch.setattr(LocalFileSystem, "put_file", fsspec.AbstractFileSystem.put_file)  # it makes folders
    (tmp_path / "base").mkdir()
    (tmp_path / "model").write_bytes(b"weights")
    base = f"dir::file://{tmp_path}/base"
    run = stage(base, "run/train/1")
    run.put(x=1)
    run.add_artifact("model", tmp_path / "model", store=True)
    tracker = open_tracker(base)
    assert tracker.keys() == tracker.keys("run/train/1") == tracker.keys("run") == ["run/train/1"]
    assert tracker.keys("other") == []
    with open_run(base, "run/train/1").artifact("model").open() as file:
        assert file.read() == b"weights"


def test_an_object_above_the_files_that_are_listed(memory_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "find", lambda self, path, **_: [path])  # as adlfs does
    assert FsspecResultTracker(memory_base).keys("a") == []


def test_a_driver_that_takes_no_options_of_others(memory_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMB's refuses them, and its errors are not FileNotFoundErrors: nothing could be read."""

    class SMBOSError(OSError):
        """Like the exception of smbprotocol."""

    store = fsspec.filesystem("memory")
    cat_file = store.cat_file

    def cat(path: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return bytes(cat_file(path, start, end))
        except FileNotFoundError:
            raise SMBOSError(errno.ENOENT, "No such file or directory", path) from None

    monkeypatch.setattr(store, "cat_file", cat)
    tracker = FsspecResultTracker(memory_base)
    tracker.update("run", x=1)
    assert tracker.get_many(["run", "missing"]) == {"run": {"x": 1}, "missing": {}}


def test_no_credentials_of_google(memory_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultCredentialsError(Exception):
        """Like the exception of google-auth."""

    def fail(*args: object, **options: object) -> None:
        raise DefaultCredentialsError("Your default credentials were not found.")

    tracker = FsspecResultTracker(memory_base)
    monkeypatch.setattr(fsspec.filesystem("memory"), "cat_file", fail)
    with pytest.raises(MissingCredentialsError, match=says(f"{memory_base!r}", "GOOGLE_APPLICATION_CREDENTIALS")):
        tracker.get("run")
