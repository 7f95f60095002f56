"""Cron expressions and timings, compared with a search of every second, and with KFP's API."""

from __future__ import annotations

import datetime
import random
import re

import pytest

from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.host import Timing


def utc(text: str) -> float:
    return datetime.datetime.fromisoformat(f"{text}+00:00").timestamp()


def text_of(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 3 * * *", "2026-11-23 03:00:00", "2026-11-24 03:00:00"),
        ("0 3 * * *", "2026-11-23 02:59:59", "2026-11-23 03:00:00"),
        ("*/15 * * * *", "2026-11-23 10:14:00", "2026-11-23 10:15:00"),
        ("5/20 * * * *", "2026-11-23 10:26:00", "2026-11-23 10:45:00"),
        ("30 8-18/4 * * MON-fri", "2026-11-20 16:30:00", "2026-11-23 08:30:00"),
        ("0 0 1,15 * 1", "2026-11-02 00:00:00", "2026-11-09 00:00:00"),  # either of two restrictions
        ("0 0 * * 7", "2026-11-23 00:00:00", "2026-11-29 00:00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 31 * *", "2026-11-01 00:00:00", "2026-12-31 00:00:00"),
        ("10 0 3 ? * *", "2026-11-23 03:00:00", "2026-11-23 03:00:10"),  # KFP's six fields
        ("@weekly", "2026-11-23 00:00:00", "2026-11-29 00:00:00"),
        ("59 23 31 dec *", "2026-12-31 23:59:00", "2027-12-31 23:59:00"),
    ],
)
def test_next_times(expression: str, after: str, expected: str) -> None:
    assert text_of(Timing(expression).next(utc(after))) == expected


def test_next_times_are_those_of_a_search() -> None:
    """Another reading of the rules, which tries minute after minute."""
    rng = random.Random(7)
    for _ in range(8):
        minute, hour = rng.randrange(60), sorted(rng.sample(range(24), 2))
        weekday, day = rng.randrange(7), rng.choice(["*", str(rng.randint(1, 28))])
        after = utc("2026-01-01 00:00:00") + rng.randrange(300 * 86400)
        found = Timing(f"{minute} {hour[0]},{hour[1]} {day} * {weekday}").next(after)
        when = datetime.datetime.fromtimestamp(after - after % 60 + 60, datetime.timezone.utc)
        while not fires(when, minute, hour, weekday, day):
            when += datetime.timedelta(minutes=1)
        assert text_of(found) == text_of(when.timestamp())


def fires(when: datetime.datetime, minute: int, hours: list[int], weekday: int, day: str) -> bool:
    """Tell whether ``MINUTE HOURS DAY * WEEKDAY`` means this minute."""
    in_week = (when.weekday() + 1) % 7 == weekday
    is_day = in_week if day == "*" else in_week or when.day == int(day)
    return when.minute == minute and when.hour in hours and is_day


@pytest.mark.parametrize(
    ("expression", "facts"),
    [
        ("* * *", ["'* * *'", "3 fields", "minute, hour", "0 3 * * *"]),
        ("60 * * * *", ["'60'", "minute", "0 to 59"]),
        ("0 0 0 * *", ["'0'", "day of the month", "1 to 31"]),
        ("0 0 * * 8", ["'8'", "day of the week"]),
        ("0 5-3 * * *", ["'5-3'", "hour"]),
        ("0 */0 * * *", ["'*/0'", "hour"]),
        ("0 0 L * *", ["'L'", "day of the month", "not a number from 1 to 31"]),
        ("0 0 * * fun", ["'fun'", "day of the week", "not a number from 0 to 6", "or one of sun, mon"]),
        ("0 0 30 2 *", ["never fires"]),
        ("1,, * * * *", ["''", "minute"]),
        ("every day", ["'every day'", "2 fields"]),
        ("@reboot", ["@reboot"]),
    ],
)
def test_wrong_expressions(expression: str, facts: list[str]) -> None:
    with pytest.raises(ArgumentError, match=says("cron expression", *facts)):
        Timing(expression)


