"""A tracker on S3: its requests, and a store that fails for a moment, permanently, or half way.

It is a real S3 server, behind a proxy that causes the faults.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from tests.tracking.conftest import clear_clients
from tests.tracking.stages import stage, started
from torchx_kfp.errors import MissingCredentialsError, RefusedError, TrackerBaseError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker

pytestmark = [pytest.mark.s3, pytest.mark.lowest]


# Requests


def test_a_put_is_one_request_and_a_get_is_one(s3_server: S3Server, s3_base: str) -> None:
    bucket = s3_base.split("/")[2]
    tracker = FsspecResultTracker(s3_base)
    tracker["warm"] = {"x": 1}  # the client's own set-up
    assert s3_server.requests(lambda: FsspecResultTracker(s3_base)) == []
    assert s3_server.requests(lambda: tracker.put("a/b", x=1)) == [f"PUT /{bucket}/results/a/b"]
    assert s3_server.requests(lambda: tracker.put("a/b", x=2)) == [f"PUT /{bucket}/results/a/b"]
    assert s3_server.requests(lambda: tracker.get("a/b")) == [f"GET /{bucket}/results/a/b"]
    assert s3_server.requests(lambda: tracker.get("missing")) == [f"GET /{bucket}/results/missing"]
    assert len(s3_server.requests(tracker.keys)) == 1
    assert len(s3_server.requests(lambda: tracker.keys("a"))) == 1


def test_asking_of_a_run_is_a_listing_and_a_request_for_each_entry(s3_server: S3Server, s3_base: str) -> None:
    run = stage(s3_base)
    run.add_metadata(a=1)
    run.add_metadata(b=1)
    asks: tuple[Callable[[], object], ...] = (run.metadata, run.artifacts, run.sources)
    counts = [len(s3_server.requests(ask)) for ask in asks]
    assert counts == [3, 1, 1]


def test_the_entries_of_many_runs_take_few_listings(s3_server: S3Server, s3_base: str) -> None:
    tracker = RecordTracker(s3_base, patience=SHORT_PATIENCE)
    runs = [f"run{number}" for number in range(100)]
    for _ in tracker.store.each(lambda run: tracker.add(f"{run}/train/1", {"metadata": {"x": 1}}), runs):
        pass
    found = set[str]()
    requests = s3_server.requests(lambda: found.update(tracker.records(runs, "code", "metadata")))
    assert found == {f"{run}/train/1" for run in runs}
    assert len([request for request in requests if "list-type=2" in request]) == 1


def test_many_keys_are_listed_without_being_read(s3_server: S3Server, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    keys = [f"run{int(number > 50)}/train/{number:04}" for number in range(301 + 50)]
    for _ in tracker.store.each(lambda key: tracker.store.write(key, b"{}"), keys):
        pass
    listed: list[str] = []
    requests = s3_server.requests(lambda: listed.extend(tracker.keys("run1")))
    assert len(listed) == 300
    # Each request lists as many keys as the server does, only below the prefix.
    assert len([request for request in requests if "list-type=2" in request]) == len(requests) == 2
    assert tracker.keys() == sorted(keys)


def test_an_object_beside_others_below_its_name_is_listed(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    tracker["a"], tracker["a/b"], tracker["ab"] = {"x": 1}, {"x": 2}, {"x": 3}
    assert tracker.keys("a") == ["a", "a/b"]
    assert tracker.keys("a/b") == ["a/b"]
    assert tracker.keys("none") == []


def test_reading_many_is_done_at_once(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    keys = [f"run/train/{number:03}" for number in range(60)]
    for number, key in enumerate(keys):
        tracker.put(key, number=number)
    proxy.otherwise = 0.1
    proxy.requests.clear()
    for action in (
        lambda: tracker.get_many(keys),
        lambda: dict(tracker.items("run")),
    ):
        proxy.most_at_once = 0
        assert action() == {key: {"number": number} for number, key in enumerate(keys)}
        assert proxy.most_at_once > 20
    gets = [request for request in proxy.requests if "list-type" not in request]
    assert len(gets) == 2 * len(keys)


# The bucket, the user's settings, and permissions


def test_the_base_may_be_a_whole_bucket(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base.rpartition("/")[0])
    tracker["run"] = {"x": 1}
    tracker["a/b"] = {"x": 2}
    assert (tracker["run"], tracker["a/b"]) == ({"x": 1}, {"x": 2})
    assert tracker.keys() == ["a/b", "run"]
    with pytest.raises(RefusedError, match=says("1,025", "bytes", "Shorten")):
        tracker["n" * 1025] = {"x": 1}
    tracker["n" * 1024] = {"x": 1}


def test_what_another_process_put_is_seen_at_once(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    assert (tracker["run/1"], tracker.keys(), tracker.keys("run")) == ({}, [], [])
    code = "import sys; from torchx_kfp.tracking import *; FsspecResultTracker(sys.argv[1]).put('run/1', x=1)"
    subprocess.run([sys.executable, "-c", code, s3_base], check=True)
    assert (tracker["run/1"], tracker.keys(), tracker.keys("run")) == ({"x": 1}, ["run/1"], ["run/1"])


def test_a_bucket_that_is_missing(s3_server: S3Server) -> None:
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


def test_a_key_that_s3fs_reads_as_a_version(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    for action in (lambda: tracker.put("a?versionId=1", x=1), lambda: tracker.get("a?versionId=1")):
        with pytest.raises(RefusedError, match=says("'a?versionId=1'", "key", "tracker base", "Use")):
            action()
    assert tracker.keys() == []


def test_missing_credentials_name_the_variables(s3_base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    clear_clients()
    tracker = FsspecResultTracker(s3_base)
    facts = ("credentials", f"tracker base {s3_base!r}", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "~/.aws/")
    for action in (lambda: tracker.put("run", x=1), lambda: tracker.get("run"), tracker.keys):
        with pytest.raises(MissingCredentialsError, match=says(*facts)) as caught:
            action()
        shown = "".join(traceback.format_exception(caught.value))
        assert "NoCredentialsError: Unable to locate credentials" in shown
        assert "botocore/" not in shown, "the frames of drivers are left out"


def test_what_the_user_has_configured_for_s3_is_for_s3a_too(s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 77}})
    for base in (s3_base, s3_base.replace("s3://", "s3a://")):
        tracker = FsspecResultTracker(base)
        tracker.put("run", x=1)
        config = tracker.store._fs.config_kwargs
        assert (config["read_timeout"], config["max_pool_connections"]) == (77, 64)


# Faults


FAULTS = [(500, 502), (503, 504), (429, "cut"), ("lost", "half")]


@pytest.mark.parametrize("faults", FAULTS)
def test_what_fails_for_a_moment_is_tried_again(proxy: Proxy, s3_base: str, faults: tuple[str | int, ...]) -> None:
    tracker = FsspecResultTracker(s3_base)
    proxy.faults.extend(faults)
    tracker.put("run/train/1", loss=0.25)
    assert not proxy.faults, "both have happened"
    assert [request.split("?")[0] for request in proxy.requests] == [f"PUT /{s3_base[5:]}/run/train/1"] * 3
    proxy.faults.extend(faults)
    assert tracker.get("run/train/1") == {"loss": 0.25}
    proxy.faults.extend(faults)
    assert tracker.get("missing") == {}
    proxy.faults.extend(faults)
    assert tracker.keys() == ["run/train/1"]
    assert not proxy.faults


def test_what_fails_for_longer_is_an_error_that_names_the_base(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base, patience=1.5)
    tracker.put("run", x=1)
    proxy.otherwise = 503
    actions: dict[str, Callable[[], object]] = {
        f"write {s3_base}/run": lambda: tracker.put("run", x=2),
        f"read {s3_base}/run": lambda: tracker.get("run"),
        f"list {s3_base}": tracker.keys,
    }
    for what, action in actions.items():
        proxy.requests.clear()
        with pytest.raises(TrackerError, match=says(what, f"'{s3_base}'")):
            action()
        assert len(proxy.requests) >= 3, "the waits between them are random, and may be short"
    proxy.otherwise = None
    assert tracker.get("run") == {"x": 1}, "the old results are there"


def test_a_store_that_hangs_is_given_up(proxy: Proxy, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A user sets this for fsspec; it is combined with torchx-kfp's settings for botocore.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1}})
    monkeypatch.setattr("torchx_kfp.tracking.objects._WRITE_SECONDS", 1)
    tracker = FsspecResultTracker(s3_base)
    tracker.put("run", x=1)
    proxy.faults.append(5.0)
    assert tracker.get("run") == {"x": 1}, "the next attempt has an answer"
    proxy.otherwise = 5.0
    tracker = FsspecResultTracker(s3_base, patience=0)
    with pytest.raises(TrackerError, match=says(f"{s3_base}/run", "Read timeout")):
        tracker.get("run")
    with pytest.raises(TrackerError, match=says(f"{s3_base}/run", "no answer in 1")):
        tracker.put("run", x=2)


def test_many_small_files_have_the_time_of_their_number(
    s3_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchx_kfp.tracking.objects._WRITE_SECONDS", 0)
    monkeypatch.setattr("torchx_kfp.tracking.objects._BYTES_PER_FILE", 200_000)
    files = {f"files/{number}": tmp_path / f"{number}" for number in range(60)}
    for path in files.values():
        path.write_bytes(b"x")
    store = FsspecResultTracker(s3_base, patience=0).store
    store.put_files({key: (str(path), 1) for key, path in files.items()})
    assert len(store.list_files("files")) == 60


def test_what_is_wrong_for_good_is_not_tried_again(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    for fault, message in ((403, "No permission to write"), (400, "Cannot write")):
        proxy.faults.append(fault)
        before = len(proxy.requests)
        with pytest.raises(TrackerError, match=message):
            tracker.put("run", x=1)
        assert len(proxy.requests) == before + 1
    before = len(proxy.requests)
    with pytest.raises(TrackerBaseError, match=says("'s3://no-such-bucket/x'", "tracker base", "Create")):
        FsspecResultTracker("s3://no-such-bucket/x").get("run")
    assert len(proxy.requests) == before + 1


def test_names_do_not_decide_what_an_error_means(proxy: Proxy, s3_base: str) -> None:
    """Drivers put the name into the message; an error of a range asked for the size, and raised the driver's error."""
    proxy.otherwise = 403
    for run in ("lr-range-test", "InvalidRange"):
        with pytest.raises(TrackerError, match=says("permission", f"{s3_base}/{run}/train/1")):
            FsspecResultTracker(s3_base, patience=0)[f"{run}/train/1"]


