"""Checks raise nothing, and end in time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from torchx_kfp.entrypoints.doctor import verdicts
from torchx_kfp.entrypoints.doctor.verdicts import Level, Verdict, guarded, ok, said, within
from torchx_kfp.errors import HostError


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
