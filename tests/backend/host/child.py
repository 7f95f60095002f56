"""The process that runs one submitted pipeline with ``torchx_kfp.local``, and writes down what happens.

It reads a request, as JSON, from the file that is its argument. Each line of the journal is an event of the run (see
``runs.events``), or a fact about a task, which may be a loop, a branch or a nested pipeline: it has begun, its DAG was
opened or closed, it has ended. Tasks have the names of their Argo nodes. Parts of the runner are replaced: the run has
the id that KFP gave it, and its pods have Argo's names. A run that is retried is resumed, with the same names again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.backend.host.argo import Naming, executor_template
from torchx_kfp import local
from torchx_kfp.contract.protocol import POD_UID
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.local import runner, scheduler, stages
from torchx_kfp.local.attempt import prepare
from torchx_kfp.local.platform.settings import field_values
from torchx_kfp.local.scopes import Node, Scope
from torchx_kfp.pipeline.spec import Component
from torchx_kfp.runs.events import Event, encode
from torchx_kfp.runs.history import read_run


class Journal(local.Watch):
    """Writes events and facts, one on each line."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the run)

    def on_event(self, event: Event) -> None:
        self._write(encode(event))

    def on_fact(self, fact: str, **content: Any) -> None:
        self._write({"fact": fact, "time": time.time(), **content})

    def on_warning(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Pods:
    """Gives the pods of stages the names that Argo gives them. In place of ``PodNames``."""

    names: Naming
    nodes: dict[str, Node]

    def __init__(self, taken: object = None) -> None:
        #: The attempts with which stages began since the run was retried.
        self._first: dict[str, int] = {}

    def make(self, stage: str, attempt: int) -> str:
        node, number = self.nodes[stage], attempt - self._first.setdefault(stage, attempt)
        retries = node.task.retry is not None
        template = executor_template(node.component.platform.get("podMetadata"), retries=retries)
        return self.names.pod(self.names.executor(task_name(node, self.names), number, retries=retries), template)


def with_uid(component: Component, run_id: str, pod_name: str, pod_uid: str) -> dict[str, str]:
    """Return the variables of a pod, as KFP sets them. In place of ``field_values``."""
    return {**field_values(component, run_id, pod_name, pod_uid), POD_UID: pod_uid}


def task_name(node: Node, names: Naming) -> str:
    """Return the name of a task's node."""
    dag = dag_name(node.scope, names)
    if node.task.runs_always and node.task.depends_on:
        # An exit task is a hook of the task before it.
        dag = names.attempt(f"{dag}.{node.task.depends_on[0]}.onExit")
    return f"{dag}.{node.task.name}"


def dag_name(scope: Scope, names: Naming) -> str:
    """Return the name of the DAG that a scope is."""
    if scope.owner is None:
        return names.root
    task = task_name(scope.owner, names)
    if scope.owner.loop is not None:
        return names.iteration(task, scope.index)
    return names.attempt(task, scope.owner.attempt - 1, retries=scope.owner.task.retry is not None)


class Recording(scheduler.Scheduler):
    """Writes what happens to tasks into the journal."""

    names: Naming
    journal: Journal

    def _begin(self, node: Node) -> None:
        Pods.nodes[node.name] = node
        self.journal.on_fact("begun", task=task_name(node, self.names), stage=node.name)
        super()._begin(node)

    def _open(self, scope: Scope) -> None:
        self.journal.on_fact("opened", dag=dag_name(scope, self.names))
        super()._open(scope)

    def _close(self, scope: Scope) -> None:
        self.journal.on_fact("closed", dag=dag_name(scope, self.names), failed=scope.failed)
        super()._close(scope)

    def _continue_loop(self, node: Node) -> None:
        assert node.loop is not None
        self.journal.on_fact("loop", task=task_name(node, self.names), items=len(node.loop.items))
        super()._continue_loop(node)

    def _finish(self, node: Node, state: Any, outputs: Any) -> None:
        self.journal.on_fact("ended", task=task_name(node, self.names), state=str(state), reason=node.reason)
        super()._finish(node, state, outputs)


def main() -> None:
    """Run the pipeline of a request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    journal = Journal(request["journal"])
    names = Naming(request["workflow"], request["defaults"])
    Recording.names = Pods.names = names
    Recording.journal, Pods.nodes = journal, {}
    folder = Path(request["folder"]) / request["run_id"]
    given = {"watch": journal, "secrets": request["secrets"], "config_maps": request["config_maps"]}
    runner.make_run_name = lambda pipeline: request["run_id"]
    runner.Scheduler = Recording
    prepare.field_values = with_uid
    stages.PodNames = Pods
    try:
        if folder.exists():
            for end in read_run(folder).run.ends.values():
                if end.pod_name and not end.state.is_success:
                    (folder / end.pod_name).rename(folder / f"{end.pod_name}.{time.time_ns()}")
            result = local.resume(folder, **given)
        else:
            options = {"output_dir": request["folder"], **given, **request["options"]}
            result = local.run(request["pipeline"], request["arguments"], **options)
    except TorchxKfpError as error:
        # A cluster runs some pipelines that this machine does not.
        journal.on_fact("refused", reason=str(error))
        sys.exit(str(error))
    sys.exit(0 if str(result.state) == "succeeded" else 1)
