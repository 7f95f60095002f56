"""A short run of ``dev/benchmarks/load.py``: many processes on one base, some of which are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.benchmarks.load import load


@pytest.mark.load
@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.s3)])
def test_nothing_is_lost_and_nothing_mixed(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = str(tmp_path) if store == "disk" else request.getfixturevalue("s3_base")
    for seconds in (4, 30):  # a busy machine needs more
        wrong, done = load(base, seconds=seconds, processes=4, kill_every=seconds / 5)
        assert wrong == []
        if int(done.split()[-4]) > 50:
            return
    pytest.fail(done)
