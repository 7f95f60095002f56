"""Draw the pipeline's graph: tasks with their states, inside the boxes of loops, conditions and nested pipelines.

The boxes are laid out in layers, so that every edge leads forward. In a compiled pipeline, edges connect only tasks of
the same scope. So each box that contains others is laid out first, and then placed as a box of that size in the scope
around it. As in Sugiyama's method, the boxes of a layer are in the order of their neighbors' centers, and an edge over
several layers keeps a place free in each. A layer with very many boxes is wrapped into several rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from torchx_kfp.common.text import duration, shorten
from torchx_kfp.execution.pipeline.spec import CHANNEL, Task
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk, without_indices
from torchx_kfp.execution.report.model import RunView, StageView
from torchx_kfp.execution.runs.resume_record import Continuation, continuation_of
from torchx_kfp.execution.runs.vocabulary import State, state_of_all

#: Gaps between the boxes of a layer and between layers; the padding and the title of a box that contains others.
GAP, LAYER_GAP, PADDING, TITLE = 16.0, 40.0, 14.0, 26.0
#: The limit at which a layer is wrapped: the width of a page if edges lead down, otherwise the height of a window.
_BREADTH = {True: 1120.0, False: 900.0}
_SWEEPS = 4
#: If there are more long edges, they do not keep places free, which would outnumber the boxes.
_MOST_BENDS = 150
#: The width and height of a box, and how many letters fit into it: usually, and in a graph with very many tasks.
_SIZE, _COMPACT = (190.0, 46.0, 23), (124.0, 26.0, 15)
_MANY = 80
#: A wider graph is turned, if that makes it narrower.
_PAGE = 1150.0


@dataclass
class Box:
    """A node or a group of nodes. Once laid out, ``x`` and ``y`` are its corner in the whole drawing."""

    key: str
    width: float
    height: float
    after: Sequence[str] = ()
    inner: list[Box] = field(default_factory=list)
    #: The places through which the edges between the boxes inside pass.
    bends: dict[tuple[str, str], list[Box]] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0
    layer: int = 0
    is_bend: bool = False

    def all_inside(self) -> Iterable[Box]:
        """Yield the boxes inside, and the boxes in those."""
        for box in self.inner:
            yield box
            yield from box.all_inside()


def place(root: Box, down: bool) -> None:
    """Give every box its place, and each box that contains others its size.

    Args:
        root: the box that contains all others; its own place is 0, 0.
        down: whether edges lead down instead of to the right.
    """
    _measure(root, down)
    # The root has no title.
    root.height -= TITLE
    for box in root.inner:
        box.y -= TITLE
    for bends in root.bends.values():
        for bend in bends:
            bend.y -= TITLE
    _move(root, 0.0, 0.0)


def edges(root: Box) -> list[tuple[Box, list[Box], Box]]:
    """Return all edges: the source, the places that it passes through, and the target."""
    found = []
    for group in (root, *root.all_inside()):
        boxes = {box.key: box for box in group.inner}
        for box in group.inner:
            found += [(boxes[key], group.bends.get((key, box.key), []), box) for key in box.after if key in boxes]
    return found


def _measure(group: Box, down: bool) -> None:
    for box in group.inner:
        if box.inner:
            _measure(box, down)
    layers = [row for layer in _ordered(group) for row in _wrapped(layer, down)]
    breadth = max((sum(_across(box, down) + GAP for box in layer) - GAP for layer in layers), default=0.0)
    along = 0.0
    for number, layer in enumerate(layers):
        across = (breadth - sum(_across(box, down) + GAP for box in layer) + GAP) / 2
        depth = max(box.height if down else box.width for box in layer)
        for box in layer:
            if box.is_bend:
                box.width, box.height = (0.0, depth) if down else (depth, 0.0)
            # Boxes of a layer are aligned where edges reach them.
            box.layer = number
            box.x, box.y = (across, along) if down else (along, across)
            across += _across(box, down) + GAP
        keys = {box.key for box in layer}
        following = layers[number + 1] if number + 1 < len(layers) else []
        # Rows of a wrapped layer are close: no edge is between them.
        wraps = bool(following) and not any(key in keys for box in following for key in box.after)
        along += depth + (GAP if wraps else LAYER_GAP)
    along = max(0.0, along - LAYER_GAP)
    width, height = (breadth, along) if down else (along, breadth)
    for box in (box for layer in layers for box in layer):
        box.x += PADDING + max(0.0, group.width - width - 2 * PADDING) / 2
        box.y += TITLE + PADDING
    group.width = max(group.width, width + 2 * PADDING)
    group.height = height + TITLE + 2 * PADDING


def _move(box: Box, x: float, y: float) -> None:
    box.x += x
    box.y += y
    for inner in (*box.inner, *(bend for bends in box.bends.values() for bend in bends)):
        _move(inner, box.x, box.y)


def _across(box: Box, down: bool) -> float:
    return box.width if down else box.height


def _ordered(group: Box) -> list[list[Box]]:
    """Return the boxes inside, and the bends of edges, in layers; each layer depends on earlier ones only."""
    by_key = {box.key: box for box in group.inner}
    before = {box.key: [key for key in box.after if key in by_key] for box in group.inner}
    depth: dict[str, int] = {}
    for key in TopologicalSorter(before).static_order():
        depth[key] = 1 + max((depth[other] for other in before[key]), default=-1)
    layers: list[list[Box]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for box in group.inner:
        layers[depth[box.key]].append(box)
    _bend(group, before, depth, layers)
    behind: dict[str, list[str]] = {key: [] for key in before}
    for key, others in before.items():
        for other in others:
            behind[other].append(key)
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        neighbours = before if downward else behind
        where = {box.key: _share(index, layer) for layer in layers for index, box in enumerate(layer)}
        for layer in layers if downward else reversed(layers):
            centres = {}
            for box in layer:
                near = neighbours[box.key] or [box.key]
                centres[box.key] = sum(where[key] for key in near) / len(near)
            layer.sort(key=lambda box: centres[box.key])
            where.update({box.key: _share(index, layer) for index, box in enumerate(layer)})
    return layers


def _bend(group: Box, before: dict[str, list[str]], depth: dict[str, int], layers: list[list[Box]]) -> None:
    """Keep a place free for each edge in each layer that it passes; the places of an edge are neighbors."""
    long = [(key, box.key) for box in group.inner for key in before[box.key] if depth[box.key] - depth[key] > 1]
    group.bends = {}
    for start, end in long if len(long) <= _MOST_BENDS else ():
        bends = group.bends[start, end] = []
        behind = start
        for number in range(depth[start] + 1, depth[end]):
            bend = Box(f"{start}\0{end}\0{number}", 0.0, 0.0, is_bend=True)
            layers[number].append(bend)
            bends.append(bend)
            before[bend.key] = [behind]
            behind = bend.key
        before[end] = [behind if key == start else key for key in before[end]]


def _share(index: int, layer: Sequence[Box]) -> float:
    return (index + 0.5) / len(layer)


def _wrapped(layer: list[Box], down: bool) -> list[list[Box]]:
    """Split the layer into rows of about the same length."""
    breadth = sum(_across(box, down) + GAP for box in layer)
    rows = min(math.ceil(breadth / _BREADTH[down]), len(layer))
    size = math.ceil(len(layer) / rows)
    return [layer[start : start + size] for start in range(0, len(layer), size)]


@dataclass(frozen=True)
class TaskNode:
    """A task. ``path`` is the name of its stages without indices; ``state`` is None if it is not known."""

    path: str
    label: str
    state: State | None
    note: str
    x: float
    y: float


@dataclass(frozen=True)
class Group:
    """The box of a loop, a condition's branch or a nested pipeline, around its tasks."""

    label: str
    title: str
    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Graph:
    """The drawing, in pixels. If it is ``compact``, boxes do not have room for notes.

    An edge is an SVG path, and the numbers of the nodes at its ends; None for a group.
    """

    nodes: list[TaskNode]
    groups: list[Group]
    edges: list[tuple[str, int | None, int | None]]
    width: float
    height: float
    box: tuple[float, float]
    compact: bool


