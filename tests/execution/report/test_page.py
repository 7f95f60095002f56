"""The page, as text and in a real browser: complete, quick, and without running text from users as code."""

import fcntl
import html.parser
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from kfp import compiler, dsl
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from torchx.specs import AppDef, Role

from tests.execution.report.runs import EVIL, many_stages, play, record, write_events
from tests.execution.runs.test_state import finished
from torchx_kfp import task_from_app
from torchx_kfp.execution.report import read_model, write_report
from torchx_kfp.execution.report.artifact_views import Links
from torchx_kfp.execution.report.formats import circumstances
from torchx_kfp.execution.report.page import sections
from torchx_kfp.execution.runs.events import RunStarted
from torchx_kfp.execution.runs.journal import LOCK_FILE
from torchx_kfp.local import State

Visit = Callable[..., Chrome]

VISIBLE_STAGES = "return [...document.querySelectorAll('.stage:not([hidden])')].map(it => it.dataset.path)"
WITHOUT_NAME = """
return [...document.querySelectorAll('a, button, summary, input, select')]
  .filter(it => !it.textContent.trim() && !(it.labels && it.labels.length) && !it.ariaLabel).map(it => it.outerHTML)
"""

#: Cells and labels whose text takes more lines than it has words.
BROKEN_NAMES = """
const lines = (it) => {
  const range = document.createRange();
  range.selectNodeContents(it);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
};
return [...document.querySelectorAll('#lineage td:not(:last-child), .tall thead th, .tall td.result, .pairs dt')]
  .filter(it => it.offsetParent && it.textContent.length < 40)
  .filter(it => lines(it) > it.textContent.trim().split(/[ -]/).length).map(it => it.textContent)
"""
#: Labels of the timeline's axis that overlap the one before.
OVERLAPPING = """
const boxes = [...document.querySelectorAll('.axis .track span')].filter(it => it.offsetParent)
  .map(it => it.getBoundingClientRect());
return boxes.slice(1).filter((box, number) => box.left < boxes[number].right).length
"""

TRIAL = f"""
import sys
from torchx_kfp.tracking import current_run
run = current_run()
rate = float(sys.argv[1])
run.put(accuracy=1 - rate, note={EVIL!r})
print({EVIL!r})
"""
CHOOSE = f"""
from torchx_kfp.tracking import current_run
run = current_run()
run.put(trials=len(run.parents["trial"]))
open("model.txt", "w").write("weights")
run.add_artifact("model", "model.txt")
print("before the end " + {EVIL!r})
raise SystemExit(3)
"""


def app(name: str, *args: str) -> AppDef:
    return AppDef(name, roles=[Role(name, image="example.com/app:1", entrypoint="python", args=list(args))])


@dsl.container_component
def train(rate: str, width: int, data: str):
    return dsl.ContainerSpec(image="busybox", command=["true"], args=[rate, width, data])


@dsl.pipeline(name="evil")
def evil(tracker_base: str, rates: list, text: str):
    with dsl.ParallelFor(rates) as rate:
        trial = task_from_app(app("trial", "-c", TRIAL, f"{rate}", f"{text}"), tracker_base=tracker_base)
    chosen = task_from_app(
        app("choose", "-c", CHOOSE),
        tracker_base=tracker_base,
        reads={"trial": dsl.Collected(trial.outputs["run_id"])},
    )
    task_from_app(app("never", "-c", "pass"), tracker_base=tracker_base, reads=chosen)


@dsl.pipeline(name="loop")
def loop(rates: list):
    with dsl.ParallelFor(rates) as rate:
        train(rate=rate, width=3, data="x")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a stage failed, with text that a browser would run in every place."""
    runs = tmp_path_factory.mktemp("runs of <b>&")
    directory = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    try:
        arguments = {"tracker_base": str(runs / "results"), "rates": [0.1, 0.3, 0.2], "text": EVIL}
        folder, result = record(evil, arguments, runs)
    finally:
        os.chdir(directory)
    assert {stage.name: stage.state for stage in result.stages} == {
        **{f"trial[{number}]": "succeeded" for number in range(3)},
        "choose": "failed",
        "never": "not run",
    }
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop of 1,000 items with parameters and results."""
    folder = tmp_path_factory.mktemp("large")
    compiler.Compiler().compile(loop, str(folder / "pipeline.yaml"))
    play(
        folder,
        [f"train[{number}]" for number in range(1000)],
        pipeline="loop",
        inputs=lambda n: {"rate": str(10 ** (-4 + n % 97 / 24)), "width": n % 7, "data": "s3://bucket/data"},
        result=lambda n: {"accuracy": 0.9 + 0.09 * math.sin(n / 20), "loss": math.exp(-n / 200)},
        state=lambda n: State.FAILED if n == 250 else State.SUCCEEDED,
    )
    return folder


