"""The facts about the pipeline of a run on KFP that are known before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from torchx_kfp.backend.tracked import Tracked
from torchx_kfp.pipeline.spec import Component, Pipeline, Task


@dataclass
class Plan:
    """The facts about a run's pipeline that are known from the beginning.

    ``tracked`` has the tracked stages by their names without indices, ``items`` the numbers of items of loops, as far
    as the pipeline and its arguments tell them, and ``distributed`` the stages whose replicas an engine runs.
    """

    pipeline: Pipeline
    tracked: Mapping[str, Tracked]
    items: Mapping[str, int]
    distributed: frozenset[str] = frozenset()
    #: The tasks of each component, in an order in which they could run.
    _orders: dict[str, list[Task]] = field(default_factory=dict)

    def tasks_of(self, component: Component) -> list[Task]:
        """Return the tasks of a DAG, each after those that it depends on."""
        found = self._orders.get(component.name)
        if found is None:
            tasks = component.as_dag().tasks
            graph = TopologicalSorter({task.name: task.depends_on for task in tasks.values()})
            found = self._orders[component.name] = [tasks[name] for name in graph.static_order()]
        return found
