"""A run that has failed, with harmful text in it, and a browser that opens pages from files."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp import dsl
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from torchx.specs import AppDef, Role

from tests.execution.report.runs import EVIL, record
from tests.skipped import missing
from torchx_kfp import task_from_app

#: Options that prevent requests to hosts, and a separate profile.
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--allow-file-access-from-files",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A headless Chromium with logs of its requests and its console."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        missing("browser", "needs chromium and chromedriver (on Debian: apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = program
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = webdriver.Chrome(options, Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def visit(browser: webdriver.Chrome) -> Iterator[object]:
    """A function that opens a page in a window of this size."""

    def function(page: Path, width: int = 1280, height: int = 900) -> webdriver.Chrome:
        browser.set_window_size(width, height)
        for log in ("performance", "browser"):
            browser.get_log(log)
        browser.get(page.as_uri())
        return browser

    yield function
    browser.get("about:blank")


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


@dsl.pipeline(name="evil")
def evil(tracker_base: str, rates: list, text: str):
    with dsl.ParallelFor(rates) as rate:
        trial = task_from_app(app("trial", "-c", TRIAL, f"{rate}", f"{text}"), tracker_base=tracker_base)
    reads = {"trial": dsl.Collected(trial.outputs["run_id"])}
    chosen = task_from_app(app("choose", "-c", CHOOSE), tracker_base=tracker_base, reads=reads)
    task_from_app(app("never", "-c", "pass"), tracker_base=tracker_base, reads=chosen)


@pytest.fixture(scope="package")
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
