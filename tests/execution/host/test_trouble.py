"""A host in trouble while a run is read: what is asked again, for how long, and what that loses. And the waits."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.execution.host.answers_of_kfp import last, manifest, polls
from tests.execution.host.calling import wait_until
from tests.execution.host.pipelines import small
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.errors import HostCredentialsError, HostError
from torchx_kfp.execution.host.connection import Connection, Timeouts
from torchx_kfp.execution.host.run import HostRun
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.host import Host
from torchx_kfp.local import State, load_pipeline

POLLS = "torchx_kfp.execution.host.run"
FAILS = "import sys; print('broken'); sys.exit(7)"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(
    kfp_host: KfpHost, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., HostRun]:
    """Start a run, which goes on until there is a file ``go`` unless it has another program."""
    monkeypatch.setattr(f"{POLLS}.SHORTEST", 0.02)
    monkeypatch.setattr(f"{POLLS}.LONGEST", 0.1)
    waits = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)"

    def start(code: str = waits, **settings: Any) -> HostRun:
        patience = Timeouts(wait=0.001)
        connection = Connection(Settings(host=kfp_host.url, **settings), patience)
        run_id = Host(connection).submit(load_pipeline(small), {"code": code})
        return HostRun(connection, run_id, say=said.append)

    return start


@contextlib.contextmanager
def when(condition: Callable[[], Any], action: Callable[[], Any]) -> Iterator[None]:
    """Do something as soon as something is true, beside the block."""
    thread = threading.Thread(target=lambda: wait_until(condition) and action())
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 503}, {"status": 429}, {"cut": 0.5}, {"cut": 0.0}])
def test_a_connection_that_is_lost_while_a_run_is_watched(
    kfp_host: KfpHost, start: Callable[..., HostRun], said: list[str], fault: dict[str, Any], tmp_path: Path
) -> None:
    follower = start().follow()
    next(follower)
    kfp_host.add(Fault(times=9, **fault))
    with when(lambda: len(said) == 2, (tmp_path / "go").touch):
        *_, last = follower
    assert last.run.state is State.SUCCEEDED
    lost, found = said
    assert kfp_host.url in lost
    assert "trying again" in lost
    assert found == f"{kfp_host.url} answers again."


@pytest.mark.parametrize("code", [503, 401])
def test_a_v1beta1_that_fails_for_a_moment_loses_nothing(
    kfp_host: KfpHost, start: Callable[..., HostRun], code: int
) -> None:
    run = start(FAILS)
    fault = kfp_host.fail(code, times=1000, path="v1beta1")
    record = run.read()
    assert kfp_host.url in record.corrupt[0]
    fault.times = 0
    *_, last = run.follow()
    assert last.run.result()["work"].exit_code == 7
    assert last.corrupt == ()


@pytest.mark.parametrize("between", ["first", ""])
def test_a_token_that_changes_while_a_run_is_watched(
    kfp_host: KfpHost, start: Callable[..., HostRun], said: list[str], tmp_path: Path, between: str
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    kfp_host.token = "first"
    follower = start(token_file=str(file)).follow()
    next(follower)
    # The file follows a moment later; it may be empty until then.
    kfp_host.token = "second"
    file.write_text(between)
    with when(lambda: said, lambda: file.write_text("second")), when(lambda: len(said) == 2, (tmp_path / "go").touch):
        *_, last = follower
    assert last.run.state is State.SUCCEEDED
    lost, found = said
    assert ("401" if between else "is empty") in lost
    assert str(file) not in found


@pytest.mark.parametrize("is_token", [True, False])
def test_a_host_that_goes_on_failing_ends_a_watch(
    kfp_host: KfpHost,
    start: Callable[..., HostRun],
    said: list[str],
    is_token: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{POLLS}.PATIENCE", 0.5)
    kfp_host.token = "first"
    follower = start("import time; time.sleep(300)", existing_token="first").follow()
    next(follower)
    if is_token:
        kfp_host.token = "second"
    else:
        kfp_host.fail(500, times=1e9, body='{"code": 13, "message": "no database"}')
    error, facts = (HostCredentialsError, ("401", "existing_token")) if is_token else (HostError, ("no database",))
    with pytest.raises(error, match=says(*facts)):
        list(follower)
    assert len(said) == 1


# Waits


def waits(changes: list[bool], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the waits after looks at a run that has changed, or not."""
    answer = {**polls("succeeded")[0], "state": "RUNNING", "state_history": []}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))
        if len(slept) == len(changes):
            answer["state"] = "FAILED"
        elif changes[len(slept)]:
            for state in ("FAILED", "RUNNING"):  # somebody has tried it again
                answer["state_history"].append({"state": state, "update_time": "2026-11-22T03:00:00Z"})

    with scripted(lambda request: Reply(answer)) as server:
        monkeypatch.setattr(f"{POLLS}.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        *_, record = HostRun(Connection(Settings(host=server.url)), answer["run_id"]).follow()
    assert record.run.state is State.FAILED
    return slept


def test_waits_grow_while_nothing_changes_and_begin_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits([True, True, False, False, True, False], monkeypatch) == [1, 1, 1.4, 1.96, 1, 1.4]
    found = waits([True] + [False] * 20, monkeypatch)
    assert (found[0], found[-1]) == (1.0, 10.0)
    assert sum(found[:6]) < 20, "a stage of some seconds is seen while it runs"


def test_a_run_that_does_not_end_is_not_waited_for_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of its pod may be gone."""
    monkeypatch.setattr("torchx_kfp.entrypoints.cli.commands.cancel.ON_HOST", 0.5)
    run, asked = last("terminated"), itertools.count()

    def canceling(request: Request) -> Reply:
        if "v1beta1" in request.path:
            return Reply(manifest("terminated"))
        is_over = next(asked) > 12  # or this test would not end
        now = {**run, **({} if is_over else {"state": "CANCELING", "state_history": []})}
        return Reply({"runs": [now]} if request.path.partition("?")[0].endswith("/runs") else now)

    with scripted(canceling) as server:
        done = CliRunner().invoke(cli, ["cancel", "latest", "--host", server.url])
    assert done.exit_code == 0, done.output
    assert re.search(says("still ending the run", f"watch {run['run_id']}"), done.output)
