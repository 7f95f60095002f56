"""Which stages a pipeline has, before any has run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from torchx_kfp.local.scopes import dag_of, is_group
from torchx_kfp.local.spec import Component, Pipeline

_INDICES = re.compile(r"\[[\d,]+\]")


def outline(pipeline: Pipeline) -> dict[str, bool]:
    """The names of the pipeline's stages, without indices of loops, in an order in which they could run.

    The value says whether the stage is in a loop, and so may run several times or never.
    """
    return dict(_stages(pipeline, pipeline.root, (), False))


def without_indices(stage: str) -> str:
    """``inner/train`` for ``inner[2]/train[2,0]``."""
    return _INDICES.sub("", stage)


def indices_of(stage: str) -> list[int]:
    """2, 0 for ``train[2,0]``."""
    return [int(number) for group in _INDICES.findall(stage) for number in group[1:-1].split(",")]


def _stages(
    pipeline: Pipeline, component: Component, inside: tuple[str, ...], looped: bool
) -> Iterator[tuple[str, bool]]:
    tasks = dag_of(component).tasks
    for name in TopologicalSorter({task.name: task.depends_on for task in tasks.values()}).static_order():
        task = tasks[name]
        inner = pipeline.component_of(task)
        loops = looped or task.loop is not None
        if inner.dag is None:
            yield "/".join((*inside, name)), loops
        else:
            yield from _stages(pipeline, inner, inside if is_group(task) else (*inside, name), loops)
