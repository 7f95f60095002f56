"""The runs of a host: each is a process (``child``), a fork of one that has imported it, or made up by a test."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fake_kfp.answers import Record, describe_run, describe_run_v1
from tests.fake_kfp.argo import Naming, Node, pull_problem
from tests.fake_kfp.facts import Facts
from tests.fake_kfp.logs import importer_log, pod_log
from tests.fake_kfp.tree import make_nodes
from tests.programs import Program, imported
from torchx_kfp.execution.pipeline.load import pipeline_from_text
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.events import Event, RunStarted
from torchx_kfp.execution.runs.history import EventReader
from torchx_kfp.execution.runs.vocabulary import State

_CHILD = "tests.fake_kfp.child:main"
#: The modules that runs import sooner or later.
_MODULES = ("torchx_kfp.execution.local.*",)
#: What a cluster has for its stages.
_OF_CLUSTER = ("secrets", "config_maps")
_starting = threading.Lock()


@functools.cache
def _imported() -> str:
    """Start the process that has imported the program of a run. It ends with this one."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(imported(_CHILD, _MODULES, program=sys.executable))


@dataclass
class Run:
    """A run; ``events`` are those of its local run so far."""

    record: Record
    pipeline: Pipeline
    names: Naming
    events: list[Event] = field(default_factory=list)
    #: Whether it was terminated, and no answer has said so yet. On a cluster, the end takes seconds.
    owes_canceling: bool = False
    #: How many of v1beta1's answers to come have the nodes as they were before a retry.
    stale: int = 0
    #: Answers that were made, with the number of events that they are made from.
    _made: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _facts: Facts = field(default_factory=Facts)
    #: The number of events in the facts.
    _taken: int = 0

    @property
    def facts(self) -> Facts:
        """The facts from the events so far."""
        for event in self.events[self._taken :]:
            self._facts.add(event)
        self._taken = len(self.events)
        return self._facts

    #: Why the run could not be run on this machine.
    problem: str = ""

    def refresh(self) -> None:
        """Read what has happened since the last time."""

    def describe(self) -> dict[str, Any]:
        """Return the run in v2beta1."""
        with self._lock:
            self._refresh()
            key = self._key()
            if self._made.get("v2", (None, None))[0] != key:
                self._made["v2"] = key, describe_run(self.record)
            answer: dict[str, Any] = self._made["v2"][1]
            self.owes_canceling = False
            return answer

    def describe_new(self) -> dict[str, Any]:
        """Return the run as the answer to its submission has it."""
        return describe_run(self.record)

    def describe_v1(self) -> dict[str, Any]:
        """Return the run in v1beta1."""
        with self._lock:
            self._refresh()
            key = self._key()
            if self.stale and "v1" in self._made:
                self.stale -= 1
            elif self._made.get("v1", (None, None))[0] != key:
                nodes = make_nodes(self.pipeline, self.facts, self.names)
                self._made["v1"] = key, describe_run_v1(self.record, self.names, nodes)
            answer: dict[str, Any] = self._made["v1"][1]
            return answer

    def nodes(self) -> dict[str, Node]:
        """Return the nodes of the workflow now."""
        with self._lock:
            self._refresh()
            return make_nodes(self.pipeline, self.facts, self.names)

    def log(self, pod: str) -> str | None:
        """Return the log of a pod; None if there is no such pod."""
        for node in self.nodes().values():
            if node.stage and self.names.pod(node.name, node.template) == pod:
                finished = self.facts.tasks[node.stage].finished
                if node.started_as is None:
                    return importer_log(node.started, finished)
                return pod_log(self.record.run_id, node.started_as, node.ended, finished)
        return None

    def is_archived(self, pod: str) -> bool:
        """Tell whether a pod has ended, so that Argo has archived its log."""
        return any(
            node.ended is not None and self.names.pod(node.name, node.template) == pod for node in self.nodes().values()
        )

    def terminate(self) -> None:
        """Do what ``:terminate`` does."""
        with self._lock:
            if self.record.finished is None and self.record.state != "CANCELING":
                self.record.history.append(("CANCELING", time.time()))
                self.owes_canceling = True

    def retry(self) -> None:
        """Do what ``:retry`` does with a run that has failed."""
        with self._lock:
            begin = RunStarted(self.pipeline.name, self.record.run_id, resumed=True)
            self.events.append(begin)
            self.record.history.append(("RUNNING", begin.time))
            self.record.finished, self.stale = None, 1

    def forget(self) -> None:
        """Make the answers anew: a test has changed the record."""
        self._made.clear()

    def close(self) -> None:
        """End the run's process."""

    def _key(self) -> tuple[Any, ...]:
        return len(self.events), len(self.record.history), self.record.storage_state

    def _refresh(self) -> None:
        self.refresh()
        facts = self.facts
        record = self.record
        if facts.started is not None and record.state == "PENDING":
            record.history.append(("RUNNING", facts.started.time))
        if facts.over is not None and record.finished is None and not self.owes_canceling:
            record.finished = facts.over.time
            state = "SUCCEEDED" if facts.over.state is State.SUCCEEDED else "FAILED"
            record.history.append((state, facts.over.time))


