"""Differences of KFP in the order of tasks: loops, collected outputs, tasks that ignore failures, conditions."""

from __future__ import annotations

import json
from collections.abc import Iterator

from torchx_kfp.common.text import joined
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.model.texts import of_numbers, of_text
from torchx_kfp.execution.pipeline.conditions import compares_types, verify_condition
from torchx_kfp.execution.pipeline.inputs import item_of, loop_items
from torchx_kfp.execution.pipeline.spec import Component, FromInput, FromTask, Pipeline, Task, is_volume_task
from torchx_kfp.execution.pipeline.walk import ScopedTask


def of_loop(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Yield the findings about a loop, and about its known items."""
    task = place.task
    if task.loop is None:
        return
    if task.loop.from_input in task.artifacts:
        yield (
            Kind.FAILS,
            "loops over artifacts, which KFP's backend rejects ('artifact iterator not implemented'). Loop over a list "
            "of names or locations, and have each stage find its own artifact",
        )
        return
    sources = [source for source in task.parameters.values() if isinstance(source, FromInput | FromTask)]
    if selectors := [source.selector for source in sources if source.selector]:
        yield (
            Kind.FAILS,
            f"loops over {selectors[0]} of another loop's item, and KFP's driver fails on each iteration. "
            "Have a stage return the list, and loop over its output",
        )
    if task.loop.raw is not None:
        yield from of_text("its items", task.loop.raw, {}, "Let a stage make the list, and loop over its output")
        yield from of_numbers("its items", json.loads(task.loop.raw))
    values = place.resolved.known
    if task.loop.raw is not None or task.loop.from_input in values:
        try:
            for item in loop_items(task.loop, values):
                item_of(task.loop, place.component, item)
        except ValueError as error:
            yield Kind.FAILS, str(error)


def collected(
    pipeline: Pipeline, scope: Component, name: str, task_name: str, output: str, *, in_loop: bool = False
) -> Iterator[tuple[Kind, str]]:
    """Follow an input through nested pipelines, branches and loops to the stage that produces it."""
    task = scope.as_dag().tasks[task_name]
    component = pipeline.component_of(task)
    if component.dag is None:
        return
    sources = component.dag.outputs.get(output, ())
    if in_loop and sources and task.condition is not None:
        yield (
            Kind.MAY_FAIL,
            f"collects {name!r} from a dsl.If inside a loop, and KFP's driver fails if an iteration skipped the "
            "branch. Collect from a stage that runs in each iteration",
        )
        return
    in_loop = in_loop or task.loop is not None
    if in_loop and len(sources) > 1:
        yield (
            Kind.FAILS,
            f"collects {name!r} from branches (dsl.OneOf) inside a loop, and KFP's driver fails if iterations take "
            "different branches. End each iteration with a stage that takes the dsl.OneOf, and collect from that stage",
        )
        return
    for inner, inner_output in sources:
        yield from collected(pipeline, component, name, inner, inner_output, in_loop=in_loop)


def loops_of(pipeline: Pipeline, scope: Component, task_name: str, output: str) -> int:
    """Return the number of loops around the stage that produces an output, relative to the task that takes it."""
    task = scope.as_dag().tasks[task_name]
    component = pipeline.component_of(task)
    sources = component.dag.outputs.get(output, ()) if component.dag is not None else ()
    inside = max((loops_of(pipeline, component, *source) for source in sources), default=0)
    return inside + (task.loop is not None)


def of_hook(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find tasks that run even after failures: KFP runs them as exit hooks of the tasks before them."""
    tasks = place.scope.as_dag().tasks
    if waited := [name for name in place.task.depends_on if tasks[name].ignores_failures]:
        yield (
            Kind.MAY_FAIL,
            f"waits for {joined(waited)}, which ignores a failure: KFP runs that task as an exit hook, and no task can "
            "wait for a hook. Put both into one stage, or remove ignore_upstream_failure",
        )
    if not place.task.ignores_failures:
        return
    for upstream in place.task.depends_on:
        if what := _without_hook(pipeline, tasks[upstream]):
            yield (
                Kind.CHANGED,
                f"ignores a failure of {upstream!r}, {what}: KFP runs such a task as an exit hook, and makes none "
                "for that, so it never runs. Make it wait for another task, or put it into dsl.ExitHandler",
            )
        rivals = [name for name, other in tasks.items() if other.ignores_failures and upstream in other.depends_on]
        if max(rivals) != place.task.name:
            yield (
                Kind.CHANGED,
                f"ignores a failure of {upstream!r}, as {joined(sorted(set(rivals) - {place.task.name}))} does: "
                f"KFP runs only {max(rivals)!r}. Have one task for each task that may fail",
            )
    if len(place.task.depends_on) > 1:
        yield (
            Kind.CHANGED,
            f"ignores failures of {joined(place.task.depends_on)}: KFP runs it after each of them, but it runs only "
            "once locally. Make it wait for one of them",
        )


def _without_hook(pipeline: Pipeline, task: Task) -> str:
    """Return the kind of a task whose exit hook KFP's compiler omits; empty for others."""
    component = pipeline.component_of(task)
    if task.loop is not None:
        return "a loop"
    if component.importer is not None:
        return "an importer"
    return "a volume claim" if is_volume_task(component) else ""


def of_condition(condition: str) -> Iterator[tuple[Kind, str]]:
    """Yield the findings about the text of a condition."""
    if "{{channel:" in condition:
        yield from of_text("its condition", condition, {}, "Let a stage make the text, and compare its output")
        return
    if "\\" in condition:
        yield (
            Kind.CHANGED,
            f"has the condition {condition!r}, in which KFP's compiler did not escape the backslash: the backend "
            "reads it and what follows as one character. Compare with a string that has none",
        )
    try:
        verify_condition(condition)
    except ValueError as error:
        if compares_types(condition):
            text = (
                f"has the condition {condition!r}, which compares values of different types, so KFP put one of "
                "them in quotes. Compare an int with an int (3 instead of '3'), a bool with True or False, a str with "
                "a str"
            )
        else:
            text = (
                f"has the condition {condition!r}, which {error}. KFP compiles a string with a quote or a "
                "backslash wrongly: compare with a string that has neither"
            )
        yield Kind.FAILS, text