def test_an_empty_object(s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    tracker.store.write("run", b"")
    assert tracker.store.read("run") == b""


def test_errors_of_one_among_many(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base, patience=0)
    keys = [f"run/train/{number:03}" for number in range(100)]
    proxy.faults.extend([None] * 50 + [403])
    with pytest.raises(TrackerError, match=says("permission", f"{s3_base}/run/train/")):
        tracker.get_many(keys)


def test_a_server_that_does_not_listen_is_named(s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    clear_clients()
    with pytest.raises(TrackerError, match=says(f"{s3_base}/run", "127.0.0.1:9", "Set AWS_ENDPOINT_URL")) as caught:
        FsspecResultTracker(s3_base, patience=0.5).get("run")
    assert "aiohttp" not in "".join(traceback.format_exception(caught.value)), "frames of drivers"


def test_a_put_that_was_interrupted_does_not_come_later(proxy: Proxy, s3_base: str) -> None:
    code = """
import signal, sys, threading, time
from torchx_kfp.tracking import FsspecResultTracker
tracker = FsspecResultTracker(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
    tracker.put("run", x="old")
except KeyboardInterrupt:
    tracker.put("run", x="new")
    print(tracker["run"]["x"], flush=True)
time.sleep(4)
print(tracker["run"]["x"], flush=True)
"""
    with started(code, s3_base) as process:
        proxy.faults.append(3.0)
        assert process.communicate("\n")[0] == "new\nnew\n"
    assert process.returncode == 0


def test_ctrl_c_while_the_store_is_away(s3_base: str) -> None:
    code = """
import signal, sys
from torchx_kfp.tracking import FsspecResultTracker
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
tracker = FsspecResultTracker(sys.argv[1], patience=600)
print("ready", flush=True)
tracker.get_many([f"run/{number}" for number in range(200)])
"""
    process = started(code, s3_base, variables={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert "KeyboardInterrupt" in errors
