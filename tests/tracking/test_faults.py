"""A store that fails for a moment, permanently, or half way: results are not lost, and errors say what is wrong.

It is a real S3 server behind a proxy that causes the faults.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import fsspec
import pytest

from tests.conftest import finish_requests
from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp.errors import TrackerBaseError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import is_transient, retried

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy, which fsspec's ``s3://`` uses from now on; the bucket of ``s3_base`` exists already."""
    import s3fs

    with Proxy(s3_server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
        finish_requests()


FAULTS = [500, 502, 503, 504, 429, "cut", "lost", "half"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_for_a_moment_is_tried_again(
    proxy: Proxy, s3_base: str, fault: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = FsspecResultTracker(s3_base)
    proxy.faults.extend([fault, fault])
    tracker.put("run/train/1", loss=0.25)
    assert not proxy.faults, "both have happened"
    assert [request.split("?")[0] for request in proxy.requests] == [f"PUT /{s3_base[5:]}/run/train/1"] * 3
    warnings = [record.getMessage() for record in caplog.records if record.name == "torchx_kfp.tracking.store"]
    # aiohttp itself tries again if a connection that it has used before is closed.
    assert len(warnings) == 2 if isinstance(fault, int) else 1 <= len(warnings) <= 2
    assert warnings[0].startswith(f"Cannot write {s3_base}/run/train/1 now, trying again in 0.")

    proxy.faults.extend([fault, fault])
    assert tracker.get("run/train/1") == {"loss": 0.25}
    proxy.faults.extend([fault])
    assert tracker.get("missing") == {}
    proxy.faults.extend([fault])
    assert tracker.keys() == ["run/train/1"]
    assert not proxy.faults


def test_many_of_many_fail(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    keys = [f"run/train/{number:03}" for number in range(100)]
    for number, key in enumerate(keys):
        tracker.put(key, number=number)
    proxy.faults.extend(FAULTS * 6)
    assert tracker.get_many(keys) == {key: {"number": number} for number, key in enumerate(keys)}
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
        start = time.monotonic()
        with pytest.raises(TrackerError, match=says(what, f"'{s3_base}'")):
            action()
        assert time.monotonic() - start > 0.3
    proxy.otherwise = None
    assert tracker.get("run") == {"x": 1}, "the old results are there"


def test_nothing_listens(s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    tracker = FsspecResultTracker(s3_base, patience=0.5)
    with pytest.raises(TrackerError, match=says(f"{s3_base}/run", "127.0.0.1:9")):
        tracker.get("run")


def test_a_store_that_hangs_is_given_up(
    proxy: Proxy, s3_base: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A user sets this for fsspec; it is combined with torchx-kfp's settings for botocore.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1}})
    monkeypatch.setattr("torchx_kfp.tracking.objects._WRITE_SECONDS", 1)
    tracker = FsspecResultTracker(s3_base)
    for fault, action, text in (
        (5.0, lambda: tracker.put("run", x=1), "no answer in 1"),
        (5.0, lambda: tracker.get("run"), "Read timeout"),
    ):
        proxy.faults.append(fault)
        action()
        assert text in caplog.text
    proxy.otherwise = 5.0
    with pytest.raises(TrackerError, match=says(f"{s3_base}/run", "Read timeout")):
        FsspecResultTracker(s3_base, patience=0).get("run")


def test_what_is_wrong_for_good_is_not_tried_again(
    proxy: Proxy, s3_base: str, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert not [record for record in caplog.records if record.name == "torchx_kfp.tracking.store"]


def test_reading_many_is_done_at_once(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base)
    keys = [f"run/train/{number:03}" for number in range(200)]
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
    # There is one request for each key and action, and one for the prefix itself.
    assert len(gets) == 2 * len(keys) + 1


def test_errors_of_one_among_many(proxy: Proxy, s3_base: str) -> None:
    tracker = FsspecResultTracker(s3_base, patience=0)
    keys = [f"run/train/{number:03}" for number in range(100)]
    proxy.faults.extend([None] * 50 + [403])
    with pytest.raises(TrackerError, match=says("permission", f"{s3_base}/run/train/")):
        tracker.get_many(keys)


def test_what_is_transient() -> None:
    class WithStatus(Exception):
        def __init__(self, **attributes: object) -> None:
            vars(self).update(attributes)

    def caused(error: Exception, cause: Exception) -> Exception:
        error.__cause__ = cause
        return error

    assert is_transient(TimeoutError())
    assert is_transient(ConnectionResetError())
    assert is_transient(OSError(116, "Stale file handle"))
    assert is_transient(WithStatus(code=503))  # gcsfs
    assert is_transient(WithStatus(code="429"))
    assert is_transient(WithStatus(status=500))  # aiohttp
    assert is_transient(WithStatus(status_code=504))  # azure.core
    assert is_transient(WithStatus(response=WithStatus(status_code=502)))  # requests
    assert is_transient(caused(OSError(5, "mapped"), WithStatus(response={"Error": {"Code": "SlowDown"}})))
    assert not is_transient(WithStatus(code=404))
    assert not is_transient(PermissionError())
    assert not is_transient(FileNotFoundError())
    assert not is_transient(OSError(28, "No space left on device"))
    assert not is_transient(ValueError())
    circle = ValueError()
    circle.__cause__ = circle
    assert not is_transient(circle)


def test_a_certificate_that_is_wrong_stays_wrong() -> None:
    import botocore.exceptions

    assert is_transient(botocore.exceptions.EndpointConnectionError(endpoint_url="x", error="y"))
    assert not is_transient(botocore.exceptions.SSLError(endpoint_url="x", error="y"))


def test_waits_grow_and_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("torchx_kfp.tracking.store.time.sleep", sleep)
    monkeypatch.setattr("torchx_kfp.tracking.store.time.monotonic", lambda: clock[0])

    def fail() -> None:
        raise TimeoutError("too slow")

    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        retried(fail, 60.0, lambda: "read x")
    assert 40 < sum(waits) <= 60
    assert all(0.1 * 2**turn <= wait <= 0.2 * 2**turn for turn, wait in enumerate(waits[:5]))
    assert max(waits) <= 8
    assert "Cannot read x now, trying again in 0." in caplog.text
    assert "(TimeoutError: too slow)" in caplog.text
    waits.clear()
    with pytest.raises(TimeoutError):
        retried(fail, 0, lambda: "read x")
    assert waits == []


@pytest.mark.parametrize("patience", [-1, float("nan"), "5", True, None])
def test_patience_is_a_number_of_seconds(tmp_path: object, patience: object) -> None:
    with pytest.raises(ValueError, match=says("patience", "seconds", "0 or more", f"Got: {patience!r}")):
        FsspecResultTracker(str(tmp_path), patience=patience)
