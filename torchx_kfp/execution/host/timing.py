"""When a schedule of KFP starts runs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import duration
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.answers import mapping, text
from torchx_kfp.execution.host.cron import Cron
from torchx_kfp.execution.host.states import seconds

#: The most runs of a schedule that KFP has at once.
_MOST_RUNS = 10
#: The longest interval in seconds. Times after some more of them cannot be shown.
_LONGEST = 100 * 365 * 86400


@dataclass(frozen=True)
class Timing:
    """When a schedule starts runs: by a cron expression, or in regular intervals.

    Attributes:
        cron: minute, hour, day of the month, month and day of the week, such as ``"0 3 * * *"``, in UTC unless KFP's
            administrator has set another zone. KFP's own form, with seconds before them, is accepted, too.
        every: the seconds between two runs: 1 to those of 100 years.
        start: the time in seconds since the epoch before which no run starts; the first interval begins then.
        end: the time after which no run starts.
        max_runs: how many runs there are at once, 1 to 10; the next one waits.
        catchup: whether all runs that were missed, such as in a pause, are started later. Otherwise only the last is.
    """

    cron: str = ""
    every: float | None = None
    start: float | None = None
    end: float | None = None
    max_runs: int = 1
    catchup: bool = False

    def __post_init__(self) -> None:
        """Check everything.

        Raises:
            ArgumentError: something is wrong, or a time is missing.
        """
        if bool(self.cron) == (self.every is not None):
            raise ArgumentError("A schedule has either a cron expression or an interval (--cron or --every).")
        if self.cron:
            Cron.parse(self.cron)
        elif not (self.every and 1 <= self.every <= _LONGEST):
            raise ArgumentError(
                f"The interval of a schedule is at least 1 s, and at most 100 years, but {self.every!r} s is given."
            )
        if not 1 <= self.max_runs <= _MOST_RUNS:
            raise ArgumentError(f"A schedule has 1 to {_MOST_RUNS} runs at once (--max-runs), not {self.max_runs}.")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ArgumentError("The schedule ends before it starts (--start, --end).")

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Timing | None:
        """Return the timing in the JSON of a recurring run; None if it has none that is valid."""
        trigger = mapping(answer.get("trigger"))
        cron, periodic = mapping(trigger.get("cron_schedule")), mapping(trigger.get("periodic_schedule"))
        found = cron or periodic
        interval, most = text(periodic.get("interval_second")), text(answer.get("max_concurrency"))
        try:
            return cls(
                # Five fields are what people write.
                re.sub(r"^0 (?=(?:\S+ ){4}\S+$)", "", text(cron.get("cron"))),
                None if cron or not interval.isdecimal() else float(interval),
                seconds(found.get("start_time")),
                seconds(found.get("end_time")),
                int(most) if most.isdecimal() else 1,
                not answer.get("no_catchup"),
            )
        except ArgumentError:
            return None

    @property
    def expression(self) -> str:
        """The cron expression as KFP takes it: six fields, the seconds first. Empty for an interval."""
        return Cron.parse(self.cron).text if self.cron else ""

    def encode(self) -> dict[str, Any]:
        """Return the fields of a recurring run, as JSON of v2beta1."""
        times = {"start_time": self.start, "end_time": self.end}
        about: dict[str, Any] = {name: _moment(time) for name, time in times.items() if time is not None}
        if self.every is None:
            trigger = {"cron_schedule": {**about, "cron": self.expression}}
        else:
            trigger = {"periodic_schedule": {**about, "interval_second": str(round(self.every))}}
        # JSON has numbers of 64 bits as text.
        return {"trigger": trigger, "max_concurrency": str(self.max_runs), "no_catchup": not self.catchup}

    def begin(self, last: float | None, created: float) -> float:
        """Return the time from which the next run counts: that of the last one, the start, or the creation."""
        return last or self.start or created

    def next(self, after: float) -> float | None:
        """Return the first time for a run after a time, which is that of a run or of ``begin``; None if it is over."""
        after = max(after, self.start or 0.0)
        found = Cron.parse(self.cron).next(after) if self.every is None else int(after) + round(self.every)
        return None if found is None or (self.end is not None and found > self.end) else found

    def due(self, last: float, now: float) -> float | None:
        """Return the time for which KFP makes the next run; None if there is none.

        If it is not after now, KFP starts the run as soon as it can. Without a catch-up, that is the last time of an
        expression that was missed; a late run of an interval is for now, from which the next interval counts (KFP's
        ``scheduledworkflow/util``: ``GetNextScheduledEpochNoCatchup``, ``GetNextScheduledTimeNoCatchup``).

        Args:
            last: the time of the last run, or of ``begin``.
            now: the time now.
        """
        first = self.next(last)
        if first is None or first > now or self.catchup:
            return first
        if self.every is not None:
            late = now >= first + round(self.every)
            return float(int(now) if self.end is None else min(int(now), int(self.end))) if late else first
        return self._last_before(first, now)

    def _last_before(self, first: float, now: float) -> float:
        """Return the last time of an expression up to now, at least ``first``, which is one."""
        last, back = first, 1.0
        while now - back > first:
            found = self.next(now - back)
            if found is not None and found <= now:
                last = found
                break
            back *= 2
        while (following := self.next(last)) is not None and following <= now:
            last = following
        return last

    def __str__(self) -> str:
        """The timing for people."""
        return self.cron if self.every is None else f"every {duration(self.every, whole=True)}"


def _moment(time: float) -> str:
    return datetime.datetime.fromtimestamp(int(time), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
