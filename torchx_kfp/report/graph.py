"""Draw the pipeline's graph: tasks with their states, inside the boxes of loops, conditions and nested pipelines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchx_kfp.pipeline.spec import Pipeline, Task
from torchx_kfp.pipeline.walk import Place, walk
from torchx_kfp.report.layout import Box, edges, place
from torchx_kfp.report.model import RunView, StageView
from torchx_kfp.runs.vocabulary import State, state_of_all
from torchx_kfp.text import duration, shorten

#: The width and height of a box, and how many letters fit into it: usually, and in a graph with very many tasks.
_SIZE, _COMPACT = (190.0, 46.0, 23), (124.0, 26.0, 15)
_MANY = 80
#: A wider graph is turned, if that makes it narrower.
_PAGE = 1150.0


@dataclass(frozen=True)
class Node:
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
class Line:
    """An edge as an SVG path, and the numbers of the nodes at its ends; None for a group."""

    path: str
    source: int | None
    target: int | None


@dataclass(frozen=True)
class Graph:
    """The drawing, in pixels. If it is ``compact``, boxes do not have room for notes."""

    nodes: list[Node]
    groups: list[Group]
    lines: list[Line]
    width: float
    height: float
    box: tuple[float, float]
    compact: bool


def draw_graph(run: RunView) -> Graph | None:
    """Draw the graph of the run's pipeline; return None if the pipeline is not known."""
    if run.spec is None or run.spec.root.dag is None:
        return None
    stages: dict[str, list[StageView]] = {}
    for stage in run.stages:
        stages.setdefault(stage.path, []).append(stage)
    sketch = _Sketch(run.spec)
    width, height, letters = sketch.size
    root = min([sketch.placed(down) for down in (True, False)], key=_badness)
    nodes: list[Node] = []
    groups: list[Group] = []
    numbers: dict[int, int] = {}
    for box in root.all_inside():
        there = sketch.places[id(box)]
        if there.is_stage:
            state, note = summary(stages.get(there.name, []))
            numbers[id(box)] = len(nodes)
            nodes.append(Node(there.name, shorten(there.task.name, letters, keep="ends"), state, note, box.x, box.y))
        else:
            kind, label = _describe(there.task)
            most = int((box.width - 16) / 6.2)
            groups.append(Group(shorten(label, most, keep="ends"), label, kind, box.x, box.y, box.width, box.height))
    down = sketch.down[id(root)]
    lines = [
        Line(_line(source, bends, target, down), numbers.get(id(source)), numbers.get(id(target)))
        for source, bends, target in edges(root)
    ]
    return Graph(nodes, groups, lines, root.width, root.height, (width, height), sketch.size is _COMPACT)


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


def _badness(root: Box) -> tuple[bool, float]:
    """Return whether the graph is wider than a page, and its size; smaller is better."""
    too_wide = root.width > _PAGE
    return too_wide, root.width if too_wide else root.width * root.height


class _Sketch:
    """The pipeline's boxes in both directions, and the place in the pipeline that each of them shows."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._walk = list(walk(pipeline))
        self.places: dict[int, Place] = {}
        self.down: dict[int, bool] = {}
        self.size = _COMPACT if len(self._walk) > _MANY else _SIZE

    def placed(self, down: bool) -> Box:
        root = Box("", 0.0, 0.0)
        boxes: dict[str, Box] = {}
        for there in self._walk:
            box = boxes[there.path] = Box(there.task.name, *self.size[:2], there.task.depends_on)
            outer = root if there.inside is None else boxes[there.inside.path]
            outer.inner.append(box)
            self.places[id(box)] = there
        self.down[id(root)] = down
        place(root, down)
        return root


def _describe(task: Task) -> tuple[str, str]:
    if task.loop is not None:
        condition = f", if {_readable(task.condition)}" if task.condition else ""
        source = re.sub(r"^pipelinechannel--|-loop-item.*$", "", task.loop.from_input or "")
        of = f" of {source}" if source else ""
        return "loop", f"for each item{of}{condition}"
    if task.condition:
        return "condition", f"if {_readable(task.condition)}"
    if task.is_group:
        return ("exit handler", "with an exit task") if task.name.startswith("exit-") else ("condition", "one of")
    return "pipeline", task.name


def _readable(condition: str) -> str:
    """Return KFP's condition much as its author wrote it."""
    condition = re.sub(r"inputs\.parameter_values\['(?:pipelinechannel--)?([^']*)'\]", r"\1", condition)
    return re.sub(r"\b(?:int|double|string)\(([^()]*)\)", r"\1", condition)


def _line(source: Box, bends: list[Box], target: Box, down: bool) -> str:
    """Draw a curve through the bends that leaves the source and reaches the target in the graph's direction."""
    x1, y1 = _exit(source, down)
    path = [f"M{x1:.0f} {y1:.0f}"]
    for box in (*bends, target):
        x2, y2 = _entry(box, down)
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


def _entry(box: Box, down: bool) -> tuple[float, float]:
    tip = 0 if box.is_bend else 5  # of the arrow
    return (box.x + box.width / 2, box.y - tip) if down else (box.x - tip, box.y + box.height / 2)


def counts_of(states: Iterable[State]) -> Mapping[State, int]:
    """Count the stages in each state, the worst state first."""
    counts = Counter(states)
    return {state: counts[state] for state in State if state in counts}
