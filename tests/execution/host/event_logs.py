"""Runs of a host as events, one in a line: recorded runs and made-up ones (``recorded/kfp/trees.yaml``).

A host serves what was recorded, and the run is read from it through ``torchx_kfp.host``. The logs that this must give
are in ``recorded/kfp/events``; ``python -m tests.execution.host.event_logs`` rewrites them. In a line, the time is in
seconds since the run began. A line that begins with ``!`` is a sentence about what could not be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import yaml
from torchx_kfp_dev_host.argo import fnv1a32

from tests.execution.host import pipelines
from tests.execution.host.answers_of_kfp import (
    RECORDED,
    RUNS,
    answer,
    course,
    last,
    log_of,
    manifest,
    with_present_commands,
    with_workflow,
)
from tests.execution.host.scripted import Reply, Request, Scripted, scripted, status
from tests.programs import OF_USER
from torchx_kfp.host import HostRun, connect
from torchx_kfp.local import Event, RunStarted, StageFinished, load_pipeline

FOLDER = RECORDED / "events"
Answers = list[tuple[dict[str, Any], dict[str, Any]]]
_RETRIED = (
    ("retried-failed-v2beta1", "retried-failed"),
    ("retried-poll-0", "retried-failed"),
    ("retried-v2beta1", "retried"),
)
_AT_THE_END = (
    "stuck",
    "no-service-account",
    "no-program",
    "import-failed",
    "imported",
    "size-image",
    "size-hand",
    "retried-failed",
)
_POD = {"type": "Pod", "templateName": "system-container-impl"}
_ROOT = {"W": {"phase": "Running"}, "W.root-driver": {"phase": "Succeeded"}, "W.root": {"phase": "Running"}}


@cache
def trees() -> dict[str, Any]:
    """Return the made-up runs by their titles."""
    found: dict[str, Any] = yaml.safe_load((RECORDED / "trees.yaml").read_text(encoding="utf-8"))
    return found


def names() -> list[str]:
    """Return the names of all logs."""
    return [*RUNS, "nested-loop", "retried", *_AT_THE_END, *trees()]


def is_seen_in_progress(name: str) -> bool:
    """Return whether more is known of a run than its end."""
    return len(trees()[name]["answers"]) > 1 if name in trees() else name not in _AT_THE_END


@cache
def answers(name: str) -> Answers:
    """Return the answers about a run in both versions of the API, whenever something in them had changed."""
    if name in trees():
        return list(_made(trees()[name]))
    if name == "retried":
        return [(with_present_commands(answer(run)), manifest(of_nodes)) for run, of_nodes in _RETRIED]
    if name in _AT_THE_END:
        return [(with_present_commands(last(name)), manifest(name))]
    return list(course(name, pending=name == "nested-loop"))


def _made(tree: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the answers of a made-up run."""
    spec = _spec(tree["pipeline"])
    nodes: dict[str, Mapping[str, Any]] = {}
    for each in tree["answers"]:
        given = {key: value for key, value in each.items() if key not in ("nodes", "anew")}
        nodes = {} if each.get("anew") else dict(nodes)
        for name, facts in each.get("nodes", {}).items():
            nodes |= _nodes(name if name.startswith("W") else f"W.root.{name}", facts)
        over = {"finished_at": "2026-11-22T03:10:00Z"} if given.get("state") else {}
        run = {
            "run_id": "00000000-0000-0000-0000-000000000001",
            "created_at": "2026-11-22T03:00:00Z",
            "state": "RUNNING",
            "pipeline_spec": spec,
            **over,
            **given,
        }
        yield run, with_workflow(workflow({**_ROOT, **nodes}), run["run_id"])


@cache
def _spec(name: str) -> Any:
    documents = list(yaml.safe_load_all(load_pipeline(getattr(pipelines, name)).text))
    return {"pipeline_spec": documents[0], "platform_spec": documents[1] if len(documents) > 1 else {}}


def _nodes(name: str, facts: Any) -> dict[str, Mapping[str, Any]]:
    """Return the nodes that an entry of a made-up answer stands for."""
    if isinstance(facts, str):
        return {name: {"phase": facts}}
    facts = dict(facts)
    if "pod" in facts:
        at = facts.pop("pod")
        return {name: {**_POD, "phase": "Succeeded" if at[1:] else "Running", "at": at, **facts}}
    if "ran" not in facts:
        return {name: facts}
    at = facts.pop("ran")
    phase = {"phase": "Succeeded" if at[1:] else "Running", "at": at}
    return {
        f"{name}-driver": {"phase": "Succeeded"},
        name: phase,
        f"{name}.executor": {**_POD, **phase, **facts},
    }


