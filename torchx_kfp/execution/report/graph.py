"""Draw the pipeline's graph: tasks with their states, inside the boxes of loops, conditions and nested pipelines.

In a compiled pipeline, edges connect only tasks of the same scope. So boxes are laid out from the inside out. The boxes
of a scope are in layers, so that every edge leads down; edges pass beside the boxes of the layers between their ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

from torchx_kfp.common.text import duration, shorten
from torchx_kfp.execution.pipeline.spec import CHANNEL, Task
from torchx_kfp.execution.pipeline.walk import walk_tasks
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State, state_of_all

#: The size of a task's box.
WIDTH, HEIGHT = 190.0, 46.0
#: Gaps between the boxes of a layer and between layers; the padding and the title of a box that contains others.
GAP, LAYER_GAP, PADDING, TITLE = 16.0, 40.0, 14.0, 26.0
#: The width that an edge takes beside the boxes of a layer.
BEND = 8.0
#: The width of a letter, and that of a box's edges.
_LETTER, _EDGES = 6.4, 28.0


@dataclass
class Box:
    """A task, or the box around the tasks of a scope; ``kind`` is "task", or the kind of scope.

    ``after`` are the keys of upstream boxes in the same scope, and ``path`` is the name of the task's stages without
    indices. After the layout, ``x`` and ``y`` are its corner in the whole drawing.
    """

    key: str
    after: list[str] = field(default_factory=list)
    inner: list[Box] = field(default_factory=list)
    kind: str = "task"
    title: str = ""
    path: str = ""
    state: State | None = None
    note: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = WIDTH
    height: float = HEIGHT
    #: The height of its layer.
    room: float = 0.0
    #: The edges between the boxes inside; the bends of a long one are boxes of no height in the layers between.
    routes: list[list[Box]] = field(default_factory=list)

    @property
    def center(self) -> float:
        """The middle of its width."""
        return self.x + self.width / 2

    @property
    def label(self) -> str:
        """The part of the title that fits."""
        return shorten(self.title, int((self.width - _EDGES) / _LETTER), keep="ends")

    def all_inside(self) -> Iterator[Box]:
        """Yield all boxes inside, recursively."""
        for box in self.inner:
            yield box
            yield from box.all_inside()

    def edges(self) -> Iterator[list[Box]]:
        """Yield each edge, in all scopes: its ends, and the bends between them."""
        for group in (self, *self.all_inside()):
            yield from group.routes


def line_through(route: Iterable[Box]) -> str:
    """Return the path of an edge, with room for the tip of an arrow.

    It is vertical beside a layer's boxes and curved between layers, so it crosses no box.
    """
    at, *others = route
    path = f"M{at.center:.0f} {at.y + at.height:.0f}"
    for box in others:
        floor, end = at.y + at.room, box.y - (5 if box is others[-1] else 0)
        middle = (floor + end) / 2
        path += f"V{floor:.0f}C{at.center:.0f} {middle:.0f} {box.center:.0f} {middle:.0f} {box.center:.0f} {end:.0f}"
        at = box
    return path


def draw_graph(record: RunRecord) -> Box | None:
    """Draw the graph of the run's pipeline and return the box around it, or None if the pipeline is unknown."""
    if record.spec is None or record.spec.root.dag is None:
        return None
    root = Box("", kind="")
    boxes: dict[str, Box] = {}
    for there in walk_tasks(record.spec):
        box = boxes[there.path] = Box(there.task.name, [*there.task.depends_on])
        if there.is_stage:
            box.title, box.path = there.task.name, there.name
            box.state, box.note = summary(record.tasks.get(there.name, []))
        else:
            box.kind, box.title = _describe(there.task)
        (root if there.inside is None else boxes[there.inside.path]).inner.append(box)
    lay_out(root)
    return root


def lay_out(root: Box) -> None:
    """Compute positions of all boxes, relative to the root, and sizes of boxes around others."""
    _arrange(root)
    _move(root, 0.0, 0.0)


def _arrange(group: Box) -> None:
    """Position the boxes inside relative to the group, and compute the group's size."""
    for box in group.inner:
        if box.inner:
            _arrange(box)
    layers, group.routes = _layers(group.inner)
    widths = [sum(box.width + GAP for box in layer) - GAP for layer in layers]
    inside = max(widths, default=0.0)
    y = PADDING + (TITLE if group.kind else 0.0)
    for layer, width in zip(layers, widths, strict=True):
        x = PADDING + (inside - width) / 2
        room = max(box.height for box in layer)
        for box in layer:
            box.x, box.y, box.room = x, y, room
            x += box.width + GAP
        y += room + LAYER_GAP
    group.width, group.height = inside + 2 * PADDING, y - LAYER_GAP + PADDING


