"""The carried launcher against answers of a control plane: recorded ones, and courses of a stage in their form."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dev import carry
from tests.recordings import Exchange, Recording, Replay, read, split
from torchx_kfp.contract.carried.cluster_stage import INDEX

#: Seconds after which a launcher counts as hanging.
HANGS = 120
TOKEN = "the token of a service account"
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Nothing happens between two answers of a recording, so that the launcher need not wait for it. Its clock goes on only
#: while it waits: on a busy machine, other work takes longer. It gets SIGTERM when its time is over.
HASTE = """
import os, signal, threading, time
now, sleep, join = [0.0], time.sleep, threading.Thread.join
def pass_by(seconds):
    now[0] += seconds * (threading.current_thread() is threading.main_thread())
    if now[0] > {end}:
        os.kill(os.getpid(), signal.SIGTERM)
def hurry(seconds):
    sleep(seconds / {speed})
    pass_by(seconds)
def wait(thread, seconds):
    join(thread, seconds / {speed})
    pass_by(seconds * thread.is_alive())
time.sleep, time.monotonic, threading.Thread.join = hurry, lambda: now[0], wait
"""


@functools.cache
def program() -> str:
    text = carry.minify(carry.join("launcher"), renames=True)
    assert text.count(FOLDER) == 1
    return text


@dataclass
class Attempt:
    """A launcher that runs against a recording, and what came of it."""

    process: subprocess.Popen[bytes]
    replay: Replay
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    @property
    def said(self) -> list[str]:
        return split(self.log)[0]

    @property
    def shown(self) -> dict[str, list[str]]:
        return split(self.log)[1]

    @property
    def run_id(self) -> str:
        return (self.folder / "run_id").read_text()

    @property
    def asked(self) -> list[str]:
        """The requests that were answered, without repetitions and logs."""
        return [f"{method} {path}" for method, path, _ in self.replay.requests]

    def ends(self) -> int:
        code = self.process.wait(HANGS)
        assert not self.replay.problems, self.log
        return code

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANGS
        while not condition():
            assert self.process.poll() is None, self.log
            assert not self.replay.problems
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)


@contextmanager
def start(
    recording: Recording,
    folder: Path,
    *,
    before: Callable[[Attempt, str], object] | None = None,
    prefix: str = "",
    authority: Path | None = None,
    python: str = sys.executable,
    speed: int = 25,
    end: float = 1e9,
) -> Iterator[Attempt]:
    """Start the launcher against the recording's exchanges.

    Args:
        recording: what it is given, and what it is answered.
        folder: an empty folder.
        before: is called before each request is answered.
        prefix: a program that comes before the launcher's.
        authority: the certificate that it trusts, if it is not the server's.
        python: the interpreter.
        speed: how many times faster time passes.
        end: seconds of its time, after which it gets SIGTERM.
    """
    with Replay(recording.exchanges, folder / "server", TOKEN) as replay:
        account = folder / "account"
        account.mkdir()
        (account / "token").write_text(f"{TOKEN}\n")
        (account / "namespace").write_text(recording.namespace)
        (account / "ca.crt").write_bytes((authority or replay.authority).read_bytes())
        # The stage's script has written that of the attempt.
        (folder / "run_id").write_text(recording.environ["TORCHX_JOB_ID"])
        outputs = {"parameters": {"run_id": {"outputFile": str(folder / "run_id")}}}
        haste = HASTE.format(speed=speed, end=end)
        text = f"{haste}\n{prefix}\nexec({program().replace(FOLDER, str(account))!r})"
        given = json.dumps({**recording.executor_input, "outputs": outputs})
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(replay.port)}
        # A proxy is not for the cluster.
        proxy = {"https_proxy": "http://127.0.0.1:1", "PATH": os.environ["PATH"]}
        ready: list[Attempt] = []
        if before:
            replay.before = lambda method, path: before(ready[0], f"{method} {path}")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-c", text, json.dumps(recording.spec), given, *recording.words],
                env={**proxy, **recording.environ, **place},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ready.append(Attempt(process, replay, folder))
        try:
            yield ready[0]
        finally:
            process.kill()
            process.wait()


# Courses


@dataclass(frozen=True)
class Pod:
    """A replica's pod at one look: its container's state, and further fields of its status and its metadata."""

    index: int
    state: Mapping[str, Any] = field(default_factory=lambda: {"running": {}})
    status: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def ended(index: int, code: int, second: int = 1, *, metadata: Mapping[str, Any] | None = None, **details: str) -> Pod:
    """Return a replica that has ended at this second."""
    state = {"exitCode": code, "finishedAt": f"2025-01-01T00:00:{second:02}Z", **details}
    phase = {"phase": "Failed" if code else "Succeeded"}
    return Pod(index, {"terminated": state}, phase, metadata or {})


def waits(index: int, reason: str, message: str = "") -> Pod:
    """Return a replica whose container cannot start."""
    return Pod(index, {"waiting": {"reason": reason, "message": message}}, {"phase": "Pending"})


@dataclass(frozen=True)
class Look:
    """What a launcher finds at one look: pods, and the object's status; or other annotations, or that it is gone."""

    pods: Sequence[Pod] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Any] | None = None
    gone: bool = False


