"""The place of the suite, and its report."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.place import Place, named_place
from tests.conformance.suite import Suite
from tests.fake_kfp import KfpHost

NAMED = named_place()


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """The suite for the host that the variables name, or for that of the tests."""
    folder = tmp_path_factory.mktemp("suite")
    with contextlib.ExitStack() as stack:
        place = NAMED
        if place is None:
            host = stack.enter_context(KfpHost(folder / "host", directory=folder, options={"parallelism": 2}))
            place = Place(host.url, str(folder / "base"), claim="claim")
            Path(place.base).mkdir()
        yield Suite(place, folder)


def pytest_sessionstart(session: pytest.Session) -> None:
    """End here if no pipeline can run, before all of them try. The workers start later."""
    if NAMED and not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
        with tempfile.TemporaryDirectory() as folder:
            try:
                _ = Suite(NAMED, Path(folder)).packages
            except Exception as error:
                pytest.exit(f"The suite cannot run at {NAMED.host}: {error}", returncode=1)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what the suite has made, when all workers have ended, unless a run is left to look at."""
    if NAMED and not session.testsfailed and not hasattr(session.config, "workerinput"):
        with tempfile.TemporaryDirectory() as folder:
            Suite(NAMED, Path(folder)).close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how the pipelines ended, where they did not end alike."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, ())]
    rows = [value for each in reports for name, value in each.user_properties if name == "kfp"]
    if not rows:
        return
    differing = sorted(row for row in rows if row[3])
    terminalreporter.section(f"{len(rows)} pipelines on the host and here: {len(differing)} differ")
    for name, there, here, found, expected in differing:
        terminalreporter.write_line(
            f"{name}: there {there}, here {here}" + (f" (expected: {expected})" if expected else "")
        )
        for line in found:
            terminalreporter.write_line(f"    {line}")
