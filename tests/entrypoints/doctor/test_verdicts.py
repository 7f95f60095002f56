"""Checks that hang, are about versions, or raise errors, and their messages."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.s3 import S3Server
from torchx_kfp.entrypoints.doctor import base_access, verdicts
from torchx_kfp.entrypoints.doctor.machine import check_packages, check_python
from torchx_kfp.entrypoints.doctor.verdicts import Level, Verdict, guarded, ok, said, within
from torchx_kfp.errors import HostError


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), "warning"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(version: tuple[int, ...], level: str) -> None:
    [found] = check_python(version)
    assert found.level.value == level
    assert re.search(says("Python", ".".join(map(str, version))), str(found))
    assert ("3.10 to 3.13" in str(found)) == (level == "warning")


def test_packages_that_are_missing_or_have_another_name() -> None:
    packages: dict[str, tuple[str, list[str]]] = dict.fromkeys(("kfp-kubernetes", "kfp-server-api"), ("2.16.1", []))
    packages |= {"torchx-kfp": ("0.2.0", ["torchx>=0.7"]), "torchx-nightly": ("2026.10.1", ["urllib3>=2"])}
    packages |= {"kfp": ("2.16.1", []), "urllib3": ("2.5.0", []), "fsspec": ("2026.9.0", [])}

    def look(name: str) -> tuple[str, list[str]]:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    assert [found.level for found in check_packages(look)] == [Level.OK]
    del packages["kfp"]
    [found] = check_packages(look)
    assert found.level is Level.MISSING
    assert re.search(says("no 'kfp'", 'pip install "torchx-kfp[pipelines]"'), str(found))


@pytest.mark.s3
def test_a_store_that_does_not_answer(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_access, "_SECONDS", 0.5)
    go = threading.Event()

    def answer(request: Request) -> Reply:
        go.wait(60)
        return Reply()

    with scripted(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        [found] = base_access.check_base("s3://bucket/results")
        go.set()
    assert found.level is Level.MISSING
    assert re.search(says("s3://bucket/results", "no answer within 0.5 s", "your network"), str(found))


def test_an_error_ends_its_checks_only() -> None:
    def checks() -> Iterator[Verdict]:
        yield ok("one", "Fine.")
        raise KeyError("a\nb\x1b[31m")

    first, last = guarded("two", checks)
    assert str(first) == "ok       one: Fine."
    assert (last.level, last.subject) == (Level.MISSING, "two")
    assert "\n" not in last.found
    assert "\x1b" not in last.found


def test_messages_are_one_line() -> None:
    assert said(HostError("Give one:\n- this;\n  that.")) == "Give one: - this; that."
    assert said(OSError(2, "No such file")).startswith("FileNotFoundError: ")
    assert len(said(HostError("x" * 10_000))) < 1000


def test_a_call_that_hangs_is_left_behind() -> None:
    ended = threading.Event()
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        within(0.01, lambda: ended.wait(60))
    ended.set()
    assert within(30, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 / 0)


def test_after_ctrl_c_an_action_removes_what_it_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_SETTLING", 60.0)
    handled, removed = threading.Event(), list[int]()

    def handle(number: int, frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def action() -> None:
        # When the action is waited for.
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        assert handled.wait(60)
        removed.append(sum(range(5_000_000)))

    previous = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60, action)
        assert removed
    finally:
        signal.signal(signal.SIGINT, previous)
