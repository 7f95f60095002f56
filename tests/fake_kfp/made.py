"""Runs that a test makes up, for those that are too large to be run."""

from __future__ import annotations

import time
from typing import Any

from tests.fake_kfp.runs import Run
from torchx_kfp.execution.runs.events import (
    Event,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StageWaiting,
    encode,
)
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State


def large_pipeline(name: str, stages: int, chains: int = 0) -> dict[str, Any]:
    """Return a pipeline with stages ``stage-0``, ``stage-1``...; with ``chains``, each follows one before it."""
    tasks = {
        f"stage-{number}": {
            "cachingOptions": {},
            "componentRef": {"name": "comp-stage"},
            "taskInfo": {"name": f"stage-{number}"},
            **({"dependentTasks": [f"stage-{number - chains}"]} if chains and number >= chains else {}),
        }
        for number in range(stages)
    }
    return {
        "components": {"comp-stage": {"executorLabel": "exec-stage"}},
        "deploymentSpec": {"executors": {"exec-stage": {"container": {"image": "app:1", "command": ["true"]}}}},
        "pipelineInfo": {"name": name},
        "root": {"dag": {"tasks": tasks}},
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.16.1",
    }


class MadeRun(Run):
    """A run of a pipeline without groups, whose stages begin and end in their order when the test says so."""

    def advance(self, *, started: int = 0, ended: int = 0, failed: bool = False) -> None:
        """Let stages go on until so many have started, and so many of these have ended.

        Args:
            started: how many stages have started; all that have ended have started as well.
            ended: how many stages have ended.
            failed: whether those that end now fail.
        """
        with self._lock:
            if not self.lines:
                self._say(RunStarted(self.pipeline.name, self.record.run_id))
                self._fact("opened", dag=self.names.root)
            names = list(self.pipeline.root.as_dag().tasks)
            for number in range(len(self.facts.attempts), max(started, ended)):
                name = names[number]
                self._fact("begun", task=f"{self.names.root}.{name}", stage=name)
                self._say(StageWaiting(name, name))
                self._say(StageStarted(name, self._pod(name), 1, name))
            for number in range(len(self.facts.finished), ended):
                name, state = names[number], State.FAILED if failed else State.SUCCEEDED
                self._say(StageFinished(StageResult(name, name, state, attempts=1, pod_name=self._pod(name))))
                reason = "ended with exit code 1" if failed else ""
                self._fact("ended", task=f"{self.names.root}.{name}", state=str(state), reason=reason)

    def finish(self, *, failed: bool = False) -> None:
        """Let all stages succeed, if they have not ended, and the run end."""
        self.advance(ended=len(self.pipeline.root.as_dag().tasks))
        with self._lock:
            self._fact("closed", dag=self.names.root, failed=failed)
            self._say(RunFinished(self.record.run_id, State.FAILED if failed else State.SUCCEEDED, 1.0))

    def terminate(self) -> None:
        """Do what ``:terminate`` does; the stages that run have ended at once."""
        super().terminate()
        with self._lock:
            for name in [each for each in self.facts.attempts if each not in self.facts.finished]:
                self._say(StageFinished(StageResult(name, name, State.CANCELED, attempts=1, pod_name=self._pod(name))))
            self._say(RunFinished(self.record.run_id, State.CANCELED, 1.0, reason="SIGTERM"))

    def _pod(self, name: str) -> str:
        node = self.names.executor(f"{self.names.root}.{name}")
        return self.names.pod(node, "system-container-impl")

    def _say(self, event: Event) -> None:
        self.lines.append(encode(event))

    def _fact(self, fact: str, **content: Any) -> None:
        self.lines.append({"fact": fact, "time": time.time(), **content})
