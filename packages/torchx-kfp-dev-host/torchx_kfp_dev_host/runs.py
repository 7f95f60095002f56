"""The runs of a host: each is the process of a local run (``run_process``)."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.events import Event, RunStarted
from torchx_kfp.execution.runs.history import EventReader
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp_dev_host.answers import Record, describe_run, describe_run_v1
from torchx_kfp_dev_host.argo import Naming, Node
from torchx_kfp_dev_host.facts import Facts
from torchx_kfp_dev_host.logs import pod_log
from torchx_kfp_dev_host.tree import make_nodes

#: Seconds in which a run's process ends that was asked to.
_PATIENCE = 20


@dataclass
class Run:
    """A run; ``events`` are those of its local run so far."""

    record: Record
    pipeline: Pipeline
    names: Naming
    events: list[Event] = field(default_factory=list)
    #: Whether it was terminated, and no answer has said so yet. On a cluster, the end takes seconds.
    owes_canceling: bool = False
    #: The last answer in v1beta1, with what it was made from.
    _made: tuple[Any, dict[str, Any]] = (None, {})
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

    def refresh(self) -> None:
        """Read the events since the last call."""

    def describe(self) -> dict[str, Any]:
        """Return the run in v2beta1."""
        with self._lock:
            self._refresh()
            self.owes_canceling = False
            return describe_run(self.record)

    def describe_v1(self) -> dict[str, Any]:
        """Return the run in v1beta1."""
        with self._lock:
            self._refresh()
            key = len(self.events), len(self.record.history)
            if self._made[0] != key:
                self._made = key, describe_run_v1(self.record, self.names, self.nodes())
            return self._made[1]

    def nodes(self) -> dict[str, Node]:
        """Return the nodes of the workflow now."""
        with self._lock:
            self._refresh()
            return make_nodes(self.pipeline, self.facts, self.names)

    def log(self, pod: str) -> str | None:
        """Return the log of a pod; None if there is no such pod."""
        for node in self.nodes().values():
            if node.stage and self.names.pod(node.name, node.template) == pod:
                return pod_log(node, self.facts.tasks[node.stage].finished)
        return None

    def terminate(self) -> None:
        """Handle ``:terminate``."""
        with self._lock:
            if self.record.finished is None and self.record.state != "CANCELING":
                self.record.history.append(("CANCELING", time.time()))
                self.owes_canceling = True

    def retry(self) -> None:
        """Handle ``:retry`` of a failed run."""
        with self._lock:
            begin = RunStarted(self.pipeline.name, self.record.run_id, retried=True)
            self.events.append(begin)
            self.record.history.append(("RUNNING", begin.time))
            self.record.finished = None

    def stop(self) -> None:
        """Ask the run's process to end."""

    def close(self) -> None:
        """Wait for the end of the run's process, which was asked to end."""

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


class LocalRun(Run):
    """A run that a process runs."""

    #: A ``subprocess.Popen``, or another one with its methods.
    process: Any

    def start(self, folder: Path, options: Mapping[str, Any]) -> None:
        """Start the process of the local run in the folder."""
        own = folder / ".host"
        own.mkdir(0o700, parents=True, exist_ok=True)
        self._reader = EventReader(folder / self.record.run_id)
        pipeline, self._request, self._output = (
            own / f"{self.record.run_id}.{kind}" for kind in ("yaml", "json", "txt")
        )
        pipeline.write_text(self.pipeline.text, encoding="utf-8")
        content = {
            "pipeline": str(pipeline),
            "arguments": (self.record.runtime_config or {}).get("parameters", {}),
            "run_id": self.record.run_id,
            "workflow": self.record.workflow,
            "folder": str(folder),
            "options": dict(options),
        }
        self._request.write_text(json.dumps(content), encoding="utf-8")
        self._begin()

    def spawn(self, words: Sequence[str], output: BinaryIO) -> Any:
        """Start a process of the program ``run_process``, which Ctrl-C in the host's terminal does not reach."""
        command = [sys.executable, "-m", "torchx_kfp_dev_host.run_process", *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)

    def _begin(self) -> None:
        with self._output.open("wb") as output:
            self.process = self.spawn([str(self._request)], output)
        self._asked_to_end = False

    def retry(self) -> None:
        with self._lock:
            self.process.wait(_PATIENCE)  # it has written its last event
            self._begin()
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
            said = self._output.read_text(encoding="utf-8", errors="replace").strip()
            self.record.error = f"The run {self.record.display_name!r} could not be run on this machine: {said}"

    def terminate(self) -> None:
        super().terminate()
        with self._lock:
            self.refresh()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        # A second SIGTERM lets a local run kill its stages at once.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE)
                return
            self.process.send_signal(number)
        self.process.wait(_PATIENCE)