def draw_graph(run: RunView) -> Graph | None:
    """Draw the graph of the run's pipeline; return None if the pipeline is not known."""
    if run.spec is None or run.spec.root.dag is None:
        return None
    tasks = list(walk(run.spec))
    before = continuation_of(run.spec.description) or Continuation("")
    kept = dict.fromkeys(without_indices(end.name) for end in before.ends)
    size = _COMPACT if len(tasks) > _MANY else _SIZE
    width, height, letters = size
    after = {name: before.after.get(name, ()) for name in kept}
    drawings = (_lay_out(tasks, after, before.after, down, width, height) for down in (True, False))
    down, root, boxes = min(drawings, key=_badness)
    nodes: list[TaskNode] = []
    groups: list[Group] = []
    numbers: dict[int, int] = {}
    for name in kept:
        # The smaller pipeline of a resumed run does not have the task.
        state, note = summary(run.tasks.get(name, []))
        numbers[id(boxes[_kept(name)])] = len(nodes)
        label = shorten(name, letters, keep="ends")
        nodes.append(TaskNode(name, label, state, note, boxes[_kept(name)].x, boxes[_kept(name)].y))
    for there in tasks:
        box = boxes[there.path]
        if there.is_stage:
            state, note = summary(run.tasks.get(there.name, []))
            numbers[id(box)] = len(nodes)
            label = shorten(there.task.name, letters, keep="ends")
            nodes.append(TaskNode(there.name, label, state, note, box.x, box.y))
        else:
            kind, label = _describe(there.task)
            most = int((box.width - 16) / 6.2)
            groups.append(Group(shorten(label, most, keep="ends"), label, kind, box.x, box.y, box.width, box.height))
    lines = [
        (_line(source, bends, target, down), numbers.get(id(source)), numbers.get(id(target)))
        for source, bends, target in edges(root)
    ]
    return Graph(nodes, groups, lines, root.width, root.height, (width, height), size is _COMPACT)


