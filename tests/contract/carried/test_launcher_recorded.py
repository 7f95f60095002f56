"""The launcher against recordings of a real control plane, which `tests.recordings` describes.

It has to send the same requests, to say and show the same, and to end in the same way, in both of its forms.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.authoring.engines.filled import launched
from tests.cluster.record_launcher import WORK, app_of
from tests.oldest import needs_oldest, oldest_python
from tests.recordings import FOLDER, NAMES, Recording, Replay, read, split
from tools import carry
from torchx_kfp.authoring.engines import ENGINES
from torchx_kfp.contract.carried import cluster_api
from torchx_kfp.contract.carried.programs import LAUNCHER

#: Seconds after which a launcher counts as hanging.
HANGS = 120
TOKEN = "the token of a service account"
#: Nothing happens between two answers of a recording, so that the launcher need not wait for it. Its clock goes on only
#: while it waits: on a busy machine, other work takes longer.
HASTE = """
import threading, time
now, sleep, join = [0.0], time.sleep, threading.Thread.join
def pass_by(seconds):
    now[0] += seconds * (threading.current_thread() is threading.main_thread())
def hurry(seconds):
    sleep(seconds / 25)
    pass_by(seconds)
def wait(thread, seconds):
    join(thread, seconds / 25)
    pass_by(seconds * thread.is_alive())
time.sleep, time.monotonic, threading.Thread.join = hurry, lambda: now[0], wait
"""


#: The same for one attempt of four minutes: SIGTERM ends it then.
FOUR_MINUTES = """
import os, signal, threading, time
now = [0.0]
def pass_by(seconds):
    if threading.current_thread() is threading.main_thread():
        now[0] += seconds
        if now[0] > 240:
            os.kill(os.getpid(), signal.SIGTERM)
    else:
        sleep(seconds)
sleep = time.sleep
time.sleep, time.monotonic = pass_by, lambda: now[0]
"""


@functools.cache
def source(form: str) -> str:
    """Return the text of the program: the modules' joined, or what commands carry."""
    if form == "module":
        return carry.join("launcher")
    return carry.text_of(LAUNCHER)


class Attempt:
    """A launcher that runs against a recording."""

    def __init__(
        self, recording: Recording, replay: Replay, folder: Path, form: str, python: str, haste: str = HASTE
    ) -> None:
        self.replay = replay
        self.run_id = folder / "run_id"
        # The stage's script has written that of the attempt.
        self.run_id.write_text(recording.environ["TORCHX_JOB_ID"])
        account = folder / "account"
        account.mkdir()
        (account / "token").write_text(f"{TOKEN}\n")
        (account / "namespace").write_text(recording.namespace)
        (account / "ca.crt").write_bytes(replay.authority.read_bytes())
        text = source(form)
        assert text.count(cluster_api.FOLDER) == 1
        program = f"{haste}\nexec({text.replace(cluster_api.FOLDER, str(account))!r})"
        outputs = {"parameters": {"run_id": {"outputFile": str(self.run_id)}}}
        executor_input = {**recording.executor_input, "outputs": outputs}
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(replay.port)}
        # A proxy is not for the cluster.
        proxy = {"https_proxy": "http://127.0.0.1:1", "PATH": os.environ["PATH"]}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    program,
                    json.dumps(recording.spec),
                    json.dumps(executor_input),
                    *recording.words,
                ],
                env={**proxy, **recording.environ, **place},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANGS
        while not condition():
            assert self.process.poll() is None, self.log
            assert not self.replay.problems
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["carried", "module", pytest.param("oldest", marks=needs_oldest)])
def test_it_does_what_was_recorded(name: str, form: str, tmp_path: Path) -> None:
    python = sys.executable
    if form == "oldest":
        form, python = "carried", oldest_python() or ""
    recording = read(name)
    expected = [one.request for one in recording.exchanges if not one.is_log]
    with Replay(recording.exchanges, tmp_path / "server", TOKEN) as replay:
        attempt = Attempt(recording, replay, tmp_path, form, python)
        try:
            if name.endswith("terminated"):
                # Repeated looks find nothing new, until the signal comes.
                # The first one tells that all answers have arrived.
                attempt.wait_for(
                    lambda: (
                        replay.requests == expected[:-1]
                        and replay.repeated
                        and split(attempt.log)[1] == recording.shown
                    )
                )
                attempt.process.send_signal(signal.SIGTERM)
            code = attempt.process.wait(HANGS)
        finally:
            attempt.process.kill()
            attempt.process.wait()
    assert not replay.problems
    assert replay.requests == expected
    if name.endswith("terminated"):
        assert all(request.startswith("GET ") for request in replay.repeated)
    else:
        assert not replay.repeated
    assert split(attempt.log) == (recording.said, recording.shown)
    assert code == recording.code
    assert attempt.run_id.read_text() == recording.run_id


