"""Bases that cannot be used, and the requests to object stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import fsspec
import hypothesis
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import strategies as st

from tests.facts import says
from tests.s3 import S3Server
from torchx_kfp.errors import KeyRefusedError, MissingCredentialsError, TrackerBaseError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.tracker import open_store


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("", says("''", "/tmp/results", "s3://")),
        ("  ", says("'  '", "Use")),
        ("a\0b", says("'a\\x00b'", "tracker base", "Use")),
        (None, says("NoneType", "tracker base", "directory")),
        (b"/tmp", says("b'/tmp'", "tracker base", "directory")),
        (
            "nope://x",
            says("'nope://x'", "tracker base", "directory", "Use"),
        ),
        ("s3:/b/x", says("'s3:/b/x'", "'s3://b/x'", "'./s3:/b/x'")),
        ("s3://", says("'s3://'", "s3://bucket/results")),
    ],
)
def test_bases_that_are_refused(base: Any, message: str) -> None:
    with pytest.raises(TrackerBaseError, match=message):
        FsspecResultTracker(base)


#: Bases of all forms: paths, URLs of files, and what looks like one of them.
FORMS = ["file://", "file:", "local://", "/", "~", ".", "..", "a", "é", " ", "%20", "*", "[", "?", "#"]
BASES = st.builds("".join, st.lists(st.sampled_from(FORMS)))


@hypothesis.given(base=BASES)
@hypothesis.example(base=".")
@hypothesis.example(base="./~")
@hypothesis.example(base="~/a/")
@hypothesis.example(base="file:///~/a//")
def test_a_directory_is_that_of_fsspec(base: str) -> None:
    try:
        store = open_store(base)
    except TrackerBaseError:
        return
    filesystem, path = fsspec.core.url_to_fs(base)
    assert isinstance(filesystem, LocalFileSystem) == isinstance(store, DiskStore)
    if isinstance(store, DiskStore):
        assert store.folder == (path.rstrip("/") or "/")


@pytest.mark.parametrize(
    ("base", "module", "install"),
    [
        ("s3://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("s3a://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("gs://bucket/x", "gcsfs", 'pip install "torchx-kfp[gcs]"'),
        ("gcs://bucket/x", "gcsfs", 'pip install "torchx-kfp[gcs]"'),
        ("simplecache::s3://bucket/x", "s3fs", 'pip install "torchx-kfp[s3]"'),
        ("abfs://bucket/x", "adlfs", "adlfs"),
    ],
)
def test_a_missing_package_is_named(base: str, module: str, install: str) -> None:
    code = """
import sys
sys.modules[sys.argv[2]] = None  # as if it were not installed
from torchx_kfp.tracking import FsspecResultTracker
try:
    FsspecResultTracker(sys.argv[1])
except Exception as error:
    print(type(error).__name__, isinstance(error.__cause__, ImportError), error)
