"""Searches in the report."""

import html
import math
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.execution.report.runs import EVIL
from tests.searches import ACT, LAYERS, LR, PARAMETERS, loss, play_search, tell
from torchx_kfp.contract.protocol import StageContext, encode
from torchx_kfp.execution.report import plots, read_model, write_report
from torchx_kfp.execution.report.trials import (
    PARALLEL_BOTTOM,
    PARALLEL_HEIGHT,
    PARALLEL_TOP,
    draw_parallel,
    draw_trials,
    number_trials,
)
from torchx_kfp.tracking import current_run
from torchx_kfp.tracking.searches import SEARCH
from torchx_kfp.tracking.tracker import open_store

Visit = Callable[..., Chrome]
SHARE = {"type": "float", "bounds": [0, 1], "log": False}


def write(folder: Path) -> Path:
    write_report(read_model(folder), folder / "report.html")
    return folder / "report.html"


def inside(places: Iterable[tuple[float, float]], left: float, top: float, right: float, bottom: float) -> bool:
    return all(left <= x <= right and top <= y <= bottom for x, y in places)


ANYTHING = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]))
VALUES = st.dictionaries(st.sampled_from("abcd"), ANYTHING | st.floats(min_value=1e-4, max_value=1.0))


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
    search = SEARCH.parse(tell("s", told, parameters=parameters, objectives=objectives))
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
    drawn = draw_parallel(search, shown)
    for line in drawn.lines if drawn else ():
        points = [tuple(map(float, place.split())) for place in re.split("[ML]", line.path) if place]
        assert inside(points, 0, PARALLEL_TOP, drawn.width, PARALLEL_HEIGHT - PARALLEL_BOTTOM)
        assert len(points) <= len(drawn.axes)


def test_the_best_so_far_and_the_front() -> None:
    losses = [0.5, 0.75, None, 0.25, 0.375]
    trials = [({"a": 0.1}, None if it is None else {"y": it, "z": 1 / it}) for it in losses]
    one = SEARCH.parse(tell("s", trials, parameters={"a": LR}, objectives={"y": "minimize"}, each=2, rounds=3))
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
    two = SEARCH.parse(tell("s", trials, parameters={"a": LR}, objectives={"y": "minimize", "z": "minimize"}))
    assert two is not None
    front, *others = draw_trials(two, number_trials(two, [""] * 5))
    assert [(front[0].what, front[0].over), *(it[0].what for it in others)] == [("z", "y"), "y", "z"]
    assert front[0].line.count("H") == 3
    assert front[0].note == "4 trials on the Pareto front, of 4"


def test_a_search_that_still_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run-1"
    play_search(folder, ended=1)
    page = write(folder).read_text()
    assert "Round 2 of 3, with 4 trials, did not come to its end." in page
    assert page.count("asked for</span>") == 4
    assert "<dt>rounds</dt><dd>1 of 3</dd>" in page


def test_two_searches_of_one_name_are_two_sections(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run-1"
    play_search(folder, rounds=1)
    store = open_store(str(tmp_path / "runs" / "results"))
    other = tell("search", [({"lr": 0.5}, {"loss": 7.0})], run_id="earlier/trial/0")
    SEARCH.add(store, "run-1/ask-1/ask-1-0", other, "search")
    page = write(folder).read_text()
    titles = re.findall(r'<section class="search" id="(\w+)">\s*<h2>(.*)</h2>', page)
    assert titles == [("search0", "Search search (ask-1)"), ("search1", "Search search (best)")]
    assert "<code>earlier/trial/0</code>" in page.replace("<wbr>", ""), "a trial that is not in this run"


@pytest.mark.browser
def test_a_search_in_a_browser(tmp_path: Path, visit: Visit) -> None:
    folder = tmp_path / "runs" / "run-1"
    objective = f"loss {EVIL}"
    play_search(
        folder,
        name=EVIL,
        parameters={**PARAMETERS, EVIL: {"type": "choice", "values": [EVIL, "x" * 90, 1]}},
        objectives={objective: "minimize"},
        results=lambda values: {objective: loss(values)["loss"], "seconds": 3},
        failing=[5],
    )
    for trial in ("trial-1/trial-1-0-0", "trial-2/trial-2-0-0"):
        run = current_run(encode(StageContext(str(folder.parent / "results"), f"run-1/{trial}")))
        for step in range(3):
            run.log(step, {EVIL: 1 / (step + 1)})
        run.flush()
    page = write(folder)
    for width in (400, 1280):
        browser = visit(page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert "broken" not in browser.title
    assert browser.get_log("browser") == []
    section = browser.find_element(By.CSS_SELECTOR, ".search")
    assert section.find_element(By.TAG_NAME, "h2").text == f"Search {' '.join(EVIL.split())}"
    rows = [row.text for row in section.find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert rows[0].startswith("5 trial-2[0] ✓best")
    assert rows[-1].startswith("6 trial-2[1] ✗failed, exit code 3")
    assert len(rows) == 12
    for others in ("plots", "curves"):
        assert browser.find_elements(By.ID, others) == [], "trials are drawn in the section of their search"
    # The keyboard reaches each trial, which is highlighted in all drawings and in the table.
    link = section.find_element(By.CSS_SELECTOR, '.parallel a[data-trial="5"]')
    browser.execute_script("arguments[0].focus()", link)
    assert len(section.find_elements(By.CSS_SELECTOR, '.lit[data-trial="5"]')) == 8
    assert len(section.find_elements(By.CSS_SELECTOR, ".lit")) == 8
    link.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "tr:target").is_displayed()
    select = section.find_element(By.TAG_NAME, "select")
    select.send_keys("layers")
    assert [it.is_displayed() for it in section.find_elements(By.CSS_SELECTOR, "figure:first-child .plot")] == [
        *(False, False, True, False, False)
    ]


@pytest.mark.browser
def test_500_trials_of_20_parameters(tmp_path: Path, visit: Visit) -> None:
    folder = tmp_path / "runs" / "run-1"
    kinds = (LR, LAYERS, ACT, SHARE)
    play_search(
        folder,
        rounds=5,
        each=100,
        parameters={f"parameter_{number}": kinds[number % 4] for number in range(20)},
        results=lambda values: {"loss": values["parameter_0"]},
        failing=range(0, 500, 50),
    )
    started = time.process_time()
    page = write(folder)
    assert time.process_time() - started < 10
    assert page.stat().st_size < 2_000_000
    for width in (400, 1280):
        browser = visit(page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".parallel a")) == 500
    assert html.unescape(browser.find_element(By.CSS_SELECTOR, ".search .facts, .search .card").text).count("500") == 1
