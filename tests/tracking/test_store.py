"""Which errors of a store are worth another try, how long is waited, and calls that are made many at once."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.facts import says
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import Concurrency, each, is_transient, retried


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
    import botocore.exceptions

    assert is_transient(botocore.exceptions.EndpointConnectionError(endpoint_url="x", error="y"))
    assert not is_transient(botocore.exceptions.SSLError(endpoint_url="x", error="y")), "a certificate stays wrong"
    circle = ValueError()
    circle.__cause__ = circle
    assert not is_transient(circle)


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


def test_each_gives_what_was_done_before_the_error() -> None:
    def divide(number: int) -> float:
        return 1 / (5 - number)

    for concurrency in (Concurrency(), Concurrency(4), Concurrency(2, 3)):
        found = each(divide, range(20), concurrency)
        assert [next(found) for _ in range(5)] == [1 / 5, 1 / 4, 1 / 3, 1 / 2, 1]
        with pytest.raises(ZeroDivisionError):
            next(found)
    assert list(each(str, range(1000), Concurrency(8, 16))) == list(map(str, range(1000)))
    assert list(each(str, [], Concurrency(8))) == []


def test_each_works_a_little_ahead_only() -> None:
    done: list[int] = []
    found = each(lambda number: done.append(number), range(10_000), Concurrency(4))
    next(found)
    found.close()
    for thread in threading.enumerate():
        if thread.name.startswith("torchx-kfp_"):
            thread.join(30)
    assert len(done) < 100


def test_a_password_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    answers = [1, ConnectionError("https://me:hush@dav.example.com/x is down")]

    def ask() -> int:
        if isinstance(answer := answers.pop(), Exception):
            raise answer
        return answer

    assert retried(ask, 60.0, lambda: "read https://me:hush@dav.example.com/x") == 1
    assert ("trying again" in caplog.text, "hush" in caplog.text) == (True, False)
