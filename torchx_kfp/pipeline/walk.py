"""The walk over a compiled pipeline: every task with its place, in an order in which they could run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter

from torchx_kfp.pipeline.spec import Component, Pipeline, Task


@dataclass(frozen=True)
class StageNames:
    """Names of the stages in one scope: the nested pipelines around it, and the indices of the loops around it.

    Branches and exit handlers are not part of a name.
    """

    pipelines: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()

    def of(self, task: str) -> str:
        """Return the name of a task's stage: ``inner/train[2,0]``."""
        return "/".join((*self.pipelines, self._indexed(task)))

    def inside(self, task: Task) -> StageNames:
        """Return the names inside a task of this scope; each iteration of a loop adds its index to them."""
        return self if task.is_group else StageNames((*self.pipelines, self._indexed(task.name)))

    def inside_iteration(self, index: int) -> StageNames:
        """Return the names inside one iteration of a loop."""
        return StageNames(self.pipelines, (*self.indices, index))

    def _indexed(self, task: str) -> str:
        return f"{task}[{','.join(map(str, self.indices))}]" if self.indices else task


@dataclass(frozen=True)
class Place:
    """A task and its place in a pipeline.

    Attributes:
        path: the names of the tasks that lead to it, including groups: ``condition-1/train``.
        name: the name of its stages, without the indices of the loops that the walk has entered.
        task: the task.
        component: the component that it runs.
        scope: the component whose DAG contains it.
        inside: the loop, branch or nested pipeline around it; None in the scope that the walk began with.
        looped: whether it is a loop, or in one that the walk has entered. Such a task may run several times, or never.
    """

    path: str
    name: str
    task: Task
    component: Component
    scope: Component
    inside: Place | None = None
    looped: bool = False

    @property
    def is_stage(self) -> bool:
        """Whether it is a single stage rather than a group of tasks."""
        return self.component.dag is None

    def has_input(self, name: str) -> bool:
        """Tell whether the scope has an input with this name, so that the task can take it."""
        around = self.inside
        if around is None:
            return name in self.scope.inputs
        loop = around.task.loop
        return name in around.component.inputs or name in around.task.inputs or (loop and loop.item_input) == name


def walk(pipeline: Pipeline, scope: Component | None = None, names: StageNames | None = None) -> Iterator[Place]:
    """Yield every task of the pipeline in an order in which they could run, each group before the tasks inside.

    Args:
        pipeline: the pipeline.
        scope: the component to begin with, if not the root.
        names: the names of the stages in that scope.
    """
    return _walk(pipeline, scope or pipeline.root, names or StageNames(), None)


def _walk(pipeline: Pipeline, scope: Component, names: StageNames, inside: Place | None) -> Iterator[Place]:
    tasks = scope.as_dag().tasks
    for name in TopologicalSorter({task.name: task.depends_on for task in tasks.values()}).static_order():
        task = tasks[name]
        component = pipeline.component_of(task)
        path = f"{inside.path}/{name}" if inside is not None else name
        looped = task.loop is not None or (inside is not None and inside.looped)
        place = Place(path, names.of(name), task, component, scope, inside, looped)
        yield place
        if component.dag is not None:
            yield from _walk(pipeline, component, names.inside(task), place)
