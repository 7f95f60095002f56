"""A browser that opens pages from files."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

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
        if os.environ.get("TORCHX_KFP_REQUIRE_BROWSER"):
            pytest.fail("There is no chromium, or no chromedriver, and TORCHX_KFP_REQUIRE_BROWSER is set.")
        pytest.skip("needs chromium and chromedriver (on Debian: apt-get install chromium chromium-driver)")
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