def workflow(nodes: Mapping[str, Mapping[str, Any]], name: str = "W") -> dict[str, Any]:
    """Return a workflow with these nodes, by their names. ``at`` is the start and end, in seconds, of a node."""
    made = {}
    for node, facts in nodes.items():
        facts = dict(facts)
        start, end = (*facts.pop("at", (0,)), None)[:2]
        times = {"startedAt": _time(start), "finishedAt": _time(end)}
        identity = name if node == name else f"{name}-{fnv1a32(node)}"
        kept = {key: value for key, value in times.items() if value}
        made[identity] = {"id": identity, "name": node, **kept, **facts}
    return {"metadata": {"name": name}, "status": {"nodes": made}}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"2026-11-22T03:{int(seconds) // 60:02}:{int(seconds) % 60:02}Z"


@dataclass
class Replayed:
    """A run that is read from a host that gives recorded answers; ``said`` are its sentences."""

    name: str
    server: Scripted
    run: HostRun = field(init=False)
    said: list[str] = field(default_factory=list)
    _now: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    _seen: int = 0

    def __post_init__(self) -> None:
        self.server.script = self._reply
        run_id = answers(self.name)[0][0]["run_id"]
        # The bases of the others are in object stores.
        reads = "all" if self.name in RUNS else "none"
        self.run = HostRun(connect(host=self.server.url).connection, run_id, say=self.said.append, reads=reads)

    def _reply(self, request: Request) -> Reply:
        if request.path.endswith("/log"):
            found = log_of(self.name, request.path.split("/")[-2])
            return status(13, "the log is gone", 500) if found is None else Reply(found)
        return Reply(self._now["v1beta1" in request.path])

    def see(self, run: dict[str, Any], manifest: dict[str, Any]) -> tuple[Event, ...]:
        """Let the host answer so, and return the new events."""
        self._now = run, manifest
        events = self.run.read().events
        new, self._seen = events[self._seen :], len(events)
        return new

    def see_all(self) -> tuple[Event, ...]:
        """Let the host give all answers in turn, and return all events."""
        return tuple(event for each in answers(self.name) for event in self.see(*each))


@contextlib.contextmanager
def replaying(name: str) -> Iterator[Replayed]:
    """Serve a run on a host, which gives no answer yet, to a user who has named nothing."""
    nobody = {name: value for name, value in os.environ.items() if not name.startswith((*OF_USER, "AWS_"))}
    with mock.patch.dict(os.environ, nobody, clear=True), scripted(lambda request: None) as server:
        replayed = Replayed(name, server)
        try:
            yield replayed
        finally:
            replayed.run.close()


def log(replayed: Replayed, events: tuple[Event, ...]) -> str:
    """Return the events as lines, and the sentences about what could not be read."""
    first = next(event for event in events if isinstance(event, RunStarted))
    lines = [_line(event, first.time) for event in events]
    record = replayed.run.read()
    lines += [f"! {sentence}" for sentence in dict.fromkeys([*replayed.said, *record.corrupt])]
    text = "".join(f"{each}\n" for each in lines).replace(replayed.server.url, "HOST")
    return text.replace(record.run_id, "RUN")


def _line(event: Event, start: float) -> str:
    fields = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
    if isinstance(event, StageFinished):
        result = fields.pop("result")
        fields = {**{each.name: getattr(result, each.name) for each in dataclasses.fields(result)}, **fields}
        if result.started_at is not None:
            fields["started_at"] = result.started_at - start
    when = fields.pop("time") - start
    word = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    name, state = fields.pop("name", ""), fields.pop("state", "")
    # The folder of logs has another name each time.
    kept = {key: value for key, value in fields.items() if not _is_empty(value) and key != "log_file"}
    values = (f"{key}={json.dumps(value, default=str)}" for key, value in kept.items())
    return " ".join(filter(None, [f"{when:g}", word, name, str(state), *values]))


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", {}, ())


def file_of(name: str) -> str:
    """Return the name of a log's file."""
    return f"{name.replace(' ', '-')}.txt"


def main() -> None:
    """Rewrite the logs."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in names():
        with replaying(name) as replayed:
            (FOLDER / file_of(name)).write_text(log(replayed, replayed.see_all()), encoding="utf-8")


if __name__ == "__main__":
    main()
