"""Where boxes of a graph and trials of a search are drawn, for any graph and any search."""

import math
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.searches import ACT, LAYERS, LR, tell
from torchx_kfp.execution.report import plots
from torchx_kfp.execution.report.graph import Box, lay_out
from torchx_kfp.execution.report.trials import draw_trials, number_trials
from torchx_kfp.tracking.searches import parse_search


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
    for source, target in root.edges():
        assert source.y + source.height < target.y


@given(boxes())
@settings(max_examples=80)
def test_no_boxes_overlap_and_edges_lead_down(inner: list[Box]) -> None:
    root = Box("", inner=inner)
    lay_out(root)
    check_places(root)


def test_layers_of_very_many_boxes_are_wrapped() -> None:
    inner = [Box(f"t{number}") for number in range(500)]
    root = Box("", inner=[*inner, Box("last", [box.key for box in inner])])
    lay_out(root)
    check_places(root)
    assert root.width < 1250


def inside(places: Iterable[tuple[float, float]], left: float, top: float, right: float, bottom: float) -> bool:
    return all(left <= x <= right and top <= y <= bottom for x, y in places)


ANYTHING = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]))
SCALARS = ANYTHING.filter(lambda value: type(value) in (int, float, bool, str))
VALUES = st.dictionaries(st.sampled_from("abcd"), SCALARS | st.floats(min_value=1e-4, max_value=1.0))


@given(
    st.lists(
        st.tuples(st.floats(), st.floats(), VALUES, st.booleans()),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([{"y": "minimize"}, {"y": "maximize", "z": "minimize"}]),
    st.sampled_from([LR, {**LR, "bounds": [3, 4]}, {"type": "choice", "values": []}, {"bounds": [0, 1e308]}]),
)
@settings(max_examples=150)
def test_trials_are_inside_of_their_drawings_whatever_they_are(
    trials: list[tuple[float, float, dict[str, Any], bool]], objectives: dict[str, str], odd: dict[str, Any]
) -> None:
    parameters = {"a": LR, "b": LAYERS, "c": ACT, "d": odd}
    told = [(values, None if failed else {"y": y, "z": z}) for y, z, values, failed in trials]
    search = parse_search(tell("s", told, parameters=parameters, objectives=objectives))
    assert search is not None
    shown = number_trials(search, [""] * len(told))
    left, right = plots.LEFT, plots.WIDTH - plots.RIGHT
    told_well = [(y, z) for y, z, _, failed in trials if not failed]
    finite = [math.isfinite(y) and (len(objectives) == 1 or math.isfinite(z)) for y, z in told_well]
    for figure in draw_trials(search, shown):
        for plot in figure:
            points = [(mark.x, mark.y) for mark in plot.points]
            assert inside(points, left, plots.TOP, right, plots.HEIGHT - plots.BOTTOM)
            assert (plot.over != "trial") or len(points) == len(trials)
            assert (plot.over != "y") or len(points) == sum(finite)
            assert all(math.isfinite(where) for ticks in (plot.x_ticks, plot.y_ticks) for where, _ in ticks)


def test_the_best_so_far_and_the_front() -> None:
    losses = [0.5, 0.75, None, 0.25, 0.375]
    trials = [({"a": 0.1}, None if it is None else {"y": it, "z": 1 / it}) for it in losses]
    one = parse_search(tell("s", trials, parameters={"a": LR}, objectives={"y": "minimize"}, each=2, rounds=3))
    assert one is not None
    (figure,) = draw_trials(one, number_trials(one, [""] * 5))
    plot = figure[0]
    assert [mark.kind for mark in plot.points] == ["", "", "", "best", "failed"]
    xs = {mark.shown.number: mark.x for mark in plot.points}
    heights = {mark.shown.number: mark.y for mark in plot.points}
    assert re.findall(r"[HV][\d.]+", plot.line) == [
        *(f"H{xs[2]}", f"V{heights[1]}", f"H{xs[4]}", f"V{heights[4]}", f"H{xs[5]}", f"V{heights[4]}", f"H{xs[5]}")
    ]
    assert plot.note == "best 0.25 in trial 4 · 1 trial without a value"
    assert plot.borders == [pytest.approx((xs[2] + xs[3]) / 2, abs=0.1), pytest.approx((xs[4] + xs[5]) / 2, abs=0.1)]
    two = parse_search(tell("s", trials, parameters={"a": LR}, objectives={"y": "minimize", "z": "minimize"}))
    assert two is not None
    front, *others = draw_trials(two, number_trials(two, [""] * 5))
    assert [(front[0].what, front[0].over), *(it[0].what for it in others)] == [("z", "y"), "y", "z"]
    assert front[0].line.count("H") == 3
    assert front[0].note == "4 trials on the Pareto front, of 4"
