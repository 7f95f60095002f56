"""The drawings of a page: the graph of any pipeline, and plots and curves of any numbers."""

# Annotations are not postponed: kfp reads them as types.

import math
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import shell, shell_out, write
from tests.execution.report.runs import Page, numbers, play, shown, tracked
from torchx_kfp.local import State

#: The area of a plot inside of its labels.
LEFT, TOP, RIGHT, BOTTOM = 58, 14, 446, 210
#: Numbers that drawings find hard.
HARD = [0.0, -0.0, 1.0, 1.0, math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 1e-300, -1e-300, 0.1, 3.0, 1e17]


def any_number(chance: Random) -> float:
    return chance.choice([*HARD, chance.uniform(-1, 1), chance.uniform(0, 10**9), float(chance.randrange(9))])


def is_inside(x: float, y: float) -> bool:
    return LEFT <= x <= RIGHT and TOP <= y <= BOTTOM


def places(path: Element) -> list[tuple[float, float]]:
    """Return the points of a curve."""
    found = (part.replace("h0", "").split() for part in re.split("[ML]", path.get("d", "")) if part)
    return [(float(x), float(y)) for x, y in found]


def graph(folder: Path) -> Page:
    page = Page.of_run(folder)
    assert len(page.of("svg.graph")) == 1
    return page


def edges(page: Page) -> set[tuple[str, str]]:
    """Return the paths of the tasks at both ends of each line; empty for a box."""
    lines = page.of("path", page.of("g.lines")[0])
    return {(it.get("data-from", ""), it.get("data-to", "")) for it in lines}


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
    names = ["shell-out", "inner/shell", "write[0]", "write[1]"]
    play(tmp_path, names, state=lambda n: State.FAILED if n == 3 else State.SUCCEEDED)
    page = graph(tmp_path)
    assert {it.get("data-path"): (it.get("class"), shown(it[0])) for it in page.of("a.node")} == {
        "shell-out": ("node s-succeeded", "shell-out: succeeded · 1.0s"),
        "inner/shell": ("node s-succeeded", "inner/shell: succeeded · 2.0s"),
        "write": ("node s-failed", "write: 1 of 2 failed"),
        "shell": ("node s-unknown", "shell: not reached"),
    }
    assert {(it.get("class"), shown(it[0])) for it in page.of("g.group")} == {
        ("group pipeline", "inner"),
        ("group loop", "for each item of items"),
        ("group condition", "if shell-out-out == wanted"),
    }
    assert edges(page) == {("shell-out", ""), ("", "")}


Values = Callable[[int], dict[str, Any]]


def plots(folder: Path, count: int, result: Values, inputs: Values) -> tuple[Page, list[Element]]:
    """Return the page of a run with a loop, and the figures of its results."""
    play(folder, [f"t[{number}]" for number in range(count)], result=result, inputs=inputs)
    page = Page.of_run(folder)
    [section] = page.of("#figures")
    return page, page.of("figure", section)


def ticks(page: Page, plot: Element, anchor: str = "middle") -> list[tuple[float, str]]:
    """Return the places and labels of the horizontal axis, or of the vertical one: their anchor is ``end``."""
    found = [it for it in page.of("text.tick", plot) if it.get("text-anchor") == anchor]
    return [(*numbers(it, "x" if anchor == "middle" else "y"), shown(it)) for it in found]


def test_results_are_drawn_over_what_the_loop_sweeps(tmp_path: Path) -> None:
    rates = ["0.001", "0.1", "10"]
    page, [figure] = plots(
        tmp_path,
        3,
        lambda n: {"loss": [1.0, math.nan, 0.5][n], "kind": "abc"[n]},
        lambda n: {"rate": rates[n], "seed": 3, "data": f"x{rates[n]}"},
    )
    assert [shown(it) for it in page.of("text.over", figure)] == ["rate", "iteration"]
    assert shown(page.of("summary", figure)[0]) == "over iteration"
    over_rate = page.of("div.plot", figure)[0]
    assert [shown(it).partition(" ")[0].rstrip(":") for it in page.of("title", over_rate)] == ["t[0]", "t[2]"]
    # On a logarithmic axis, all decades have the same length.
    where, labels = zip(*ticks(page, over_rate), strict=True)
    assert labels == ("0.001", "0.01", "0.1", "1", "10")
    assert where[1] - where[0] == pytest.approx(where[4] - where[3], abs=0.2)
    note = shown(page.of("p.caption", over_rate)[0])
    assert "min 0.5 (t[2]) · max 1 (t[0]) · 1 iteration without a finite number" in note


def test_results_of_a_loop_are_drawn_over_its_items(tmp_path: Path) -> None:
    """Also those of a stage that was not given the item."""

    @dsl.pipeline(name="loop")
    def loop(models: list = ["vgg", "vit", "resnet"]):  # noqa: B006 (KFP takes the text of defaults)
        with dsl.ParallelFor(models) as model:
            write(x=model)
            shell_out(script="true")

    compiler.Compiler().compile(loop, str(tmp_path / "pipeline.yaml"))
    models = ["vgg", "vit", "resnet"]
    names = [*(f"write[{n}]" for n in range(3)), *(f"shell-out[{n}]" for n in range(3))]
    play(tmp_path, names, result=lambda n: {"loss": float(n)}, inputs=lambda n: {"x": models[n]} if n < 3 else {})
    page = graph(tmp_path)
    figures = page.of("figure", page.of("#figures")[0])
    assert len(figures) == 2
    for figure in figures:
        assert [shown(it) for it in page.of("text.over", figure)] == ["item"]
        assert [label for _, label in ticks(page, figure)] == models
    titles = [shown(it) for figure in figures for it in page.of("title", figure)]
    assert "shell-out[2]: loss 5, item resnet" in titles