def write(folder: Path, page: Path | None = None) -> Path:
    page = page or folder / "report.html"
    write_report(read_model(folder), page)
    return page


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.ids: set[str] = set()
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            assert found["id"] not in self.ids
            self.ids.add(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.hrefs.append(str(found["href"]))
        self.others += [str(found[name]) for name in ("src", "srcset", "data", "action", "poster") if found.get(name)]


@pytest.mark.parametrize("place", ["beside", "elsewhere"])
def test_links_lead_to_logs_and_artifacts_from_wherever_the_page_is(failed: Path, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "some where"
    elsewhere.mkdir()
    page = write(failed, elsewhere / "page.html" if place == "elsewhere" else None)
    links = _Links()
    links.feed(page.read_text())
    assert links.others == []
    assert {href[1:] for href in links.hrefs if href.startswith("#")} <= links.ids
    files = {(page.parent / unquote(href)).resolve() for href in links.hrefs if not href.startswith("#")}
    assert all(file.exists() for file in files)
    logs = {stage.result.log_file for stage in read_model(failed).stages if stage.result.log_file}
    assert len(logs) == 4
    assert logs < files


def test_a_page_says_how_the_run_ended_and_how_it_goes_on(failed: Path, tmp_path: Path) -> None:
    page = write(failed).read_text()
    assert "1 failed stage" in page
    assert "ended with exit code 3" in page
    assert f"torchx-kfp run --resume {failed.name} --output-dir " in page
    play(tmp_path / "done", ["a"])
    assert "--resume" not in write(tmp_path / "done").read_text()


def test_a_page_says_how_the_run_was_run_and_has_no_internals(failed: Path, tmp_path: Path) -> None:
    write_report(read_model(failed), tmp_path / "page.html")
    section = (tmp_path / "page.html").read_text().partition('<section id="run">')[2].partition("</section>")[0]
    for fact in ("<h4>How it ran</h4>", "<dt>stages ran</dt>", "<code>as processes</code>", "<dt>directory</dt>"):
        assert fact in section
    for internal in ("null", "[]", "grace", "python_path", "named", "max_items", "condition_time"):
        assert internal not in section


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, {"stages ran": "as processes"}),
        (
            {"docker": [], "mounts": [], "timeout": None, "cache": True, "workspace": "", "parallelism": 1},
            {"stages ran": "as processes", "at the same time": "up to 1 stage"},
        ),
        ({"docker": True, "mounts": ["/data:/data:ro"]}, {"stages ran": "in containers", "mounts": ["/data:/data:ro"]}),
        ({"docker": ["a", "b"]}, {"stages ran": "in containers: a, b; all others as processes"}),
        (
            {"timeout": 5400.0, "cache": False, "fail_fast": True, "directory": "/home/you"},
            {
                "stages ran": "as processes",
                "directory": "/home/you",
                "time limit": "1h 30m",
                "cache": "off",
                "first failure": "ends the run",
            },
        ),
    ],
)
def test_options_in_users_words(options: dict[str, Any], shown: dict[str, Any]) -> None:
    assert circumstances(options) == shown


def test_outputs_that_repeat_results_are_left_out(tmp_path: Path) -> None:
    outputs = {"run_id": "run-1/train/t0", "l2norm_mean": 1.25, "loss": 0.5, "epochs": 4}
    results = {"l2norm/mean": 1.25, "loss": 0.5, "epochs": 3}
    ended = finished("train", run_id=outputs["run_id"], results=results, outputs=outputs)
    write_events(tmp_path, [RunStarted("p", "run-1", tmp_path, time=10.0), ended])
    run = read_model(tmp_path)
    (section,) = sections(run, [], Links(run, tmp_path))
    assert section.entries[0].outputs == {"epochs": 4}