def _with_waits(text: str) -> str:
    """Return a pipeline in which stages wait whose image cannot be pulled."""
    spec, platform = pipeline_from_text(text).copy_documents()
    stuck = [
        each["container"]
        for each in spec["deploymentSpec"].get("executors", {}).values()
        if pull_problem(each.get("container", {}).get("image", ""))
    ]
    for container in stuck:
        container.update(command=["sleep", "3600"], args=[])
    return "\n---\n".join(map(json.dumps, filter(None, [spec, platform]))) if stuck else text


class LocalRun(Run):
    """A run that a process runs."""

    def start(self, folder: Path, arguments: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Start the process.

        Args:
            folder: the folder in which local runs are made.
            arguments: the values of parameters.
            request: options of ``local.run``, values of secrets and config maps, and the address of the store.
        """
        own = folder / ".host"
        own.mkdir(parents=True, exist_ok=True)
        self._reader = EventReader(folder / self.record.run_id)
        pipeline, asked = own / f"{self.record.run_id}.yaml", own / f"{self.record.run_id}.json"
        text = self.pipeline.text
        pipeline.write_text(_with_waits(text), encoding="utf-8")
        content = {
            "pipeline": str(pipeline),
            "arguments": arguments,
            "run_id": self.record.run_id,
            "workflow": self.record.workflow,
            "folder": str(folder),
            **request,
            # A cluster also has those that no stage uses, which a run on this machine refuses.
            **{kind: {name: it for name, it in request[kind].items() if name in text} for kind in _OF_CLUSTER},
        }
        asked.write_text(json.dumps(content), encoding="utf-8")
        self._environ = {"AWS_ENDPOINT_URL": request["store"]} if request["store"] else {}
        self._asked, self._output = asked, own / f"{self.record.run_id}.txt"
        self._fork()

    def _fork(self) -> None:
        with _starting:
            program = Program(_imported(), Path.cwd(), program=sys.executable)
        with self._output.open("wb") as output, open(os.devnull) as nothing:
            streams = [nothing, output, output]
            self.process = program.fork([str(self._asked)], streams, {**os.environ, **self._environ})
        self._asked_to_end = False

    def retry(self) -> None:
        with self._lock:
            self.process.wait(30)  # it has written its last line
            self._fork()
            super().retry()

    def refresh(self) -> None:
        ended = self.process.poll() is not None
        self.events += self._reader.read_new()
        if self.record.state == "CANCELING" and not self._asked_to_end and self.facts.started:
            # A signal before that would end the process without an event.
            self._asked_to_end = True
            self.process.send_signal(signal.SIGTERM)
        if ended and self.facts.over is None and not self.owes_canceling and self.record.finished is None:
            self.record.finished = time.time()
            self.record.history.append(("FAILED", self.record.finished))
            said = self._output.read_text(encoding="utf-8", errors="replace")
            self.problem = f"The run {self.record.display_name!r} could not be run on this machine: {said}"

    def terminate(self) -> None:
        super().terminate()
        with self._lock:
            self.refresh()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except TimeoutError:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