def test_the_api_server_is_asked_less_often_after_the_first_minute(tmp_path: Path) -> None:
    """A training takes days, and a cluster has many of them."""
    recording = read("job.terminated")
    with Replay(recording.exchanges, tmp_path / "server", TOKEN) as replay:
        attempt = Attempt(recording, replay, tmp_path, "module", sys.executable, FOUR_MINUTES)
        assert attempt.process.wait(HANGS) == 143, attempt.log
    assert not replay.problems
    looks = sum("/jobs/" in request for request in replay.repeated)
    # Twice a second in the first minute, and each 2 to 5 s in the next three.
    assert 180 / 5 < looks < 60 / 0.5 + 180 / 2


@pytest.mark.parametrize("length", [1, 15, 19, 20, 24, 30, 31, 33, -1, -2, -5, -12])
def test_logs_that_are_cut_off(length: int, tmp_path: Path) -> None:
    """They seem to be complete. Reading goes on where a line is cut off; a last line without an end is one, too."""
    recording = read("job.succeeds")
    exchanges = []
    for one in recording.exchanges:
        if one.is_log:
            text = one.answer.rstrip("\n")
            exchanges += [replace(one, answer=text[:length]), replace(one, answer=text)]
        else:
            exchanges.append(one)
    with Replay(exchanges, tmp_path / "server", TOKEN) as replay:
        attempt = Attempt(recording, replay, tmp_path, "module", sys.executable)
        assert attempt.process.wait(HANGS) == 0, attempt.log
    assert not replay.problems
    assert split(attempt.log) == (recording.said, recording.shown)


def test_logs_that_cannot_be_read(tmp_path: Path) -> None:
    """They do not fail the stage, which says so once, and the API server is not asked all the time."""
    recording = read("job.succeeds")
    exchanges = [replace(one, status=500, answer="") if one.is_log else one for one in recording.exchanges]
    with Replay(exchanges, tmp_path / "server", TOKEN) as replay:
        attempt = Attempt(recording, replay, tmp_path, "module", sys.executable)
        assert attempt.process.wait(HANGS) == 0, attempt.log
    said, shown = split(attempt.log)
    problems = [f"torchx-kfp: trainer/{index}: its log cannot be read: 500 Internal Server Error" for index in "01"]
    assert sorted(said) == sorted([*recording.said, *problems])
    assert shown == {}
    # The launcher waits 30 s for two logs, and asks every tenth of a second at most.
    assert replay.logs <= 2 * 10 * 31


@pytest.mark.versions
@pytest.mark.parametrize("name", NAMES)
def test_stages_are_still_given_what_was_recorded(name: str) -> None:
    """If this fails, record them again: `tests.recordings` says how."""
    engine, case = name.split(".")
    recording = read(name)
    found = launched(app_of(case, WORK / engine / case / "go"), ENGINES[engine](), tracked=True)
    assert found.words == recording.words
    assert found.spec == recording.spec


def test_there_are_no_other_recordings() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(NAMES)