def test_a_parameter_that_a_stage_also_records_is_not_drawn_as_a_result(tmp_path: Path) -> None:
    rates = ["0.001", "0.1", "10"]
    results = [{"rate": float(rate), "l_r": float(rate), "loss": 1 / float(rate)} for rate in rates]
    page, [figure] = plots(tmp_path / "all", 3, lambda n: results[n], lambda n: {"rate": rates[n], "data": "x"})
    assert shown(page.of("strong", figure)[0]) == "loss"
    # If only some values agree, it is a result.
    page, [figure] = plots(
        tmp_path / "some", 3, lambda n: {"best": [0.001, 0.001, 10][n]}, lambda n: {"rate": rates[n]}
    )
    assert shown(page.of("strong", figure)[0]) == "best"


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_numbers_of_a_sequence_have_none_between_them(count: int, tmp_path: Path) -> None:
    page, [figure] = plots(tmp_path, count, lambda n: {"loss": 1 / (n + 1)}, lambda n: {"width": 2 + n})
    for plot in page.of("div.plot", figure):
        labels = [label for _, label in ticks(page, plot)]
        assert all(label.isdigit() for label in labels)
        assert len({*labels}) == len(labels) >= 2


Metrics = dict[str, list[tuple[int, float]]]


def curves(folder: Path, stages: dict[str, Metrics]) -> tuple[Page, list[Element]]:
    """Return the page of a run whose stages have logged these metrics, and their figures."""
    base, names = folder / "base", list(stages)
    play(folder / "runs/r", names, tracker_base=str(base))
    for name, metrics in stages.items():
        pod = f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}_1"
        run = tracked(base, f"r/{name.partition('[')[0]}/{pod}")
        for metric, points in metrics.items():
            for step, value in points:
                run.log(step, {metric: value})
        run.flush()
    page = Page.of_run(folder / "runs/r")
    return page, page.of("figure", page.of("#figures")[0])


def test_curves_are_inside_of_a_chart_whatever_the_numbers_are(tmp_path: Path) -> None:
    chance = Random(11)
    steps = [0, 1, 2, 3, -(2**62), 2**62, 10**6]
    given = {
        f"t{number}": {"m": [(chance.choice(steps), any_number(chance)) for _ in range(chance.randint(1, 20))]}
        for number in range(60)
    }
    page, figures = curves(tmp_path, given)
    finite = {name for name, metrics in given.items() if any(math.isfinite(value) for _, value in metrics["m"])}
    assert {shown(page.of("a", figure)[0]) for figure in figures} == finite
    for figure in figures:
        [line] = page.of("path.curve", figure)
        assert places(line)
        assert all(is_inside(*place) for place in places(line))


def test_a_long_curve_keeps_its_peaks_and_a_gap_is_a_gap(tmp_path: Path) -> None:
    values = [math.sin(step / 50) for step in range(5000)]
    values[1234] = 40.0
    gap = [(0, 1.0), (1, 2.0), (2, math.nan), (3, 2.0), (4, 1.0), (5, math.inf), (6, 1.0)]
    page, [long, short] = curves(tmp_path, {"long": {"loss": [*enumerate(values)]}, "gap": {"loss": gap}})
    [line] = page.of("path.curve", long)
    assert len(places(line)) <= 200
    [top] = [x for x, y in places(line) if y < TOP + 15]
    assert abs(top - (LEFT + 1234 / 5000 * (RIGHT - LEFT))) < 20
    note = shown(page.of("p.caption", long)[0])
    assert note == "last -0.52351 at step 4,999 · min -1 at 4,948 · max 40 at 1,234"
    [line] = page.of("path.curve", short)
    assert (line.get("d", "").count("M"), line.get("d", "")[-2:]) == (3, "h0")
    assert [label for _, label in ticks(page, short)] == ["0", "2", "4", "6"]


def test_iterations_share_a_chart_and_there_are_not_too_many(tmp_path: Path) -> None:
    few = {f"t[{number}]": {"loss": [(0, 1.0), (1, 1 / (number + 1))]} for number in range(8)}
    page, [chart] = curves(tmp_path / "few", few)
    assert [it.get("class") for it in page.of("path.curve", chart)] == [f"curve c{number}" for number in range(8)]
    legend = [shown(it) for it in page.of("li", page.of("ul.legend", chart)[0])]
    assert legend[:3] == ["t[0] 1", "t[1] 0.5", "t[2] 0.333333"]
    assert shown(page.of("p.caption", chart)[0]) == "min 0.125 (t[7], step 1) · max 1 (t[0], step 0)"
    many = {f"t[{number}]": {f"m{name:02}": [(0, 1.0), (1, 2.0)] for name in range(20)} for number in range(9)}
    page, charts = curves(tmp_path / "many", many)
    assert len(charts) == 12
    assert shown(page.of("p.caption", charts[-1])[-1]).endswith(" · 9 curves · 8 more metrics of t not drawn")
    assert {it.get("class") for it in page.of("path.curve", charts[0])} == {"curve one"}
