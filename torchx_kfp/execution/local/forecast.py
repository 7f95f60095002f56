"""Forecast a run: which stages are cached, and why the others would run. Nothing is started.

Tasks are visited in the order of a run. Outputs of stages that are not cached are ``UNKNOWN``, as are inputs that
depend on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torchx_kfp.execution.local.attempt import RunContext, plan_attempt
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.local.dag_run import DagRun, TaskRun, collect, import_artifact, task_inputs
from torchx_kfp.execution.local.kubernetes import volume_outputs
from torchx_kfp.execution.pipeline.artifacts import parameters_of
from torchx_kfp.execution.pipeline.conditions import is_true
from torchx_kfp.execution.pipeline.inputs import UNKNOWN, inputs_of_iteration, inputs_of_root, loop_items
from torchx_kfp.execution.pipeline.spec import FromInput, FromTask, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import StageNames, walk_tasks, without_indices
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.vocabulary import State


def forecast(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    context: RunContext,
    cache: Cache | None,
    fresh: Collection[str],
) -> list[tuple[str, str]]:
    """Return the plan for each stage, by name, in an order in which they could run.

    A plan is ``cached (from RUN)``, ``runs: train.py changed`` or ``skipped: ...``.

    Args:
        pipeline: the pipeline.
        arguments: the values of all parameters.
        context: the facts that the stages would share.
        cache: the cache; None if it is not used.
        fresh: the stages to run even if they are cached, without indices.
    """
    forecaster = _Forecaster(pipeline, context, cache, fresh)
    inputs = inputs_of_root(pipeline.root, arguments)
    forecaster.go_through(DagRun(pipeline, pipeline.root, inputs, StageNames()))
    return forecaster.found


class _Forecaster:
    def __init__(self, pipeline: Pipeline, context: RunContext, cache: Cache | None, fresh: Collection[str]) -> None:
        self.found: list[tuple[str, str]] = []
        self._pipeline, self._context, self._cache, self._fresh = pipeline, context, cache, fresh
        #: The stage that makes outputs of a task, or inputs of a DAG, unknown.
        self._runs: dict[TaskRun, str] = {}
        self._given: dict[DagRun, dict[str, str]] = {}

    def go_through(self, dag: DagRun) -> None:
        for task in dag.component.as_dag().ordered:
            self._task(dag.runs[task.name])

    def _task(self, run: TaskRun) -> None:
        dag = run.dag.component.as_dag()
        before = [run.dag.runs[name] for name in run.task.depends_on]
        outcomes = [reasons.TaskOutcome(other.name, other.state) for other in before]
        state, reason = reasons.after_upstream(dag, run.task, outcomes)
        if state is not State.QUEUED:
            self._end_without_running(run, state, reason.removeprefix("was "))
            return
        try:
            run.inputs = task_inputs(run, self._context.constants)
            condition = run.task.condition
            reads = {name: self._reads(run, name) for name, value in run.inputs.items() if value is UNKNOWN}
            decides = [stage for name, stage in reads.items() if condition and f"'{name}'" in condition]
            if not decides and condition and not is_true(condition, parameters_of(run.inputs)):
                self._end_without_running(run, State.SKIPPED, reasons.CONDITION_IS_FALSE.removeprefix("was "))
            elif decides or (run.task.loop is not None and run.task.loop.from_input in reads):
                stage = decides[0] if decides else reads[str(run.task.loop and run.task.loop.from_input)]
                self._end_without_running(run, State.SUCCEEDED, f"depends on {stage}", stage)
            elif run.component.dag is not None:
                self._group(run, reads)
            else:
                self._single(run, reads)
        except Exception as error:  # the run would go on with other tasks
            self._end_stage(run, State.FAILED, f"fails: {error}")

    def _reads(self, run: TaskRun, name: str) -> str:
        """Return the stage that makes a task's input unknown."""
        source = run.task.parameters.get(name) or run.task.artifacts.get(name)
        if isinstance(source, FromTask):
            return self._runs.get(run.dag.runs[source.task], source.task)
        return self._given.get(run.dag, {}).get(source.name, "") if isinstance(source, FromInput) else ""

    def _group(self, run: TaskRun, reads: Mapping[str, str]) -> None:
        """Go through a nested pipeline, a branch or a loop."""
        names, loop = run.dag.names.inside(run.task), run.task.loop
        items = loop_items(loop, run.inputs) if loop is not None else [None]
        iterations = []
        for index, item in enumerate(items):
            inputs, inside = run.inputs, names
            if loop is not None:
                inputs = inputs_of_iteration(run.task, run.component, run.inputs, item)
                inside = run.dag.names.inside_iteration(index)
            dag = DagRun(self._pipeline, run.component, inputs, inside, run, index)
            self._given[dag] = dict(reads)
            self.go_through(dag)
            iterations.append(dag)
        outputs = [dag.outputs() for dag in iterations]
        ran = [self._runs[each] for dag in iterations for each in dag.runs.values() if each in self._runs]
        run.state = State.SUCCEEDED
        if ran:
            self._runs[run] = ran[0]
        if loop is None:
            run.outputs = outputs[0]
        elif any(value is UNKNOWN for each in outputs for value in each.values()):
            run.outputs = dict.fromkeys(run.component.as_dag().outputs, UNKNOWN)
        else:
            run.outputs = collect(run.component, outputs, self._pipeline)

    def _single(self, run: TaskRun, reads: Mapping[str, str]) -> None:
        if run.component.importer is not None or is_volume_task(run.component):
            made = volume_outputs(run.component, run.inputs, self._context.run_id)
            place, importer = self._context.constants["workspace_path"], run.component.importer
            if importer is not None and reads:
                self._runs[run] = next(iter(reads.values()))
                made = dict.fromkeys(run.component.artifact_outputs, UNKNOWN)
            elif importer is not None:
                made = {name: import_artifact(name, importer, run, place) for name in run.component.artifact_outputs}
            run.state, run.outputs = State.SUCCEEDED, made
            return
        if self._cache is None:
            self._end_stage(run, State.SUCCEEDED, "runs: --no-cache")
        elif without_indices(run.name) in self._fresh:
            self._end_stage(run, State.SUCCEEDED, "runs: --fresh")
        elif not run.task.caches:
            self._end_stage(run, State.SUCCEEDED, "runs: its cache is turned off")
        elif run.task.ignores_failures:
            self._end_stage(run, State.SUCCEEDED, "runs: it is an exit task")
        elif reads:
            self._end_stage(run, State.SUCCEEDED, f"runs: it reads {next(iter(reads.values()))}")
        else:
            self._look_up(run, self._cache)

    def _look_up(self, run: TaskRun, cache: Cache) -> None:
        key = cache.key(plan_attempt(run, self._context, self._context.pod_names.make(run.name, 1)), run, self._context)
        cached = cache.get(key) if key is not None else None
        if cached is not None:
            run.state, run.outputs = State.CACHED, {**cached.outputs, **cached.artifacts}
            self.found.append((run.name, f"cached (from {cached.cached_from})"))
            return
        last = cache.last(run.name)
        if key is None:
            why = "it cannot be cached"
        elif last is None:
            why = "it has not run yet"
        elif changes := key.differences(last.parts, last.files):
            why = ", ".join(changes)
        elif last.state is not State.SUCCEEDED:
            why = "it failed" if last.state in (State.FAILED, State.ALLOWED) else f"it was {last.state}"
        else:
            why = f"its outputs in {last.run_id} are missing or changed"
        self._end_stage(run, State.SUCCEEDED, f"runs: {why}")

    def _end_stage(self, run: TaskRun, state: State, what: str) -> None:
        """End a stage with unknown outputs."""
        run.state = state
        self._runs[run] = run.name
        run.outputs = dict.fromkeys([*run.component.parameter_outputs, *run.component.artifact_outputs], UNKNOWN)
        self.found.append((run.name, what))

    def _end_without_running(self, run: TaskRun, state: State, what: str, stage: str = "") -> None:
        """End a task that does not run, and all stages in it."""
        run.state = state
        tasks = walk_tasks(self._pipeline, run.component, run.dag.names.inside(run.task)) if run.component.dag else ()
        names = [task.name for task in tasks if task.is_stage] if run.component.dag is not None else [run.name]
        self.found += ((name, what) for name in names)
        if stage:
            self._runs[run] = stage
            outputs = (
                run.component.as_dag().outputs if run.component.dag is not None else run.component.parameter_outputs
            )
            run.outputs = dict.fromkeys(outputs, UNKNOWN)
