"""When a schedule of KFP starts runs, as values for KFP, which evaluates them."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import duration
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.answers import mapping, text
from torchx_kfp.execution.host.states import seconds


@dataclass(frozen=True)
class Timing:
    """When a schedule starts runs: by a cron expression, or in regular intervals.

    Attributes:
        cron: minute, hour, day of the month, month and day of the week, such as ``"0 3 * * *"``, in UTC unless KFP's
            administrator has set another zone. Other forms, such as KFP's with the seconds first, are sent as they are.
        every: the seconds between two runs, at least 1.
        start: the time in seconds since the epoch before which no run starts; the first interval begins then.
        end: the time after which no run starts.
        max_runs: how many runs there are at once; the next one waits. KFP takes 1 to 10.
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
            ArgumentError: there is not exactly one of ``cron`` and ``every``, or a time is wrong.
        """
        if bool(self.cron) == (self.every is not None):
            raise ArgumentError("A schedule has either a cron expression or an interval (--cron or --every).")
        if self.every is not None and not 1 <= self.every < math.inf:
            raise ArgumentError(f"The interval of a schedule is at least 1 s, but {self.every!r} s is given (--every).")
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
        """The cron expression as KFP takes it, with the seconds first. Empty for an interval."""
        return f"0 {self.cron}" if len(self.cron.split()) == 5 else self.cron

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

    def __str__(self) -> str:
        """The timing for people."""
        return self.cron if self.every is None else f"every {duration(self.every, whole=True)}"


def _moment(time: float) -> str:
    return datetime.datetime.fromtimestamp(int(time), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
