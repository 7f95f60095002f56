"""`make test-lowest` and `make test-newest` collect only the files that have tests for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
