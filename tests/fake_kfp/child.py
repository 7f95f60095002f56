"""The process that runs one submitted pipeline with ``torchx_kfp.local``, and writes down what happens.

It reads a request, as JSON, from the file that is its argument. Each line of the journal is an event of the run (see
``runs.events``), or a fact about a task, which may be a loop, a branch or a nested pipeline: it has begun, its DAG was
opened or closed, it has ended. Tasks have the names of their Argo nodes. Text of the runner are replaced: the run has
the id that KFP gave it, and its pods have Argo's names. A run that is retried runs again, with the same names.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fake_kfp.argo import Naming, executor_template
from tests.fake_kfp.logs import NO_TITLE
from torchx_kfp import local
from torchx_kfp.contract.protocol import POD_UID
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.local import attempt, dag_scheduler, runner
from torchx_kfp.execution.local.dag_run import DagRun, TaskRun
from torchx_kfp.execution.local.kubernetes import field_values
from torchx_kfp.execution.pipeline.spec import Component, Importer
from torchx_kfp.execution.pipeline.walk import walk, without_indices
from torchx_kfp.execution.runs.events import Event, encode
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.prepared_run import prepare


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
    nodes: dict[str, TaskRun]

    def __init__(self, taken: object = None) -> None:
        #: The attempts with which stages began since the run was retried.
        self._first: dict[str, int] = {}

    def make(self, stage: str, attempt: int) -> str:
        run, number = self.nodes[stage], attempt - self._first.setdefault(stage, attempt)
        retries = run.task.retry is not None
        template = executor_template(run.component.platform.get("podMetadata"), retries=retries)
        return self.names.pod(self.names.executor(task_name(run, self.names), number), template)


def with_uid(component: Component, run_id: str, pod_name: str, pod_uid: str) -> dict[str, str]:
    """Return the variables of a pod, as KFP sets them. In place of ``field_values``."""
    return {**field_values(component, run_id, pod_name, pod_uid), POD_UID: pod_uid}


def task_name(run: TaskRun, names: Naming) -> str:
    """Return the name of a task's node."""
    dag = dag_name(run.dag, names)
    if run.task.runs_always and run.task.depends_on:
        # An exit task is a hook of the task before it.
        dag = names.attempt(f"{dag}.{run.task.depends_on[0]}.onExit")
    return f"{dag}.{run.task.name}"


def dag_name(dag: DagRun, names: Naming) -> str:
    """Return the name of the DAG that a scope is."""
    if dag.owner is None:
        return names.root
    task = task_name(dag.owner, names)
    if dag.owner.loop is not None:
        return names.iteration(task, dag.index)
    return names.attempt(task, dag.owner.tries - 1 if dag.owner.task.retry is not None else 0)


class Recording(dag_scheduler.Scheduler):
    """Writes what happens to tasks into the journal."""

    names: Naming
    journal: Journal

    def _begin(self, run: TaskRun) -> None:
        Pods.nodes[run.name] = run
        self.journal.on_fact("begun", task=task_name(run, self.names), stage=run.name)
        super()._begin(run)

    def _import(self, run: TaskRun, importer: Importer) -> None:
        if importer.type.title:
            super()._import(run, importer)
        else:
            self._fail(run, ValueError(NO_TITLE))

    def _open(self, dag: DagRun) -> None:
        self.journal.on_fact("opened", dag=dag_name(dag, self.names))
        super()._open(dag)

    def _close(self, dag: DagRun) -> None:
        self.journal.on_fact("closed", dag=dag_name(dag, self.names), failed=dag.failed)
        super()._close(dag)

    def _continue_loop(self, run: TaskRun) -> None:
        assert run.loop is not None
        self.journal.on_fact("loop", task=task_name(run, self.names), items=len(run.loop.items))
        super()._continue_loop(run)

    def _finish(self, run: TaskRun, state: Any, outputs: Any) -> None:
        self.journal.on_fact("ended", task=task_name(run, self.names), state=str(state), reason=run.reason)
        super()._finish(run, state, outputs)


def retry(request: dict[str, Any], folder: Path, options: dict[str, Any]) -> local.RunResult:
    """Run the pipeline again in its folder, without the stages that have succeeded."""
    prepared = prepare(local.load_pipeline(request["pipeline"]), request["arguments"], directory=".")
    anew = {place.name for place in walk(prepared.pipeline) if place.task.runs_always}
    kept: dict[str, local.StageResult] = {}
    for end in read_run(folder).run.ends:
        if end.state.is_success and without_indices(end.name) not in anew:
            kept[end.name] = end
        elif end.pod_name and not end.state.is_success:
            (folder / end.pod_name).rename(folder / f"{end.pod_name}.{time.time_ns()}")
    plan = local.ResumePlan(request["run_id"], (), prepared.pipeline, reusable=kept)
    return runner.start(replace(prepared, plan=plan), **options)


def main() -> None:
    """Run the pipeline of a request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    journal = Journal(request["journal"])
    names = Naming(request["workflow"])
    Recording.names = Pods.names = names
    Recording.journal, Pods.nodes = journal, {}
    folder = Path(request["folder"]) / request["run_id"]
    given = {"watch": journal, "secrets": request["secrets"], "config_maps": request["config_maps"]}
    runner.make_run_name = lambda pipeline: request["run_id"]
    runner.Scheduler = Recording
    attempt.field_values = with_uid
    if not request["store"]:
        # In a cluster, an address that a stage names counts.
        attempt.own_endpoints = lambda *_, **__: {}
    dag_scheduler.PodNames = Pods
    options = {"output_dir": request["folder"], **given, **request["options"]}
    try:
        if folder.exists():
            runner.make_folder = lambda path, *_, **__: Path(path).mkdir(exist_ok=True)
            result = retry(request, folder, options)
        else:
            result = local.run(request["pipeline"], request["arguments"], **options)
    except TorchxKfpError as error:
        # A cluster runs some pipelines that this machine does not.
        journal.on_fact("refused", reason=str(error))
        sys.exit(str(error))
    sys.exit(0 if str(result.state) == "succeeded" else 1)
