"""Every task of a pipeline, with where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchx_kfp.local.scopes import inner_names
from torchx_kfp.pipeline.names import StageNames
from torchx_kfp.pipeline.spec import Component, Pipeline, Task


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