def test_kfp_gets_six_fields() -> None:
    timing = Timing("0 3 * * 5-7", start=utc("2026-12-01 00:00:00"), max_runs=2)
    assert timing.encode() == {
        "trigger": {"cron_schedule": {"cron": "0 0 3 * * 0,5,6", "start_time": "2026-12-01T00:00:00Z"}},
        "max_concurrency": "2",
        "no_catchup": True,
    }
    for given in (timing, Timing(every=90, end=2e9, catchup=True), Timing("1 2 3 4 5 6"), Timing("@daily")):
        again = Timing.of(given.encode())
        assert again is not None
        assert again.encode() == given.encode()
    assert str(Timing.of(Timing("@daily").encode())) == "0 0 * * *"
    assert Timing.of({"trigger": {"cron_schedule": {"cron": "@every 1h30m"}}}) is None, "only KFP knows this"


def test_times_of_a_timing() -> None:
    cron = Timing("0 3 * * *", start=utc("2026-12-01 12:00:00"), end=utc("2026-12-03 12:00:00"))
    created = utc("2026-11-23 00:00:00")
    assert text_of(cron.next(created)) == "2026-12-02 03:00:00"
    every = Timing(every=3600)
    assert text_of(every.next(created)) == "2026-11-23 01:00:00"


@pytest.mark.parametrize(
    ("timing", "now", "due"),
    [
        (Timing("0 3 * * *"), "2026-11-22 23:00:00", "2026-11-23 03:00:00"),
        (Timing("0 3 * * *"), "2026-11-23 03:00:00", "2026-11-23 03:00:00"),
        (Timing("0 3 * * *"), "2026-11-26 02:59:59", "2026-11-25 03:00:00"),
        (Timing("0 3 * * *", end=utc("2026-11-24 12:00:00")), "2026-12-26 00:00:00", "2026-11-24 03:00:00"),
        (Timing("0 3 * * *", end=utc("2026-11-23 02:00:00")), "2026-11-23 00:00:00", ""),
        (Timing("0 3 * * *", catchup=True), "2026-11-26 02:59:59", "2026-11-23 03:00:00"),
        (Timing("* * * * *"), "2031-11-26 00:00:30", "2031-11-26 00:00:00"),
        (Timing("* * * * *", end=utc("2031-11-26 00:00:30")), "2031-12-01 00:00:00", "2031-11-26 00:00:00"),
        # The late run of an interval moves the next ones.
        (Timing(every=3600), "2026-11-23 01:59:59", "2026-11-23 01:00:00"),
        (Timing(every=3600), "2026-11-23 05:00:07", "2026-11-23 05:00:07"),
        (Timing(every=3600, end=utc("2026-11-23 04:30:00")), "2026-11-23 05:00:07", "2026-11-23 04:30:00"),
        (Timing(every=3600, catchup=True), "2026-11-23 05:00:07", "2026-11-23 01:00:00"),
    ],
)
def test_runs_that_were_missed(timing: Timing, now: str, due: str) -> None:
    found = timing.due(utc("2026-11-23 00:00:00"), utc(now))
    assert (found and text_of(found)) == (due or None)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ({}, ["--cron", "--every"]),
        ({"cron": "0 3 * * *", "every": 60.0}, ["--cron", "--every"]),
        ({"every": 0.5}, ["at least 1 s", "0.5"]),
        ({"every": 1e11}, ["at most 100 years"]),
        ({"every": 0.0}, ["at least 1 s"]),
        ({"every": float("nan")}, ["at least 1 s", "nan"]),
        ({"every": 60.0, "max_runs": 11}, ["1 to 10", "11"]),
        ({"every": 60.0, "start": 20.0, "end": 10.0}, ["--start", "--end"]),
    ],
)
def test_wrong_timings(words: dict[str, float], facts: list[str]) -> None:
    with pytest.raises(ArgumentError) as error:
        Timing(**words)  # type: ignore[arg-type]
    assert re.search(says(*facts), str(error.value))
