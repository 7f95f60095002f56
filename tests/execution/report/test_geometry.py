"""Where boxes of a graph and points of a figure are drawn, for any graph and any numbers."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_kfp.execution.report.figures import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_front, draw_results
from torchx_kfp.execution.report.graph import Box, lay_out, line_through
from torchx_kfp.execution.report.model import Hyperlink, Row
from torchx_kfp.local import State


@st.composite
def boxes(draw: st.DrawFn, depth: int = 0) -> list[Box]:
    count = draw(st.integers(1, 12 if depth == 0 else 4))
    made = []
    for number in range(count):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        inner = draw(boxes(depth + 1)) if depth < 2 and draw(st.integers(0, 4)) == 0 else []
        made.append(Box(f"t{number}", [f"t{index}" for index in sorted(after)], inner, "loop" if inner else "task"))
    return draw(st.permutations(made))


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def check_places(root: Box) -> None:
    for group in (root, *root.all_inside()):
        for number, box in enumerate(group.inner):
            assert not any(overlap(box, other) for other in group.inner[number + 1 :])
            assert group.x <= box.x
            assert box.x + box.width <= group.x + group.width + 1e-6
            assert group.y <= box.y
            assert box.y + box.height <= group.y + group.height + 1e-6
    for group in (root, *root.all_inside()):
        assert len(group.routes) == sum(
            key in {box.key for box in group.inner} for box in group.inner for key in box.after
        )
        for source, *bends, target in group.routes:
            assert source.y + source.height < target.y
            for x, y in along(line_through([source, *bends, target])):
                assert not any(
                    box.x < x < box.x + box.width and box.y + 1 < y < box.y + box.height - 1 for box in group.inner
                ), (x, y)


def along(path: str) -> Iterator[tuple[float, float]]:
    """Yield points of an edge, 20 for each of its parts."""
    start, *parts = re.findall(r"[MVC][-\d. ]+", path)
    x, y = map(float, start[1:].split())
    for part in parts:
        numbers = [float(number) for number in part[1:].split()]
        (x1, y1, x2, y2, x3, y3) = numbers if part[0] == "C" else (x, y, x, numbers[0], x, numbers[0])
        for step in range(21):
            t = step / 20
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
            yield (
                sum(weight * each for weight, each in zip(weights, (x, x1, x2, x3), strict=True)),
                sum(weight * each for weight, each in zip(weights, (y, y1, y2, y3), strict=True)),
            )
        x, y = x3, y3


@given(boxes())
@settings(max_examples=80)
def test_no_boxes_overlap_and_edges_lead_down_past_other_boxes(inner: list[Box]) -> None:
    root = Box("", inner=inner)
    lay_out(root)
    check_places(root)


def test_chains_do_not_cross() -> None:
    inner = [Box("a"), Box("b"), Box("d", ["b"]), Box("c", ["a"]), Box("f", ["d"]), Box("e", ["c"])]
    lay_out(Box("", inner=inner))
    places = {box.key: box.x for box in inner}
    assert places["a"] == places["c"] == places["e"] < places["b"] == places["d"] == places["f"]


ANYTHING = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]))
SCALARS = ANYTHING | st.floats(min_value=1e-4, max_value=1.0)
VALUES = st.dictionaries(st.sampled_from("abcd"), SCALARS)


def row(number: int, inputs: Mapping[str, Any], results: Mapping[str, Any], *, is_best: bool = False) -> Row:
    link = Hyperlink("", f"#s{number}")
    return Row(f"row {number}", number, "", link, State.SUCCEEDED, inputs, results, is_best=is_best)


def places(path: str) -> list[tuple[float, float]]:
    """Return the points of a path."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


@given(st.lists(st.tuples(SCALARS, SCALARS, VALUES, st.booleans()), min_size=1, max_size=20))
@settings(max_examples=150)
def test_rows_are_inside_of_their_figures_whatever_they_are(given: list[tuple[Any, Any, dict[str, Any], bool]]) -> None:
    rows = [row(number, inputs, {"y": y, "z": z}, is_best=best) for number, (y, z, inputs, best) in enumerate(given)]
    measured = [[type(it) in (int, float) and math.isfinite(it) for it in (y, z)] for y, z, *_ in given]
    drawn = [*draw_results(rows, "yz", "trial", {"y": min}), *draw_front(rows, {"y": 1, "z": -1})]
    for figure in (each for first in drawn for each in (first, *first.others)):
        found = [place for stroke in figure.strokes for place in places(stroke.path)]
        assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in found)
        dots = [stroke for stroke in figure.strokes if stroke.kind.startswith("dot")]
        if (figure.what, figure.over) == ("y", "trial"):
            assert len(dots) == sum(y for y, _ in measured)
        if (figure.what, figure.over) == ("z", "y"):
            assert len(dots) == sum(y and z for y, z in measured)
        assert all(math.isfinite(where) for ticks in (figure.x_ticks, figure.y_ticks) for where, _ in ticks)


def test_the_best_so_far_and_the_front() -> None:
    losses = [0.5, 0.75, None, 0.25, 0.375]
    results = [{} if it is None else {"y": it, "z": 1 / it} for it in losses]
    rows = [row(number, {}, it, is_best=number == 4) for number, it in enumerate(results, 1)]
    [figure] = draw_results(rows, ["y"], "trial", {"y": min})
    line, *dots = figure.strokes
    assert [dot.kind for dot in dots] == ["dot", "dot", "dot", "dot best"], "the best one is on top"
    at = {dot.href: places(dot.path)[0] for dot in dots}
    corners = [at["#s1"], (at["#s2"][0], at["#s1"][1]), at["#s4"], (at["#s5"][0], at["#s4"][1])]
    assert [place for place in places(line.path) if place in corners] == [
        *corners[:2],
        corners[1],
        *corners[2:],
        corners[3],
    ]
    assert figure.note == "min 0.25 (row 4) · max 0.75 (row 2) · 1 trial without a finite number"
    best = [row(number, {}, it, is_best=True) for number, it in enumerate(results, 1)]
    [front] = draw_front(best, {"y": 1, "z": 1})
    assert (front.what, front.over, front.note) == ("z", "y", "4 trials on the Pareto front, of 4")
    assert len(places(front.strokes[0].path)) == 7


def test_texts_that_repeat_are_an_axis_and_others_are_not() -> None:
    rows = [row(n, {"act": "ab"[n % 2], "id": f"x{n}", "data": "d"}, {"y": n}) for n in range(4)]
    [figure] = draw_results(rows, ["y"], "iteration", {})
    assert [figure.over, *(it.over for it in figure.others)] == ["act", "iteration"]
    assert [label for _, label in figure.x_ticks] == ["a", "b"]


def test_very_many_points_are_one_path_under_the_best() -> None:
    rows = [row(n, {}, {"y": n % 7}, is_best=n == 300) for n in range(500)]
    [figure] = draw_results(rows, ["y"], "iteration", {})
    assert [(stroke.kind, stroke.path.count("h0")) for stroke in figure.strokes] == [("dots", 499), ("dot best", 1)]