@pytest.mark.parametrize("state", ["running", "interrupted", "canceled"])
def test_a_page_of_a_run_without_an_end_says_so_with_the_time(tmp_path: Path, state: str) -> None:
    play(tmp_path, ["a", "b"])
    events = (tmp_path / "events.jsonl").read_text().splitlines()
    end = json.loads(events.pop())
    if state == "canceled":
        events.append(json.dumps({**end, "state": "canceled"}))
    (tmp_path / "events.jsonl").write_text("\n".join(events) + "\n")
    with (tmp_path / LOCK_FILE).open("w") as lock:
        if state == "running":
            fcntl.flock(lock, fcntl.LOCK_EX)
        run = read_model(tmp_path)
    write_report(run, tmp_path / "report.html")
    page = " ".join((tmp_path / "report.html").read_text().split())
    said = {
        "running": "The run was still running when this page was written, at ",
        "interrupted": "The run was interrupted: its runner was killed",
        "canceled": "The run was canceled before it had finished.",
    }
    assert said[state] in page
    assert ("--resume" in page) == (state != "running")
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(run.now)) in page


@pytest.mark.lowest
def test_a_page_of_a_pipeline_that_cannot_be_read_has_no_graph(tmp_path: Path) -> None:
    play(tmp_path, ["a"])
    (tmp_path / "pipeline.yaml").write_text("nothing: [")
    assert 'id="graph"' not in write(tmp_path).read_text()
    assert 'id="timeline"' in write(tmp_path).read_text()


def requests(browser: Chrome) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [it["params"]["request"]["url"] for it in messages if it["method"] == "Network.requestWillBeSent"]


@pytest.mark.browser
def test_a_browser_runs_nothing_of_users_and_asks_no_host(failed: Path, visit: Visit) -> None:
    page = write(failed)
    browser = visit(page)
    browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
    assert "broken" not in browser.title
    assert browser.title.startswith("evil: failed")
    assert requests(browser) == [page.as_uri()]
    assert browser.get_log("browser") == []
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert browser.find_elements(By.TAG_NAME, "img") == []
    shown = browser.find_element(By.TAG_NAME, "main").get_attribute("textContent") or ""
    # It is in the argument, in the trials' common parameter, in three results, and in the log.
    assert shown.count(EVIL) == 6
    [log] = browser.find_elements(By.CSS_SELECTOR, ".failure pre")
    assert log.text == f"before the end {EVIL}"
    # Code that should have been escaped but was not would not run, either.
    browser.execute_script('document.body.innerHTML += \'<img src="data:," onerror="document.title = 1">\'')
    time.sleep(0.1)
    assert browser.title != "1"


@pytest.mark.browser
def test_lineage_and_plots_are_shown(failed: Path, visit: Visit) -> None:
    browser = visit(write(failed))
    [row] = browser.find_elements(By.CSS_SELECTOR, "#lineage tbody tr")
    assert row.text.startswith(f"choose trial trial 3 {failed.name}/trial/trial-0-0")
    [figure] = browser.find_elements(By.TAG_NAME, "figure")
    assert len([it for it in figure.find_elements(By.TAG_NAME, "circle") if it.is_displayed()]) == 3
    first = figure.find_element(By.CSS_SELECTOR, ".plot").text
    select = figure.find_element(By.TAG_NAME, "select")
    select.send_keys(Keys.DOWN)
    assert figure.find_elements(By.CSS_SELECTOR, ".plot")[1].text not in ("", first)
    # A point leads to its iteration, even inside a folded section.
    figure.find_elements(By.CSS_SELECTOR, ".plot:not([hidden]) a")[1].send_keys(Keys.ENTER)
    row = browser.find_element(By.CSS_SELECTOR, "tr:target")
    assert row.is_displayed()
    assert row.text.startswith("1 ")


@pytest.mark.browser
def test_the_page_is_used_by_keyboard_alone(failed: Path, visit: Visit) -> None:
    browser = visit(write(failed))
    keyboard = browser.find_element(By.TAG_NAME, "body")
    keyboard.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "find"
    browser.switch_to.active_element.send_keys("choose")
    wait(browser, "1 of 5")
    assert browser.execute_script(VISIBLE_STAGES) == ["choose"]
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.SPACE)  # the first state: failed
    wait(browser, "1 of 5")
    browser.execute_script("document.querySelector('.stage:not([hidden]) summary').focus()")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, ".stage[open] .entry").is_displayed()
    assert browser.execute_script(WITHOUT_NAME) == []


