"""Which stages a pipeline has, before any has run."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import NamedTuple

from torchx_kfp.local.scopes import dag_of, inner_names
from torchx_kfp.pipeline.names import StageNames
from torchx_kfp.pipeline.spec import Component, Pipeline, Task


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
