"""The page in a real browser: quick, usable, and without running text from users as code."""

# Annotations are not postponed: kfp reads them as types.

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kfp import compiler, dsl
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from tests.execution.host.calling import wait_until
from tests.execution.report.artifacts import HARM, HARMFUL_MARKDOWN, artifact, finished
from tests.execution.report.runs import EVIL, many_stages, play, tracked
from tests.execution.report.runs import report as write
from tests.searches import PARAMETERS, loss, play_search
from torchx_kfp.local import State

pytestmark = pytest.mark.browser

Visit = Callable[..., Chrome]

FITS = "return document.documentElement.scrollWidth <= innerWidth"
VISIBLE_STAGES = "return [...document.querySelectorAll('.stage:not([hidden])')].map(it => it.dataset.path)"
WITHOUT_NAME = """
return [...document.querySelectorAll('a, button, summary, input:not([type=hidden]), select')]
  .filter(it => !it.textContent.trim() && !(it.labels && it.labels.length) && !it.ariaLabel).map(it => it.outerHTML)
"""

#: Cells and labels whose text takes more lines than it has words.
BROKEN_NAMES = """
const lines = (it) => {
  const range = document.createRange();
  range.selectNodeContents(it);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
};
return [...document.querySelectorAll('.tall thead th, .tall td.result, .pairs dt')]
  .filter(it => it.offsetParent && it.textContent.length < 40)
  .filter(it => lines(it) > it.textContent.trim().split(/[ -]/).length).map(it => it.textContent)
"""
#: Labels of the timeline's axis that overlap the one before.
OVERLAPPING = """
const boxes = [...document.querySelectorAll('.axis .track span')].filter(it => it.offsetParent)
  .map(it => it.getBoundingClientRect());
return boxes.slice(1).filter((box, number) => box.left < boxes[number].right).length
"""


@dsl.container_component
def train(rate: str, width: int, data: str):
    return dsl.ContainerSpec(image="busybox", command=["true"], args=[rate, width, data])


@dsl.pipeline(name="loop")
def loop(rates: list):
    with dsl.ParallelFor(rates) as rate:
        train(rate=rate, width=3, data="x")


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


def requests(browser: Chrome) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [it["params"]["request"]["url"] for it in messages if it["method"] == "Network.requestWillBeSent"]


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


def test_lineage_and_figures_are_shown(failed: Path, visit: Visit) -> None:
    browser = visit(write(failed))
    [figure] = browser.find_elements(By.TAG_NAME, "figure")
    assert len([it for it in figure.find_elements(By.CSS_SELECTOR, ".dot") if it.is_displayed()]) == 3
    assert [it.is_displayed() for it in figure.find_elements(By.CSS_SELECTOR, ".plot")] == [True]
    # A point leads to its iteration, even inside a folded section.
    figure.find_elements(By.CSS_SELECTOR, ".plot a")[1].send_keys(Keys.ENTER)
    row = browser.find_element(By.CSS_SELECTOR, "tr:target")
    assert row.is_displayed()
    assert row.text.startswith("1 ")
    choose = browser.find_element(By.CSS_SELECTOR, ".stage[data-path=choose]")
    assert "reads trialtrial[0], trial[1], trial[2]" in (choose.get_attribute("textContent") or "").replace("\n", "")


def test_the_page_is_used_by_keyboard_alone(failed: Path, visit: Visit) -> None:
    browser = visit(write(failed))
    keyboard = browser.find_element(By.TAG_NAME, "body")
    keyboard.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "find"
    browser.switch_to.active_element.send_keys("choose")
    wait(browser, "1 of 5")
    assert browser.execute_script(VISIBLE_STAGES) == ["choose"]
    assert browser.execute_script("return document.querySelectorAll('.node:not(.dim)').length") == 1
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.SPACE)  # the first state: failed
    wait(browser, "1 of 5")
    browser.execute_script("document.querySelector('.stage:not([hidden]) summary').focus()")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, ".stage[open] .entry").is_displayed()
    assert browser.execute_script(WITHOUT_NAME) == []


def wait(browser: Chrome, found: str) -> None:
    wait_until(lambda: browser.find_element(By.ID, "found").text == found)


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


