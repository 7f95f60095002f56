"""Runs that a test makes up, for those that are too large to be run."""

from __future__ import annotations

from typing import Any

from torchx_kfp_dev_host.runs import Run

from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished, StageStarted, StageWaiting
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

    def advance(self, *, started: int = 0, ended: int = 0) -> None:
        """Let stages go on until so many have started, and so many of these have ended.

        Args:
            started: how many stages have started; all that have ended have started as well.
            ended: how many stages have ended.
        """
        with self._lock:
            if not self.events:
                self.events.append(RunStarted(self.pipeline.name, self.record.run_id))
            names, tasks = list(self.pipeline.root.as_dag().tasks), self.facts.tasks
            for name in names[sum(bool(each.attempts) for each in tasks.values()) : max(started, ended)]:
                self.events += [StageWaiting(name, name), StageStarted(name, self._pod(name), 1, name)]
            for name in names[sum(each.finished is not None for each in tasks.values()) : ended]:
                self._end(name, State.SUCCEEDED)

    def finish(self, *, failed: bool = False) -> None:
        """Let all stages succeed, if they have not ended, and the run end."""
        self.advance(ended=len(self.pipeline.root.as_dag().tasks))
        with self._lock:
            state = State.FAILED if failed else State.SUCCEEDED
            self.events.append(RunFinished(self.record.run_id, state, 1.0))

    def terminate(self) -> None:
        """Do what ``:terminate`` does; the stages that run have ended at once."""
        super().terminate()
        with self._lock:
            for name in [name for name, each in self.facts.tasks.items() if each.attempts and not each.finished]:
                self._end(name, State.CANCELED)
            self.events.append(RunFinished(self.record.run_id, State.CANCELED, 1.0, reason="SIGTERM"))

    def _pod(self, name: str) -> str:
        node = self.names.executor(f"{self.names.root}.{name}")
        return self.names.pod(node, "system-container-impl")

    def _end(self, name: str, state: State, reason: str = "") -> None:
        pod = self._pod(name)
        self.events.append(StageFinished(StageResult(name, name, state, reason=reason, attempts=1, pod_name=pod)))
