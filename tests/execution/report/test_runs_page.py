"""The page of runs, ``torchx-kfp ui``, in a real browser: quick with 2,000 runs, and without running users' text."""

# Annotations are not postponed, as in the other tests of pages.

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from tests.entrypoints.cli.pages import Served, served
from tests.execution.host.calling import wait_until
from tests.execution.report.runs import EVIL, play, tracked
from tests.execution.report.test_browser import FITS, WITHOUT_NAME, requests
from tests.programs import Program
from torchx_kfp.local import State

pytestmark = pytest.mark.browser

RUNS = 2000
ROWS = "tbody tr"


@pytest.fixture(scope="module")
def page(fork_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of 2,000 runs, whose names and results a browser could run."""
    folder = tmp_path_factory.mktemp("runs")
    evil = EVIL.replace("/", "\\")
    for number in range(RUNS):
        play(
            folder / "local_outputs" / (f"digits-{number:04}{evil if number % 100 == 0 else ''}"),
            ["prepare", "train[0]", "train[1]"],
            pipeline="digits",
            result=lambda stage, number=number: {"loss": number + stage / 10, "note": EVIL},
            state=lambda stage, number=number: State.FAILED if number % 10 == stage == 2 else State.SUCCEEDED,
        )
    tracked(folder / "results", "digits-1999/prepare/prepare_1").put(loss=1.0)
    with served(Program(fork_server, folder), "--tracker-base", "results") as found:
        yield found


@pytest.fixture
def chrome(browser: Chrome, page: Served) -> Iterator[Chrome]:
    """A browser that shows the list."""
    show(browser, page.url)
    yield browser
    browser.get("about:blank")


def show(browser: Chrome, url: str, width: int = 1280) -> float:
    """Open a page, and return how many seconds it took."""
    browser.set_window_size(width, 900)
    for log in ("performance", "browser"):
        browser.get_log(log)
    start = time.monotonic()
    browser.get(url)
    return time.monotonic() - start


def rows(browser: Chrome, path: str) -> list[str]:
    """Return the rows of a list when its address has a part of a query."""
    is_complete = "return document.readyState == 'complete'"
    wait_until(lambda: path in browser.current_url and browser.execute_script(is_complete))
    return [it.text for it in browser.find_elements(By.CSS_SELECTOR, ROWS)]


def test_two_thousand_runs_are_filtered_sorted_and_compared(chrome: Chrome, page: Served) -> None:
    assert "2,000 of 2,000 runs" in chrome.find_element(By.TAG_NAME, "main").text
    assert len(rows(chrome, "")) == 100
    start = time.monotonic()
    where = chrome.find_elements(By.NAME, "where")[-1]
    where.send_keys("train/loss < 30", Keys.ENTER)
    assert len(rows(chrome, "where=")) == 30
    chrome.find_element(By.LINK_TEXT, "loss").click()  # that of train comes first: the largest on top
    assert "digits-0029" in rows(chrome, "sort=-")[0]
    chrome.find_element(By.LINK_TEXT, "loss ↓").click()
    assert "digits-0000" in rows(chrome, "sort=t")[0]
    for box in chrome.find_elements(By.NAME, "run")[1:3]:
        box.click()
    chrome.find_element(By.XPATH, "//button[starts-with(., 'Compare')]").click()
    rows(chrome, "compare?")
    assert chrome.title == "Compare runs"
    assert time.monotonic() - start < 60  # it takes 3 s on a quiet machine
    assert show(chrome, page.url) < 30
    chrome.find_element(By.LINK_TEXT, "Next").click()
    rows(chrome, "page=2")
    keys = [it.get_attribute("value") or "" for it in chrome.find_elements(By.NAME, "run")[:21]]
    assert page.get("compare", run=keys).notices == ["Choose 2 to 20 runs to compare."]
    assert "Page 2 of 20" in chrome.find_element(By.TAG_NAME, "main").text


def test_a_browser_runs_nothing_of_users_and_asks_no_host(chrome: Chrome, page: Served) -> None:
    chrome.find_element(By.NAME, "name").send_keys("<script>", Keys.ENTER)
    found = rows(chrome, "name=%3Cscript")
    assert (len(found), EVIL[:10] in found[0]) == (20, True)
    chrome.find_element(By.CSS_SELECTOR, f"{ROWS} a").click()
    assert chrome.title.startswith("digits: ")
    assert chrome.execute_script("return document.referrer") == ""
    chrome.back()
    rows(chrome, "name=%3Cscript")
    for box in chrome.find_elements(By.NAME, "run")[:20]:
        box.click()
    chrome.find_element(By.XPATH, "//button[starts-with(., 'Compare')]").click()
    rows(chrome, "compare?")
    assert chrome.find_element(By.TAG_NAME, "h1").text == "Compare 20 runs"
    assert {url.partition("?")[0].removeprefix(page.url) for url in requests(chrome)} == {"", "report", "compare"}
    assert chrome.get_log("browser") == []
    chrome.execute_script('document.body.innerHTML += \'<img src="data:," onerror="document.title = 1">\'')
    time.sleep(0.1)
    assert chrome.title != "1"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window_and_names_its_controls(chrome: Chrome, page: Served, width: int) -> None:
    show(chrome, page.url, width)
    assert chrome.execute_script(FITS)
    assert chrome.execute_script(WITHOUT_NAME) == []


def test_no_page_of_another_origin_shows_it(chrome: Chrome, page: Served, tmp_path: Path) -> None:
    (tmp_path / "frame.html").write_text(f'<iframe src="{page.url}" onload="document.title = \'loaded\'"></iframe>')
    show(chrome, (tmp_path / "frame.html").as_uri())
    assert any("frame-ancestors" in entry["message"] for entry in chrome.get_log("browser"))