def summary(stages: Iterable[StageView]) -> tuple[State | None, str]:
    """Summarize a task's stages: their common state, and a duration or counts in a few words."""
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


def _kept(name: str) -> str:
    """Return the key of a box for a stage that a resumed run has kept: no task has such a path."""
    return f"kept {name}"


def _lay_out(
    tasks: Iterable[ScopedTask],
    kept: Mapping[str, Sequence[str]],
    after: Mapping[str, Sequence[str]],
    down: bool,
    width: float,
    height: float,
) -> tuple[bool, Box, Mapping[str, Box]]:
    """Return the direction, the box around all tasks, and the boxes of the tasks by their paths.

    ``kept`` are stages that a resumed run has kept, and ``after`` those of them that others follow.
    """
    root = Box("", 0.0, 0.0)
    boxes: dict[str, Box] = {}
    for name, before in kept.items():
        boxes[_kept(name)] = Box(_kept(name), width, height, [_kept(one) for one in before if one in kept])
        root.inner.append(boxes[_kept(name)])
    for there in tasks:
        box = boxes[there.path] = Box(there.task.name, width, height, there.task.depends_on)
        (root if there.inside is None else boxes[there.inside.path]).inner.append(box)
        if there.is_stage and there.name in after:
            outer = there
            while outer.inside is not None:
                outer = outer.inside
            boxes[outer.path].after = [*boxes[outer.path].after, *map(_kept, after[there.name])]
    place(root, down)
    return down, root, boxes


def _badness(drawing: tuple[bool, Box, Mapping[str, Box]]) -> tuple[bool, float]:
    """Return whether the graph is wider than a page, and its size; smaller is better."""
    root = drawing[1]
    too_wide = root.width > _PAGE
    return too_wide, root.width if too_wide else root.width * root.height


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
    """Return KFP's condition much as its author wrote it."""
    condition = re.sub(rf"inputs\.parameter_values\['(?:{CHANNEL})?([^']*)'\]", r"\1", condition)
    return re.sub(r"\b(?:int|double|string)\(([^()]*)\)", r"\1", condition)


def _line(source: Box, bends: list[Box], target: Box, down: bool) -> str:
    """Draw a curve through the bends that leaves the source and reaches the target in the graph's direction."""
    x1, y1 = _exit(source, down)
    path = [f"M{x1:.0f} {y1:.0f}"]
    for box in (*bends, target):
        tip = 0 if box.is_bend else 5  # of the arrow
        x2, y2 = (box.x + box.width / 2, box.y - tip) if down else (box.x - tip, box.y + box.height / 2)
        if down:
            middle = (y1 + y2) / 2
            path.append(f"C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}")
        else:
            middle = (x1 + x2) / 2
            path.append(f"C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}")
        if box is not target:
            x1, y1 = _exit(box, down)
            path.append(f"L{x1:.0f} {y1:.0f}")
    return "".join(path)


def _exit(box: Box, down: bool) -> tuple[float, float]:
    return (box.x + box.width / 2, box.y + box.height) if down else (box.x + box.width, box.y + box.height / 2)


def counts_of(states: Iterable[State]) -> Mapping[State, int]:
    """Count the stages in each state, the worst state first."""
    counts = Counter(states)
    return {state: counts[state] for state in State if state in counts}