def _move(box: Box, x: float, y: float) -> None:
    box.x, box.y = box.x + x, box.y + y
    bends = {id(bend): bend for route in box.routes for bend in route[1:-1]}
    for inner in (*box.inner, *bends.values()):
        _move(inner, box.x, box.y)


def _layers(boxes: list[Box]) -> tuple[list[list[Box]], list[list[Box]]]:
    """Return the boxes in layers, each depending only on earlier ones, and the edges between them.

    A layer has the order of its neighbors. An edge has a bend in each layer that it passes. Edges from one box share
    bends.
    """
    known = {box.key: box for box in boxes}
    before = {box.key: [key for key in box.after if key in known] for box in boxes}
    depth: dict[str, int] = {}
    for key in TopologicalSorter(before).static_order():
        depth[key] = 1 + max((depth[other] for other in before[key]), default=-1)
    layers: list[list[Box]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for box in boxes:
        layers[depth[box.key]].append(box)
    bends: dict[str, list[Box]] = {key: [] for key in known}
    routes: list[list[Box]] = []
    for box in boxes:
        for key in before[box.key]:
            passed = range(depth[key] + 1, depth[box.key])
            for place in passed[len(bends[key]) :]:
                bends[key].append(Box(f"{key} in {place}", width=BEND, height=0.0))
                layers[place].append(bends[key][-1])
            routes.append([known[key], *bends[key][: len(passed)], box])
    near: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for route in routes:
        for one, other in pairwise(route):
            near[0].setdefault(other.key, []).append(one.key)
            near[1].setdefault(one.key, []).append(other.key)
    where = {box.key: (index + 0.5) / len(layer) for layer in layers for index, box in enumerate(layer)}
    for neighbors, order in zip(near, (layers, layers[::-1]), strict=True):
        for layer in order:
            centers = {
                box.key: sum(map(where.__getitem__, found)) / len(found)
                for box in layer
                if (found := neighbors.get(box.key))
            }
            layer.sort(key=lambda box: centers.get(box.key, where[box.key]))
            where |= {box.key: (index + 0.5) / len(layer) for index, box in enumerate(layer)}
    return layers, routes


def summary(stages: Iterable[StageState]) -> tuple[State | None, str]:
    """Summarize a task's stages: a common state, and a duration or counts in a few words."""
    stages = list(stages)
    if not stages:
        return None, "not reached"
    counts = Counter(stage.state for stage in stages)
    state = state_of_all(counts)
    if len(stages) == 1:
        [stage] = stages
        retries = f" ×{stage.result.starts}" if stage.result.starts > 1 else ""
        ran = f" · {duration(stage.result.duration)}" if stage.result.duration else ""
        return state, f"{stage.state}{ran}{retries}"
    if len(counts) == 1:
        return state, f"{len(stages):,} {state}"
    return state, f"{counts[state]:,} of {len(stages):,} {state}"


def _describe(task: Task) -> tuple[str, str]:
    if task.loop is not None:
        condition = f", if {_readable(task.condition)}" if task.condition else ""
        source = re.sub(rf"^{CHANNEL}|-loop-item.*$", "", task.loop.from_input or "")
        of = f" of {source}" if source else ""
        return "loop", f"for each item{of}{condition}"
    if task.condition:
        return "condition", f"if {_readable(task.condition)}"
    if task.is_group:
        return ("exit handler", "with an exit task") if task.name.startswith("exit-") else ("condition", "one of")
    return "pipeline", task.name


def _readable(condition: str) -> str:
    """Return KFP's condition in source-like form."""
    condition = re.sub(rf"inputs\.parameter_values\['(?:{CHANNEL})?([^']*)'\]", r"\1", condition)
    return re.sub(r"\b(?:int|double|string)\(([^()]*)\)", r"\1", condition)


def counts_of(states: Iterable[State]) -> Mapping[State, int]:
    """Count the stages by state, the worst state first."""
    counts = Counter(states)
    return {state: counts[state] for state in State if state in counts}
