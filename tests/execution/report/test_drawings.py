"""The layout of any graph, and plots of any numbers."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kfp import compiler, dsl

from tests.execution.local.components import shell, shell_out, write
from tests.execution.local.resuming import Runs, everything
from tests.execution.report.runs import many_stages, play
from torchx_kfp.execution.report import read_model
from torchx_kfp.execution.report.formats import text
from torchx_kfp.execution.report.graph import Box, draw_graph, edges, place
from torchx_kfp.execution.report.model import StageView
from torchx_kfp.execution.report.page import style_sheet
from torchx_kfp.execution.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_plots
from torchx_kfp.local import StageResult, State


@st.composite
def boxes(draw: st.DrawFn, depth: int = 0) -> list[Box]:
    count = draw(st.integers(1, 12 if depth == 0 else 4))
    made = []
    for number in range(count):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        inner = draw(boxes(depth + 1)) if depth < 2 and draw(st.integers(0, 4)) == 0 else []
        made.append(Box(f"t{number}", 100.0, 40.0, [f"t{index}" for index in sorted(after)], inner))
    return draw(st.permutations(made))


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def check_places(root: Box, down: bool) -> None:
    for group in (root, *root.all_inside()):
        for number, box in enumerate(group.inner):
            assert not any(overlap(box, other) for other in group.inner[number + 1 :])
            assert group.x <= box.x
            assert box.x + box.width <= group.x + group.width + 1e-6
            assert group.y <= box.y
            assert box.y + box.height <= group.y + group.height + 1e-6
    for source, bends, target in edges(root):
        passed = [source, *bends, target]
        for one, other in pairwise(passed):
            end, start = (one.y + one.height, other.y) if down else (one.x + one.width, other.x)
            assert end < start


@given(boxes(), st.booleans())
@settings(max_examples=80)
def test_no_boxes_overlap_and_edges_lead_forward(inner: list[Box], down: bool) -> None:
    root = Box("", 0.0, 0.0, inner=inner)
    place(root, down)
    check_places(root, down)


@pytest.mark.parametrize("down", [True, False])
def test_layers_of_very_many_boxes_are_wrapped(down: bool) -> None:
    inner = [Box(f"t{number}", 100.0, 40.0) for number in range(500)]
    inner += [Box("last", 100.0, 40.0, [box.key for box in inner])]
    root = Box("", 0.0, 0.0, inner=inner)
    place(root, down)
    check_places(root, down)
    assert (root.width if down else root.height) < 1250


def test_the_graph_has_every_task_with_its_state_and_boxes_around_scopes(tmp_path: Path) -> None:
    @dsl.pipeline(name="inner")
    def inner():
        shell(script="true")

    @dsl.pipeline(name="whole")
    def whole(items: list, wanted: str = "yes"):
        first = shell_out(script="true")
        nested = inner().after(first)
        with dsl.ParallelFor(items) as item:
            write(x=item).after(nested)
        with dsl.If(first.outputs["out"] == wanted):
            shell(script="true")

    compiler.Compiler().compile(whole, str(tmp_path / "pipeline.yaml"))
    play(
        tmp_path,
        ["shell-out", "inner/shell", "write[0]", "write[1]"],
        state=lambda n: State.FAILED if n == 3 else State.SUCCEEDED,
    )
    graph = draw_graph(read_model(tmp_path))
    assert graph is not None
    assert {node.path: (node.state, node.note.split(" · ")[0]) for node in graph.nodes} == {
        "shell-out": ("succeeded", "succeeded"),
        "inner/shell": ("succeeded", "succeeded"),
        "write": ("failed", "1 of 2 failed"),
        "shell": (None, "not reached"),
    }
    assert {(group.kind, group.title) for group in graph.groups} == {
        ("pipeline", "inner"),
        ("loop", "for each item of items"),
        ("condition", "if shell-out-out == wanted"),
    }
    assert len(graph.edges) == 3


def test_the_graph_of_a_resumed_run_has_what_it_has_kept(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.fail("i")
    failed = runs.run(everything())
    runs.mend()
    resumed = runs.run(everything(), resume=failed)
    whole, drawn = (draw_graph(read_model(Path(str(run.folder)))) for run in (failed, resumed))
    assert whole
    assert drawn
    names = {node.path for node in drawn.nodes if not node.path.startswith("kept-")}
    assert names == {node.path for node in whole.nodes}
    edges = {(drawn.nodes[one].path, drawn.nodes[two].path) for _, one, two in drawn.edges if None not in (one, two)}
    assert {("items", "stage-2"), ("stage-2", "joined"), ("joined", "save")} <= edges


def test_a_graph_of_500_tasks_fits_a_page(tmp_path: Path) -> None:
    many_stages(500, tmp_path / "pipeline.yaml")
    play(tmp_path, ["stage-0"])
    graph = draw_graph(read_model(tmp_path))
    assert graph is not None
    assert (len(graph.nodes), graph.compact) == (500, True)
    assert graph.width < 1200


def iterations(results: list[dict[str, object]], inputs: list[dict[str, object]]) -> list[StageView]:
    stages = []
    for number, (result, values) in enumerate(zip(results, inputs, strict=True)):
        ended = StageResult(f"t[{number}]", "t", State.SUCCEEDED, results=result, inputs=values)
        stages.append(StageView(ended.name, "t", (number,), State.SUCCEEDED, ended))
    return stages


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=2, max_size=40))
@settings(max_examples=150)
def test_points_are_inside_of_a_plot_whatever_the_numbers_are(numbers: list[tuple[float, float]]) -> None:
    stages = iterations([{"y": y} for _, y in numbers], [{"x": x} for x, _ in numbers])
    for figure in draw_plots(stages):
        for plot in figure.plots:
            assert len(plot.points) == sum(math.isfinite(y) for _, y in numbers)
            for point in plot.points:
                assert LEFT <= point.x <= WIDTH - RIGHT
                assert TOP <= point.y <= HEIGHT - BOTTOM
            for ticks in (plot.x_ticks, plot.y_ticks):
                assert len(ticks) <= 12
                assert all(math.isfinite(where) for where, _ in ticks)


def test_results_are_drawn_over_what_the_loop_sweeps() -> None:
    rates = ["0.001", "0.1", "10"]
    stages = iterations(
        [{"loss": 1.0, "kind": "a"}, {"loss": math.nan, "kind": "b"}, {"loss": 0.5, "kind": "c"}],
        [{"rate": rate, "seed": 3, "data": f"x{rate}"} for rate in rates],
    )
    [figure] = draw_plots(stages)
    assert [plot.over for plot in figure.plots] == ["rate", "iteration"]
    over_rate = figure.plots[0]
    assert [point.name for point in over_rate.points] == ["t[0]", "t[2]"]
    # On a logarithmic axis, all decades have the same length.
    places = [where for where, _ in over_rate.x_ticks]
    assert [label for _, label in over_rate.x_ticks] == ["0.001", "0.01", "0.1", "1", "10"]
    assert places[1] - places[0] == pytest.approx(places[4] - places[3], abs=0.2)
    assert "min 0.5 (t[2]) · max 1 (t[0]) · 1 iteration without a finite number" in over_rate.note


def test_a_parameter_that_a_stage_also_records_is_not_drawn_as_a_result() -> None:
    rates = ["0.001", "0.1", "10"]
    stages = iterations(
        [{"rate": float(rate), "l_r": float(rate), "loss": 1 / float(rate)} for rate in rates],
        [{"rate": rate, "data": "x"} for rate in rates],
    )
    assert [figure.result for figure in draw_plots(stages)] == ["loss"]
    # If only some values agree, it is a result.
    stages = iterations([{"best": 0.001}, {"best": 0.001}, {"best": 10}], [{"rate": rate} for rate in rates])
    assert [figure.result for figure in draw_plots(stages)] == ["best"]


def test_numbers_of_a_sequence_have_none_between_them() -> None:
    for count in (2, 3, 7, 40):
        stages = iterations([{"loss": 1 / (n + 1)} for n in range(count)], [{"width": 2 + n} for n in range(count)])
        for plot in draw_plots(stages)[0].plots:
            labels = [label for _, label in plot.x_ticks]
            assert all(label.isdigit() for label in labels)
            assert len(set(labels)) == len(labels) >= 2


def test_every_state_has_its_colour() -> None:
    styles = style_sheet()
    for state in State:
        assert f".s-{state.replace(' ', '-')} {{ --c: var(--{state.color}); }}" in styles
        assert styles.count(f" --{state.color}: #") == 4, "in light and dark, where a theme is chosen, and on paper"


def test_values_are_legible() -> None:
    values = [True, None, 3, 0.1 + 0.2, math.inf, "a b", {"a": [1]}]
    assert [text(value) for value in values] == ["true", "null", "3", "0.3", "inf", "a b", '{"a": [1]}']
