"""Every task of a compiled pipeline: where it stands, the name of its stage, and an order in which they could run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

from torchx_kfp.pipeline.names import StageNames, is_group_name
from torchx_kfp.pipeline.spec import Component, Dag, Pipeline, Task


def dag_of(component: Component) -> Dag:
    """The component's DAG, which it has."""
    if component.dag is None:
        raise TypeError(f"the component {component.name} has no tasks")
    return component.dag


def inner_names(task: Task, names: StageNames) -> StageNames:
    """Stage names inside of this task's DAG, but for a loop's index: branches and loops do not show in them."""
    return names if is_group(task) else names.inside_pipeline(task.name)


def is_group(task: Task) -> bool:
    """Whether KFP made the task for a loop, a condition or an exit handler, and nobody wrote a nested pipeline."""
    return task.loop is not None or task.condition is not None or is_group_name(task.name)


@dataclass(frozen=True)
class Place:
    """A task where it stands.

    Attributes:
        path: the names of the tasks that lead to it, groups included.
        stage: its name as a stage.
        task: the task.
        component: what it runs.
        scope: the component whose DAG it is in.
        given: the inputs that its scope has.
    """

    path: str
    stage: str
    task: Task
    component: Component
    scope: Component
    given: frozenset[str]


def places(pipeline: Pipeline) -> Iterator[Place]:
    """Every task that the root leads to."""
    pending = [("", StageNames(), pipeline.root, frozenset(pipeline.root.inputs))]
    while pending:
        prefix, names, scope, given = pending.pop()
        assert scope.dag is not None
        for task in scope.dag.tasks.values():
            component = pipeline.component_of(task)
            place = Place(f"{prefix}{task.name}", names.of(task.name), task, component, scope, given)
            yield place
            if component.dag is not None:
                inputs = {*component.inputs, *task.inputs, *([task.loop.item_input] if task.loop else ())}
                pending.append((f"{place.path}/", inner_names(task, names), component, frozenset(inputs)))


class Planned(NamedTuple):
    """A task of the pipeline: of one in a loop, all iterations. It is a stage where its component has no DAG."""

    name: str
    task: Task
    component: Component
    #: Whether it is in a loop inside of what was asked about, and so may run several times or never.
    looped: bool


def stages_in(pipeline: Pipeline, scope: Component, names: StageNames | None = None) -> Iterator[Planned]:
    """The stages in a DAG, nested pipelines and branches included, in an order in which they could run.

    ``names`` are those of the DAG's stages; the root's where there are none.
    """
    tasks = _tasks_in(pipeline, scope, names or StageNames(), looped=False)
    return (planned for planned in tasks if planned.component.dag is None)


def outline(pipeline: Pipeline) -> dict[str, bool]:
    """The names of the pipeline's stages, without indices of loops, in an order in which they could run.

    The value says whether the stage is in a loop, and so may run several times or never.
    """
    return {stage.name: stage.looped for stage in stages_in(pipeline, pipeline.root)}


def positions(pipeline: Pipeline) -> dict[str, int]:
    """The places of all tasks in an order in which they could run, by the names that ``outline`` has for stages."""
    tasks = _tasks_in(pipeline, pipeline.root, StageNames(), looped=False)
    return {planned.name: place for place, planned in enumerate(tasks)}


def _tasks_in(pipeline: Pipeline, scope: Component, names: StageNames, *, looped: bool) -> Iterator[Planned]:
    tasks = dag_of(scope).tasks
    for name in TopologicalSorter({task.name: task.depends_on for task in tasks.values()}).static_order():
        task = tasks[name]
        component = pipeline.component_of(task)
        loops = looped or task.loop is not None
        yield Planned(names.of(name), task, component, loops)
        if component.dag is not None:
            yield from _tasks_in(pipeline, component, inner_names(task, names), looped=loops)
