"""Draw the packages for the docs: the purpose of each, the packages in it, and its imports.

``python -m tools.drawing`` (part of ``make goldens``) writes the drawing from the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from graphlib import TopologicalSorter
from html import escape
from textwrap import wrap

from tools.imports import PACKAGE, REPOSITORY, Source, cycle
from torchx_kfp.execution.report.graph import PADDING, Box, edges, place

DRAWING = REPOSITORY / "docs" / "architecture.svg"

#: The characters in a line, and the pixels of a character, of a line, and around the text in a box.
_LETTERS, _LETTER, _LINE, _MARGIN = 31, 7.0, 16.0, 12.0
#: Modules that all packages may use: arrows to them would say nothing.
_EVERYWHERE = {"common", "errors"}

_STYLE = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328; }
.name { font-weight: 600; font-size: 14px; }
.package { fill: #f6f8fa; stroke: #6e7781; }
.room { fill: #ddf4ff; stroke: #54aeff; }
.arrow { fill: none; stroke: #6e7781; stroke-width: 1.5; }
.inside { stroke: #54aeff; stroke-width: 1; }
"""


def draw(source: Source) -> str:
    """Return an SVG of the packages in layers: each arrow leads from a package to one that it imports.

    An arrow is left out if other arrows lead to the same box. Boxes have a light background, so that the drawing suits
    dark pages as well as light ones.
    """
    arrows = reduced(source.arrows(), without={"__main__", *_EVERYWHERE})
    rooms = {name: _rooms(source, name) for name in arrows}
    boxes = {name: _box(source, name, rooms[name]) for name in arrows}
    for name, imported in arrows.items():
        for other in imported:
            boxes[other].after = sorted([*boxes[other].after, name])
    root = Box("", 0.0, 0.0, inner=[boxes[name] for name in sorted(boxes)])
    place(root, down=True)
    parts = _arrows(root, "arrow")
    for name, box in sorted(boxes.items()):
        parts += _package(source, box, rooms[name])
    foundation = Box(", ".join(sorted(_EVERYWHERE)), root.width - 2 * PADDING, 2.0 * _LINE + _MARGIN)
    foundation.x, foundation.y = PADDING, root.height
    parts += _text_box(foundation, ["These modules are below all the others: every package may import them."])
    width, height = round(root.width), round(root.height + foundation.height + PADDING)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="The packages of {PACKAGE} and what each imports">\n<style>{_STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="#6e7781"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def reduced(arrows: Mapping[str, Iterable[str]], without: Set[str] = frozenset()) -> dict[str, set[str]]:
    """Return the arrows without those that a longer way makes unnecessary, and without some of the names."""
    kept = {name: set(others) - without for name, others in arrows.items() if name not in without}
    behind: dict[str, set[str]] = {}
    for name in TopologicalSorter(kept).static_order():
        behind[name] = {far for near in kept[name] for far in {near, *behind[near]}}
    return {name: {it for it in near if not any(it in behind[other] for other in near)} for name, near in kept.items()}


def _rooms(source: Source, package: str) -> Box:
    """Return the packages inside this one, laid out."""
    inside = {name: {*others} for name, others in source.arrows(package).items() if name in source.packages}
    inside = {name: others & inside.keys() for name, others in inside.items()}
    # A cycle, which the tests do not allow, has no layers.
    inside = reduced(inside) if cycle(inside) is None else {name: set() for name in inside}
    boxes = {}
    for name in sorted(inside):
        boxes[name] = _box(source, name, Box("", 0.0, 0.0))
    for name, others in inside.items():
        for other in others:
            boxes[other].after = sorted([*boxes[other].after, name])
    root = Box("", 0.0, 0.0, inner=list(boxes.values()))
    if boxes:
        place(root, down=True)
    return root


def _said(source: Source, name: str, rooms: Box) -> list[str]:
    """Return the purpose of a module or package: the first line of its docstring."""
    letters = max(_LETTERS, int((rooms.width - 2 * PADDING) / _LETTER))
    return wrap(source.docstrings[name].partition("\n")[0].replace("``", ""), letters)


def _box(source: Source, name: str, rooms: Box) -> Box:
    lines = _said(source, name, rooms)
    width = max(_LETTER * max(map(len, lines)) + 2 * _MARGIN, rooms.width)
    return Box(name, width, (len(lines) + 1) * _LINE + 1.5 * _MARGIN + rooms.height)


def _package(source: Source, box: Box, rooms: Box) -> list[str]:
    parts = _text_box(box, _said(source, box.key, rooms))
    left, top = box.x + (box.width - rooms.width) / 2, box.y + box.height - rooms.height
    bends = (bend for way in rooms.bends.values() for bend in way)
    for each in (*rooms.inner, *bends):
        each.x, each.y = each.x + left, each.y + top
    parts += _arrows(rooms, "arrow inside")
    for room in rooms.inner:
        parts += _text_box(room, _said(source, room.key, Box("", 0.0, 0.0)), "room")
    return parts


def _text_box(box: Box, lines: list[str], kind: str = "package") -> list[str]:
    x, y = box.x + _MARGIN, box.y + _LINE + 4
    return [
        f'<rect class="{kind}" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="6"/>',
        f'<text class="name" x="{x:.0f}" y="{y:.0f}">{escape(box.key.rpartition(".")[2])}</text>',
        *(
            f'<text x="{x:.0f}" y="{y + number * _LINE + 2:.0f}">{escape(line)}</text>'
            for number, line in enumerate(lines, 1)
        ),
    ]


def _arrows(root: Box, kind: str) -> list[str]:
    """Draw the arrows between the boxes in a box. Each leads down, past larger boxes next to the one it starts in."""
    floors: dict[int, float] = {}
    for box in root.inner:
        floors[box.layer] = max(floors.get(box.layer, 0.0), box.y + box.height)
    return [_arrow(start, [*bends, end], floors, kind) for start, bends, end in edges(root)]


def _arrow(start: Box, way: list[Box], floors: Mapping[int, float], kind: str) -> str:
    """Draw a curve from a box through the places that are kept free for it.

    Args:
        start: the box in which it begins.
        way: the places, and the box that it leads to.
        floors: the lower end of each layer.
        kind: the class of the curve.
    """
    path = ""
    for box in way:
        x1, y1 = start.x + start.width / 2, start.y + start.height
        x2, y2 = box.x + box.width / 2, box.y
        floor = floors[start.layer] if not start.is_bend else y1
        middle = (floor + y2) / 2
        path += f"{'L' if path else 'M'}{x1:.0f} {y1:.0f}"
        path += f"V{floor:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
        start = box
    return f'<path class="{kind}" d="{path}" marker-end="url(#tip)"/>'


def main() -> None:
    """Write the drawing."""
    DRAWING.write_text(draw(Source(REPOSITORY / PACKAGE)), encoding="utf-8")


if __name__ == "__main__":
    main()