def wait(browser: Chrome, found: str) -> None:
    deadline = time.monotonic() + 30
    while browser.find_element(By.ID, "found").text != found:
        assert time.monotonic() < deadline, browser.find_element(By.ID, "found").text
        time.sleep(0.02)


@pytest.mark.browser
def test_a_loop_of_1000_items_is_folded_and_can_be_searched(large: Path, visit: Visit) -> None:
    page = write(large)
    assert page.stat().st_size < 2_000_000
    browser = visit(page)
    assert height(browser) < 3000
    assert len(browser.find_elements(By.CSS_SELECTOR, ".node")) == 1
    find = browser.find_element(By.ID, "find")
    find.send_keys("train[77]")
    wait(browser, "1 of 1,000")
    find.send_keys(Keys.BACKSPACE * 9)
    wait(browser, "")
    browser.find_element(By.CSS_SELECTOR, ".chips button").click()
    wait(browser, "1 of 1,000")
    browser.find_element(By.CSS_SELECTOR, ".stage summary").click()
    shown = browser.execute_script("return [...document.querySelectorAll('tbody tr:not([hidden])')].map(it => it.id)")
    assert shown == ["s250"]


@pytest.mark.browser
def test_500_stages_fit_a_page_and_a_narrow_one(tmp_path: Path, visit: Visit) -> None:
    many_stages(500, tmp_path / "pipeline.yaml")
    play(tmp_path, [f"stage-{number}" for number in range(500)], result=lambda n: {"loss": n / 500})
    page = write(tmp_path)
    assert page.stat().st_size < 1_500_000
    for width in (1280, 480):
        browser = visit(page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.execute_script("return performance.getEntriesByType('navigation')[0].domComplete") < 10_000
    browser.find_element(By.ID, "find").send_keys("stage-499")
    wait(browser, "1 of 500")
    assert browser.execute_script("return document.querySelectorAll('.node:not(.dim)').length") == 1


@pytest.fixture
def phone(browser: Chrome) -> Iterator[Callable[..., Chrome]]:
    """A function that opens a page on a screen that is narrower than any window can be, with everything unfolded."""

    def function(page: Path, width: int = 360) -> Chrome:
        screen = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(page.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
        browser.execute_script("for (it of document.querySelectorAll('.stage')) it.style.contentVisibility = 'visible'")
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        return browser

    yield function
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get("about:blank")


@pytest.mark.browser
def test_a_phone_shows_whole_names_and_all_of_the_lineage(failed: Path, phone: Visit) -> None:
    page = write(failed)
    for width in (360, 740):
        browser = phone(page, width)
        assert browser.execute_script(BROKEN_NAMES) == []
        lineage = browser.find_element(By.CSS_SELECTOR, "#lineage .scroll")
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", lineage)
        assert lineage.text.split()[-5:] == ["choose", "trial", "trial", "3", f"{failed.name}/trial/trial-0-0"]


@pytest.mark.browser
@pytest.mark.parametrize("seconds", [0.34, 95.0, 4 * 3600.0])
def test_labels_of_the_timeline_do_not_overlap_on_a_phone(seconds: float, tmp_path: Path, phone: Visit) -> None:
    many_stages(5, tmp_path / "pipeline.yaml")
    play(tmp_path, [f"stage-{number}" for number in range(5)], seconds=lambda number: seconds)
    browser = phone(write(tmp_path))
    assert browser.execute_script(OVERLAPPING) == 0
    assert len([it for it in browser.find_elements(By.CSS_SELECTOR, ".axis .track span") if it.is_displayed()]) > 1


@pytest.mark.browser
def test_the_page_is_light_dark_and_printable(failed: Path, visit: Visit) -> None:
    browser = visit(write(failed))

    def page_colour() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def media(name: str, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": name, "features": features})

    try:
        media("screen", "light")
        light = page_colour()
        media("screen", "dark")
        dark = page_colour()
        assert light != dark
        browser.find_element(By.ID, "theme").click()
        assert page_colour() == light
        media("print", "dark")
        assert page_colour() == "rgb(255, 255, 255)"
        assert not browser.find_element(By.ID, "filter").is_displayed()
        printed: Any = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        assert printed["data"].startswith("JVBERi0")  # %PDF-
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def height(browser: Chrome) -> int:
    return int(browser.execute_script("return document.documentElement.scrollHeight"))