def course(name: str, looks: Sequence[Look], *, fails: bool = False, **spec: Any) -> Recording:
    """Return the recording of a stage that is seen like this, one look after the other.

    Args:
        name: the recording whose objects it has.
        looks: what is found at each look.
        fails: whether the stage fails in the end, and deletes the object if that is there, and its own.
        spec: fields of the specification that differ.
    """
    recording = read(name)
    requests = [one for one in recording.exchanges if not one.is_log]
    made = max(number for number, one in enumerate(requests) if one.method == "POST")
    begin, (lists, gets) = requests[: made + 1], _templates(requests)
    (deletion,) = [one for one in read("job.fails").exchanges if one.method == "DELETE"]
    exchanges = []
    for number, look in enumerate(looks):
        if number:
            exchanges.append(replace(gets, status=404, answer="gone") if look.gone else _seen(gets, look))
        if not look.gone and look.annotations is None:
            exchanges += states_of(recording, look.pods)
    if looks and looks[0].spec:
        begin = [_seen(one, looks[0]) if one.path == gets.path.rpartition("/")[0] else one for one in begin]
    logs = []
    for pod in {item["metadata"]["name"]: item for one in exchanges if one.status == 200 for item in _items(one)}:
        for more in ("&follow=true&timestamps=true", "&tailLines=100"):
            path = f"{lists.path.partition('?')[0]}/{pod}/log?container=trainer{more}"
            text = f"{'2025-01-01T00:00:01Z ' * ('time' in more)}line of {pod}\n"
            logs.append(Exchange("GET", path, None, 200, text))
    if fails:
        # It looks once more.
        exchanges.append(replace(gets, status=404, answer="gone") if looks[-1].gone else _seen(gets, looks[-1]))
        if not looks[-1].gone and looks[-1].annotations is None:
            exchanges.append(replace(deletion, path=gets.path))
    changed = {**recording.spec, **spec}
    return replace(recording, spec=changed, exchanges=[*begin, *exchanges, *logs])


def states_of(recording: Recording, pods: Sequence[Pod]) -> list[Exchange]:
    """Return a list of replicas in these states."""
    lists, _ = _templates([one for one in recording.exchanges if not one.is_log])
    items = [_pod(lists.answer["items"][0], pod) for pod in pods]
    return [replace(lists, answer={**lists.answer, "items": items})]


def _items(exchange: Exchange) -> Sequence[Any]:
    return exchange.answer.get("items", ())


def _templates(requests: Sequence[Exchange]) -> tuple[Exchange, Exchange]:
    """Return a list of replicas, and an answer with their object."""
    lists = next(one for one in requests if "?labelSelector=" in one.path and _items(one))
    gets = next(one for one in requests if one.method == "GET" and one.status == 200 and "?" not in one.path)
    return lists, gets


def _seen(exchange: Exchange, look: Look) -> Exchange:
    found = {**exchange.answer, "status": look.status, "spec": look.spec}
    if look.annotations is not None:
        found["metadata"] = {**found["metadata"], "annotations": look.annotations}
    return replace(exchange, answer=found)


def _pod(template: Any, pod: Pod) -> Any:
    name = pod.metadata.get("name", f"pod-{pod.index}")
    metadata = {**template["metadata"], "annotations": {INDEX: str(pod.index)}, "name": name, "uid": f"of {name}"}
    state = {"containerStatuses": [{"name": "trainer", "state": pod.state}]} if pod.state else {}
    status = {"phase": "Running", **state, **pod.status}
    return {"metadata": {**metadata, **pod.metadata}, "spec": {"nodeName": "node-1"}, "status": status}


# Faults


def insert(recording: Recording, request: str, after: int, answers: Sequence[tuple[int, Any]]) -> Recording:
    """Return a recording in which a request is first answered otherwise.

    Args:
        recording: the recording.
        request: a pattern of method and path.
        after: how many such requests are answered as before.
        answers: status and content of each.
    """
    exchanges = list(recording.exchanges)
    places = [n for n, one in enumerate(exchanges) if re.match(request, f"{one.method} {one.path}")]
    one = exchanges[places[after]]
    exchanges[places[after] : places[after]] = [replace(one, status=code, answer=text) for code, text in answers]
    return replace(recording, exchanges=exchanges)
