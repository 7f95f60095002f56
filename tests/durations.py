"""Order tests by what they took before, and measure it: ``make durations`` writes ``tests/durations.json``.

A unit of tests runs in one process: a file, or what a file runs from another one. Long ones come first. Those that wait
and those that compute come in turn, so that tests compute while others wait.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

RECORD = Path(__file__).with_name("durations.json")
#: Files whose tests are named after the page, or the module of cases, that they run.
SPLIT = ("tests/test_docs.py", "tests/cases/test_here.py", "tests/transcripts/test_transcripts.py")
#: CPU seconds and seconds of a unit that is not known: most others take less than a second.
UNKNOWN = [0.5, 1.0]


def unit(test: str) -> str:
    """Return the unit of a test, from its ID."""
    file = test.partition("::")[0]
    part = re.search(r"\[([\w/-]+)", test) if file in SPLIT else None
    return f"{file}[{part[1]}]" if part else file


def in_order(units: Iterable[str]) -> list[str]:
    """Return units in the order in which they should begin: both kinds end at the same time."""
    known: dict[str, list[float]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    kinds: dict[bool, list[str]] = {True: [], False: []}
    computed, took = (sum(each) for each in zip(UNKNOWN, *known.values(), strict=True))
    for each in units:
        cpu, seconds = known.get(each, UNKNOWN)
        # It computes less of its time than all tests do: other processes were busy when it was measured.
        kinds[cpu * took < computed * seconds].append(each)
    begin: dict[str, float] = {}
    for kind in kinds.values():
        times = {each: known.get(each, UNKNOWN)[1] for each in kind}
        passed, total = 0.0, sum(times.values())
        for each in sorted(kind, key=lambda each: (-times[each], each)):
            begin[each] = passed / total
            passed += times[each]
    return sorted(begin, key=lambda each: (begin[each], each))


class Units(LoadFileScheduling):
    """Hands out units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


class Recorder:
    """Measures the units that run in this process, and writes what all processes have measured."""

    def __init__(self) -> None:
        self.measured: dict[str, list[float]] = {}
        self._start: tuple[float, float] | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._start = self._start or (cpu_seconds(), time.monotonic())
        result = yield
        if nextitem is None or unit(nextitem.nodeid) != unit(item.nodeid):
            took = cpu_seconds() - self._start[0], time.monotonic() - self._start[1]
            if took[1] >= 0.5:
                self.measured[unit(item.nodeid)] = [round(each, 1) for each in took]
            self._start = None
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.measured |= getattr(node, "workeroutput", {}).get("durations", {})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["durations"] = self.measured
        else:
            lines = ",\n".join(f"{json.dumps(name)}: {took}" for name, took in sorted(self.measured.items()))
            RECORD.write_text(f"{{\n{lines}\n}}\n")


def cpu_seconds() -> float:
    """Return what this process and those below it have computed."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(process.name)] = int(fields[1])
        ticks[int(process.name)] = sum(map(int, fields[11:15]))
    total, below = 0, {os.getpid()}
    while below:
        total += sum(ticks.get(each, 0) for each in below)
        below = {each for each, parent in parents.items() if parent in below}
    return total / os.sysconf("SC_CLK_TCK")
