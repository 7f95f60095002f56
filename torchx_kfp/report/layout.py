"""Lay out a graph of nested boxes in layers, so that every edge leads forward.

In a compiled pipeline, edges connect only tasks of the same scope. So each box that contains others is laid out first,
and then placed as a box of that size in the scope around it. As in Sugiyama's method, the boxes of a layer are in the
order of their neighbors' centers, and an edge over several layers keeps a place free in each. A layer with very many
boxes is wrapped into several rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

#: Gaps between the boxes of a layer and between layers; the padding and the title of a box that contains others.
GAP, LAYER_GAP, PADDING, TITLE = 16.0, 40.0, 14.0, 26.0
#: The limit at which a layer is wrapped: the width of a page if edges lead down, otherwise the height of a window.
_BREADTH = {True: 1120.0, False: 900.0}
_SWEEPS = 4
#: If there are more long edges, they do not keep places free, which would outnumber the boxes.
_MOST_BENDS = 150


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
        depth = max(_along(box, down) for box in layer)
        for box in layer:
            if box.is_bend:
                box.width, box.height = (0.0, depth) if down else (depth, 0.0)
            # Boxes of a layer are aligned where edges reach them.
            box.layer = number
            box.x, box.y = (across, along) if down else (along, across)
            across += _across(box, down) + GAP
        wraps = number + 1 < len(layers) and _is_one_layer(layer, layers[number + 1])
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


def _along(box: Box, down: bool) -> float:
    return box.height if down else box.width


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
            layer.sort(key=lambda box: _centre(box, neighbours[box.key], where))
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


def _centre(box: Box, neighbours: Sequence[str], where: dict[str, float]) -> float:
    return sum(where[key] for key in neighbours) / len(neighbours) if neighbours else where[box.key]


def _wrapped(layer: list[Box], down: bool) -> list[list[Box]]:
    """Split the layer into rows of about the same length."""
    breadth = sum(_across(box, down) + GAP for box in layer)
    rows = min(math.ceil(breadth / _BREADTH[down]), len(layer))
    size = math.ceil(len(layer) / rows)
    return [layer[start : start + size] for start in range(0, len(layer), size)]


def _is_one_layer(row: Sequence[Box], following: Sequence[Box]) -> bool:
    keys = {box.key for box in row}
    return not any(key in keys for box in following for key in box.after)
