"""`make test-lowest` and `make test-newest` collect only the files that have tests for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.skipped import WAYS, summary

MAKEFILE = Path(__file__).parent.parent / "Makefile"


def test_marks_of_versions_are_where_the_makefile_looks_for_them(request: pytest.FixtureRequest) -> None:
    pattern = re.search(r"^marked = .*grep -rlE '([^']+)' --include='test_\*\.py' tests\)$", MAKEFILE.read_text(), re.M)
    assert pattern, "the Makefile does not say which files have marked tests"
    marked = {
        item.path
        for item in request.session.items
        if {"versions", "lowest", "newest"} & {mark.name for mark in item.iter_markers()}
    }
    missed = [str(path) for path in marked if not re.search(pattern[1], path.read_text())]
    assert not missed, f"Write the mark in the file of the test, as in pytest.mark.versions: {missed}"


def test_skipped_tests_are_counted_by_reason_with_what_runs_them() -> None:
    def report(reason: str, *marks: str) -> pytest.TestReport:
        place = ("tests/x.py", 1, f"Skipped: {reason}")
        return pytest.TestReport("x", ("x", 1, "x"), dict.fromkeys(marks, 1), "skipped", place, "setup")

    reports = [report("no engine answers at /a", "docker"), report("no engine answers at /b", "docker")]
    lines = summary([report("Graphviz is not installed"), *reports])
    assert [line.split(maxsplit=1) for line in lines] == [
        ["2", f"no engine answers at /a (to run them: {WAYS['docker']})"],
        ["1", "Graphviz is not installed"],
    ]


def test_what_runs_skipped_tests_is_a_target() -> None:
    targets = re.findall(r"^(test[a-z-]*):", MAKEFILE.read_text(), re.M)
    assert {way.removeprefix("make ") for way in WAYS.values() if way.startswith("make ")} <= set(targets)