"""
    done = subprocess.run([sys.executable, "-c", code, base, module], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"TrackerBaseError True The tracker base {base!r} needs a package that is missing: ")
    assert install in done.stdout


@pytest.mark.skipif(fsspec.__version__ < "2025", reason="this fsspec cannot write through dir::")
@pytest.mark.lowest
def test_a_file_system_with_folders_makes_them(tmp_path: Path) -> None:
    """For fsspec, it is neither local nor an object store, like SFTP and HDFS."""
    (tmp_path / "base").mkdir()
    tracker = FsspecResultTracker(f"dir::file://{tmp_path}/base")
    tracker["a/b"] = {"x": 1}
    assert tracker["a/b"] == {"x": 1}
    assert tracker["missing"] == {}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]
    for key in ("a", "a/b/c"):
        with pytest.raises(KeyRefusedError, match=says(f"'{key}'", "folder", "'dir::")):
            tracker[key] = {"x": 1}
    with pytest.raises(KeyRefusedError, match=says("too long", "Shorten")):
        tracker["n" * 300] = {"x": 1}


@pytest.mark.s3
class TestS3:
    @pytest.mark.lowest
    def test_a_put_is_one_request_and_a_get_is_one(self, s3_server: S3Server, s3_base: str) -> None:
        bucket = s3_base.split("/")[2]
        tracker = FsspecResultTracker(s3_base)
        tracker["warm"] = {"x": 1}  # the client's own set-up
        assert s3_server.requests(lambda: FsspecResultTracker(s3_base)) == []
        assert s3_server.requests(lambda: tracker.put("a/b", x=1)) == [f"PUT /{bucket}/results/a/b"]
        assert s3_server.requests(lambda: tracker.put("a/b", x=2)) == [f"PUT /{bucket}/results/a/b"]
        assert s3_server.requests(lambda: tracker.get("a/b")) == [f"GET /{bucket}/results/a/b"]
        assert s3_server.requests(lambda: tracker.get("missing")) == [f"GET /{bucket}/results/missing"]
        assert len(s3_server.requests(tracker.keys)) == 1
        # One request is for keys below the prefix, and one for the prefix itself.
        assert len(s3_server.requests(lambda: tracker.keys("a"))) == 2

    def test_many_keys_are_listed_without_being_read(self, s3_server: S3Server, s3_base: str) -> None:
        tracker = FsspecResultTracker(s3_base)
        keys = [f"run{int(number > 50)}/train/{number:04}" for number in range(1101 + 50)]
        for _ in tracker.store.each(lambda key: tracker.store.write(key, b"{}"), keys):
            pass
        listed: list[str] = []
        requests = s3_server.requests(lambda: listed.extend(tracker.keys("run1")))
        assert len(listed) == 1100
        # Each request lists a thousand keys, only below the prefix; another one is for the prefix itself.
        assert len([request for request in requests if "list-type=2" in request]) == 2
        assert len(requests) == 3
        assert tracker.keys() == sorted(keys)

    @pytest.mark.lowest
    def test_the_base_may_be_a_whole_bucket(self, s3_base: str) -> None:
        tracker = FsspecResultTracker(s3_base.rpartition("/")[0])
        tracker["run"] = {"x": 1}
        tracker["a/b"] = {"x": 2}
        assert (tracker["run"], tracker["a/b"]) == ({"x": 1}, {"x": 2})
        assert tracker.keys() == ["a/b", "run"]
        with pytest.raises(KeyRefusedError, match=says("1,025", "bytes", "Shorten")):
            tracker["n" * 1025] = {"x": 1}
        tracker["n" * 1024] = {"x": 1}

    def test_what_another_process_put_is_seen_at_once(self, s3_base: str) -> None:
        tracker = FsspecResultTracker(s3_base)
        assert (tracker["run/1"], tracker.keys(), tracker.keys("run")) == ({}, [], [])
        code = "import sys; from torchx_kfp.tracking import *; FsspecResultTracker(sys.argv[1]).put('run/1', x=1)"
        subprocess.run([sys.executable, "-c", code, s3_base], check=True)
        assert (tracker["run/1"], tracker.keys(), tracker.keys("run")) == ({"x": 1}, ["run/1"], ["run/1"])

    @pytest.mark.lowest
    def test_a_bucket_that_is_missing(self, s3_server: S3Server) -> None:
        tracker = FsspecResultTracker("s3://no-such-bucket/results")
        for action, verb in (
            (lambda: tracker.put("run", x=1), "write s3://no-such-bucket/results/run"),
            (lambda: tracker.get("run"), "read s3://no-such-bucket/results/run"),
            (lambda: tracker.keys(), "list s3://no-such-bucket/results"),
        ):
            with pytest.raises(TrackerBaseError, match=says(verb, "bucket", "tracker base")) as caught:
                action()
            assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert not [line for line in s3_server.requests(lambda: None) if line.startswith("PUT /no-such-bucket ")]

    @pytest.mark.lowest
    def test_a_key_that_s3fs_reads_as_a_version(self, s3_base: str) -> None:
        tracker = FsspecResultTracker(s3_base)
        for action in (lambda: tracker.put("a?versionId=1", x=1), lambda: tracker.get("a?versionId=1")):
            with pytest.raises(KeyRefusedError, match=says("'a?versionId=1'", "key", "tracker base", "Use")):
                action()
        assert tracker.keys() == []

    @pytest.mark.lowest
    def test_no_credentials(self, s3_base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import s3fs

        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        s3fs.S3FileSystem.clear_instance_cache()
        tracker = FsspecResultTracker(s3_base)
        facts = ("credentials", f"tracker base {s3_base!r}", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "~/.aws/")
        for action in (lambda: tracker.put("run", x=1), lambda: tracker.get("run"), tracker.keys):
            with pytest.raises(MissingCredentialsError, match=says(*facts)) as caught:
                action()
            shown = "".join(traceback.format_exception(caught.value))
            assert "NoCredentialsError: Unable to locate credentials" in shown
            assert "botocore/" not in shown, "the frames of drivers are left out"

    def test_a_server_that_forbids(self, s3_base: str, s3_server: S3Server) -> None:
        import s3fs

        bucket = s3_base.split("/")[2]
        policy = (
            '{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:*", '
            f'"Resource": ["arn:aws:s3:::{bucket}", "arn:aws:s3:::{bucket}/*"]}}]}}'
        )
        s3fs.S3FileSystem().call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)
        tracker = FsspecResultTracker(s3_base)
        with pytest.raises(TrackerError, match=says("s3://", "permission", "list", "Check")) as caught:
            tracker.get("run")
        assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.s3
@pytest.mark.lowest
def test_an_object_beside_others_below_its_name_is_listed(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    tracker["a"], tracker["a/b"], tracker["ab"] = {"x": 1}, {"x": 2}, {"x": 3}
    assert tracker.keys("a") == ["a", "a/b"]
    assert tracker.keys("a/b") == ["a/b"]
    assert tracker.keys("none") == []


def test_no_credentials_of_google(memory_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultCredentialsError(Exception):
        """Like the exception of google-auth."""

    def fail(*args: object, **options: object) -> None:
        raise DefaultCredentialsError("Your default credentials were not found.")

    tracker = FsspecResultTracker(memory_base)
    monkeypatch.setattr(fsspec.filesystem("memory"), "cat_file", fail)
    with pytest.raises(MissingCredentialsError, match=says(f"{memory_base!r}", "GOOGLE_APPLICATION_CREDENTIALS")):
        tracker.get("run")


@pytest.mark.s3
@pytest.mark.parametrize("way", ["variables", "file"])
def test_credentials_and_endpoint_the_way_of_fsspec(
    way: str, s3_server: S3Server, s3_base: str, tmp_path: Path
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    options = {"endpoint_url": s3_server.url, "key": "test", "secret": "test"}
    if way == "file":
        (tmp_path / "conf.json").write_text(json.dumps({"s3": options}))
        environ["FSSPEC_CONFIG_DIR"] = str(tmp_path)
    else:
        environ.update({f"FSSPEC_S3_{name.upper()}": value for name, value in options.items()})
    code = "import sys; from torchx_kfp.tracking import *; FsspecResultTracker(sys.argv[1]).put('run/1', x=1)"
    subprocess.run([sys.executable, "-c", code, s3_base], env=environ, check=True)
    assert FsspecResultTracker(s3_base)["run/1"] == {"x": 1}
