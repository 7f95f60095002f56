"""Metrics of steps in the report, and inputs with the pipeline's names for them."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kfp import dsl
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from torchx.specs import AppDef, Role

from tests.execution.report.runs import record
from torchx_kfp import task_from_app
from torchx_kfp.execution.report import read_model, write_report
from torchx_kfp.execution.report.model import StageView, Tracked
from torchx_kfp.execution.report.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_COLOURS,
    MOST_METRICS,
    RIGHT,
    TOP,
    WIDTH,
    draw_charts,
)
from torchx_kfp.local import StageResult, State
from torchx_kfp.tracking import Curve, History, Point

Visit = Callable[..., Chrome]

TRAIN = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
rate, width = float(sys.argv[1]), int(sys.argv[2])
run.add_metadata(optimizer="adam", rate=rate)
for step in range(50):
    run.log(step, {"train/loss": 1 / (1 + rate * step)})
run.put(width=width)
"""


def python(name: str, *args: str) -> AppDef:
    return AppDef(name, roles=[Role(name, image="python", entrypoint="python", args=["-c", TRAIN, *args])])


@dsl.container_component
def theirs(limit: float, item: str, stage: str):
    return dsl.ContainerSpec(image="busybox", command=["true"], args=[limit, item, stage])


@dsl.pipeline(name="named")
def named(tracker_base: str, width: int = 3, threshold: float = 0.5, rates: list = [0.1, 0.5]):  # noqa: B006
    with dsl.ParallelFor([{"lr": 0.1}, {"lr": 0.2}]) as trial:
        fields = task_from_app(python("fields", f"{trial.lr}", f"{width}"), tracker_base=tracker_base)
        task_from_app(python("again", "0.5", f"{width}"), tracker_base=tracker_base, reads=fields)
    with dsl.ParallelFor(rates) as rate:
        task_from_app(python("train", f"{rate}", f"{width}"), tracker_base=tracker_base)
    theirs(limit=threshold, item="x", stage="y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    found, result = record(named, {"tracker_base": str(runs / "results")}, runs)
    assert result.state is State.SUCCEEDED
    return found


def stages(count: int) -> list[StageView]:
    made = []
    for number in range(count):
        ended = StageResult(f"t[{number}]", "t", State.SUCCEEDED, run_id=f"r/t/{number}", tracker_base="base")
        made.append(StageView(ended.name, "t", (number,), "succeeded", ended))
    return made


def curve(points: list[tuple[int, float]]) -> Curve:
    found = tuple(Point(step, value, float(place)) for place, (step, value) in enumerate(points))
    comparable = [point for point in found if not math.isnan(point.value)] or found
    low, high = (end(comparable, key=lambda point: point.value) for end in (min, max))
    return Curve(found, len(found), found[-1], low, high)


def tracked(*histories: dict[str, list[tuple[int, float]]]) -> Tracked:
    return Tracked(
        {
            ("base", f"r/t/{number}"): History({name: curve(points) for name, points in history.items()})
            for number, history in enumerate(histories)
        }
    )


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.floats()), min_size=1, max_size=40))
@settings(max_examples=150)
def test_curves_are_inside_of_a_chart_whatever_the_numbers_are(points: list[tuple[int, float]]) -> None:
    charts = draw_charts(stages(1), tracked({"loss": points}))
    assert len(charts) == any(math.isfinite(value) for _, value in points)
    for chart in charts:
        [line] = chart.lines
        places = [tuple(map(float, place.split())) for place in re.split("[ML]", line.path.replace("h0", "")) if place]
        assert len(places) == sum(math.isfinite(value) for _, value in points)
        assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in places)


def test_a_long_curve_keeps_its_peaks_and_a_gap_is_a_gap() -> None:
    values = [math.sin(step / 50) for step in range(5000)]
    values[1234] = 40.0
    [chart] = draw_charts(stages(1), tracked({"loss": list(enumerate(values))}))
    places = [place for place in re.split("[ML]", chart.lines[0].path) if place]
    assert len(places) <= 460
    [top] = [place for place in places if float(place.split()[1]) < TOP + 15]
    assert abs(float(top.split()[0]) - (LEFT + 1234 / 5000 * (WIDTH - LEFT - RIGHT))) < 20
    assert chart.note == "last -0.52351 at step 4,999 · min -1 at 4,948 · max 40 at 1,234"
    gap = [(0, 1.0), (1, 2.0), (2, math.nan), (3, 2.0), (4, 1.0), (5, math.inf), (6, 1.0)]
    [chart] = draw_charts(stages(1), tracked({"loss": gap}))
    assert chart.lines[0].path.count("M") == 3
    assert chart.lines[0].path.endswith("h0")
    assert [label for _, label in chart.x_ticks] == ["0", "2", "4", "6"]


