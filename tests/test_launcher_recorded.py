"""The launcher against recordings of a real control plane, which `tests.recordings` describes.

It has to send the same requests, to say and show the same, and to end in the same way, in both of its forms.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.record_launcher import WORK, app_of
from tests.engines.filled import launched
from tests.oldest import needs_oldest, oldest_python
from tests.recordings import FOLDER, NAMES, Recording, Replay, read, split
from torchx_kfp import launcher
from torchx_kfp.adapter.stage.carried import LAUNCHER
from torchx_kfp.engines import ENGINES

#: Seconds after which a launcher counts as hanging.
HANGS = 120
TOKEN = "the token of a service account"
#: Nothing happens between two answers of a recording, so that the launcher need not wait for it.
HASTE = "import time; sleep = time.sleep; time.sleep = lambda seconds: sleep(seconds / 25)"


@functools.cache
def source(form: str) -> str:
    """Return the text of the program: the module's, or what commands carry."""
    if form == "module":
        return Path(launcher.__file__).read_text(encoding="utf-8")
    (packed,) = re.findall(r'b64decode\("([^"]+)"\)', LAUNCHER)
    return zlib.decompress(base64.b64decode(packed), -15).decode()


class Attempt:
    """A launcher that runs against a recording."""

    def __init__(self, recording: Recording, replay: Replay, folder: Path, form: str, python: str) -> None:
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
        assert text.count(launcher.FOLDER) == 1
        program = f"{HASTE}\nexec({text.replace(launcher.FOLDER, str(account))!r})"
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
                attempt.wait_for(lambda: replay.requests == expected[:-1] and split(attempt.log)[1] == recording.shown)
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