@pytest.fixture
def phone(browser: Chrome) -> Iterator[Callable[..., Chrome]]:
    """A function that opens a page on a screen that is narrower than any window can be, with everything unfolded."""

    def function(page: Path, width: int = 360) -> Chrome:
        screen = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(page.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
        browser.execute_script("for (it of document.querySelectorAll('.stage')) it.style.contentVisibility = 'visible'")
        assert browser.execute_script(FITS)
        return browser

    yield function
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get("about:blank")


def test_a_phone_shows_whole_names(failed: Path, phone: Visit) -> None:
    page = write(failed)
    for width in (360, 740):
        browser = phone(page, width)
        assert browser.execute_script(BROKEN_NAMES) == []


@pytest.mark.parametrize("seconds", [0.34, 95.0, 4 * 3600.0])
def test_labels_of_the_timeline_do_not_overlap_on_a_phone(seconds: float, tmp_path: Path, phone: Visit) -> None:
    many_stages(5, tmp_path / "pipeline.yaml")
    play(tmp_path, [f"stage-{number}" for number in range(5)], seconds=lambda number: seconds)
    browser = phone(write(tmp_path))
    assert browser.execute_script(OVERLAPPING) == 0
    assert len([it for it in browser.find_elements(By.CSS_SELECTOR, ".axis .track span") if it.is_displayed()]) > 1


def height(browser: Chrome) -> int:
    return int(browser.execute_script("return document.documentElement.scrollHeight"))


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
    for trial in ("trial-1/trial-1-0_1", "trial-2/trial-2-0_1"):
        run = tracked(folder.parent / "results", f"run-1/{trial}")
        for step in range(3):
            run.log(step, {EVIL: 1 / (step + 1)})
        run.flush()
    page = write(folder)
    for width in (400, 1280):
        browser = visit(page, width)
        assert browser.execute_script(FITS)
    assert "broken" not in browser.title
    assert browser.get_log("browser") == []
    section = browser.find_element(By.CSS_SELECTOR, ".search")
    assert section.find_element(By.TAG_NAME, "h2").text == f"Search {' '.join(EVIL.split())}"
    # The keyboard reaches each trial, which is highlighted in all figures and in the table.
    link = section.find_element(By.CSS_SELECTOR, ".plot a:has(.best)")
    browser.execute_script("arguments[0].focus()", link)
    lit = section.find_elements(By.CSS_SELECTOR, ".lit")
    assert {it.get_dom_attribute("href") for it in lit} - {None} == {link.get_dom_attribute("href")}
    assert [it.text.split()[0] for it in lit if it.tag_name == "tr"] == ["5"]
    link.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "tr:target").is_displayed()


@pytest.fixture
def harmful(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "harmful"
    folder.mkdir(parents=True)
    (folder / "notes").write_text(HARMFUL_MARKDOWN)
    (folder / "page").write_text(HARM)
    matrix = {"annotationSpecs": [{"displayName": HARM}], "rows": [{"row": [1]}]}
    given = {
        "notes": artifact("Markdown", folder / "notes"),
        "page": artifact("HTML", folder / "page"),
        f"m{HARM}": artifact("ClassificationMetrics", metadata={"confusionMatrix": matrix, HARM: HARM}),
    }
    return finished(folder, given)


def test_harmful_artifacts_do_no_harm(harmful: Path, visit: Visit) -> None:
    browser = visit(harmful)
    browser.execute_script("document.querySelectorAll('details').forEach(it => { it.open = true; })")
    notes, frame = browser.find_elements(By.TAG_NAME, "iframe")
    for each in (notes, frame):
        browser.execute_script("arguments[0].scrollIntoView()", each)
        time.sleep(1)
    browser.switch_to.frame(notes)
    assert browser.find_elements(By.CSS_SELECTOR, "script, form, iframe") == []
    browser.switch_to.default_content()
    page = browser.current_window_handle
    assert browser.title.startswith("made: succeeded")
    assert len(browser.find_elements(By.CSS_SELECTOR, "script, base, meta[http-equiv=refresh], object, form")) == 1
    browser.switch_to.frame(frame)
    assert "send" in browser.find_element(By.TAG_NAME, "body").text, "the content is there"
    for name in ("send", "out", "within"):
        browser.execute_cdp_cmd("Runtime.evaluate", {"expression": "1"})
        for element in browser.find_elements(By.ID, name):
            element.click()
            time.sleep(0.2)
    browser.switch_to.default_content()
    assert browser.window_handles == [page]
    assert browser.current_url == harmful.as_uri()
    assert browser.title.startswith("made: succeeded")
    assert [url for url in requests(browser) if not url.startswith(("file:", "about:"))] == []


def test_a_failed_stages_log_is_open_at_its_end(tmp_path: Path, visit: Visit) -> None:
    lines = [f"line {number}" for number in range(500)]
    browser = visit(finished(tmp_path / "runs" / "failed", {}, "\n".join([*lines, "ValueError: the end"])))
    tail = browser.find_element(By.CSS_SELECTOR, ".tail")
    assert tail.text.endswith("line 499\nValueError: the end")
    bottom = browser.execute_script(
        "const [box, text] = [arguments[0], arguments[0].firstElementChild].map(it => it.getBoundingClientRect());"
        "return [text.height > box.height, Math.abs(text.bottom - box.bottom)]",
        tail,
    )
    assert bottom[0], "there is more than fits"
    assert bottom[1] < 20