def test_iterations_share_a_chart_and_there_are_not_too_many() -> None:
    few = [{"loss": [(0, 1.0), (1, 1 / (number + 1))]} for number in range(MOST_COLOURS)]
    [chart] = draw_charts(stages(MOST_COLOURS), tracked(*few))
    assert [line.colour for line in chart.lines] == list(range(MOST_COLOURS))
    assert [line.label for line in chart.lines][:3] == ["1", "0.5", "0.333333"]
    assert chart.note == "min 0.125 (t[7], step 1) · max 1 (t[0], step 0)"
    long = [(step, 1.0) for step in range(1000)]
    many = [{f"m{name:02}": long if name < MOST_METRICS else long[:2] for name in range(20)} for _ in range(100)]
    charts = draw_charts(stages(100), tracked(*many))
    assert len(charts) == MOST_METRICS
    assert charts[-1].hidden == 20 - MOST_METRICS
    assert sum(len(line.path) for chart in charts for line in chart.lines) < 2_500_000


def test_inputs_have_the_names_of_the_pipeline(folder: Path) -> None:
    inputs = {stage.name: dict(stage.result.inputs) for stage in read_model(folder).stages}
    base = {"tracker_base": str(folder.parent / "results")}
    assert inputs["fields[1]"] == {"lr": 0.2, "width": 3, **base}
    assert inputs["train[1]"] == {"item of rates": 0.5, "width": 3, **base}
    assert inputs["again[0]"].pop("fields").startswith(f"{folder.name}/fields/")
    assert inputs["again[0]"] == {"width": 3, **base}
    assert inputs["theirs"] == {"limit": 0.5, "item": "x", "stage": "y"}, "names that a user has given"


def test_a_tracker_that_is_gone_leaves_a_page_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    model = read_model(folder)
    gone = [replace(stage, result=replace(stage.result, tracker_base="gone://base")) for stage in model.stages]
    write_report(replace(model, stages=tuple(gone), named=("gone://base",)), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Metrics of steps, searches and metadata could not be read: The tracker base &#39;gone://base&#39;" in page
    assert 'id="curves"' not in page


def test_where_the_stages_ran(folder: Path, tmp_path: Path) -> None:
    write_report(read_model(folder), tmp_path / "page.html")
    shown = f"<dt>ran on</dt><dd><code>{os.uname().nodename}</code>"
    assert (tmp_path / "page.html").read_text().count(shown) == 6


@pytest.mark.browser
def test_metrics_of_steps_and_metadata_are_shown(folder: Path, visit: Visit) -> None:
    page = folder / "report.html"
    write_report(read_model(folder), page)
    for width in (1280, 400):
        browser = visit(page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        figures = browser.find_elements(By.CSS_SELECTOR, "#curves figure")
        captions = [" ".join(it.find_element(By.TAG_NAME, "figcaption").text.split()) for it in figures]
        assert captions == ["train/loss of fields", "train/loss of again", "train/loss of train"]
        legend = figures[-1].find_elements(By.CSS_SELECTOR, ".legend li")
        assert [entry.text for entry in legend] == ["train[0] 0.169492", "train[1] 0.0392157"]
        colours = {
            path.value_of_css_property("stroke") for path in figures[-1].find_elements(By.CSS_SELECTOR, ".curve")
        }
        assert len(colours) == 2
    legend[1].find_element(By.TAG_NAME, "a").click()
    row = browser.find_element(By.CSS_SELECTOR, "tr:target")
    row.find_element(By.CSS_SELECTOR, ".more summary").click()
    shown = " ".join(row.find_element(By.CSS_SELECTOR, ".more").text.split())
    assert "train/loss 0.0392157 at 49, min 0.0392157, max 1" in shown
    assert "optimizer adam" in shown
