"""When schedules start runs: what KFP is told."""

from __future__ import annotations

import re

import pytest

from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.host import Timing


def test_kfp_gets_six_fields() -> None:
    timing = Timing("0 3 * * 5-7", start=1796083200, max_runs=2)
    assert timing.encode() == {
        "trigger": {"cron_schedule": {"cron": "0 0 3 * * 5-7", "start_time": "2026-12-01T00:00:00Z"}},
        "max_concurrency": "2",
        "no_catchup": True,
    }
    for given in (timing, Timing(every=90, end=2e9, catchup=True), Timing("1 2 3 4 5 6"), Timing("@daily")):
        assert Timing.of(given.encode()) == given
    assert [str(Timing("0 3 * * *")), str(Timing(every=5400))] == ["0 3 * * *", "every 1h 30m"]
    assert Timing.of({"trigger": {}}) is None


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ({}, ["--cron", "--every"]),
        ({"cron": "0 3 * * *", "every": 60.0}, ["--cron", "--every"]),
        ({"every": 0.5}, ["at least 1 s", "0.5"]),
        ({"every": float("inf")}, ["at least 1 s", "inf"]),
        ({"every": 0.0}, ["at least 1 s"]),
        ({"every": float("nan")}, ["at least 1 s", "nan"]),
        ({"every": 60.0, "start": 20.0, "end": 10.0}, ["--start", "--end"]),
    ],
)
def test_wrong_timings(words: dict[str, float], facts: list[str]) -> None:
    with pytest.raises(ArgumentError) as error:
        Timing(**words)
    assert re.search(says(*facts), str(error.value))
