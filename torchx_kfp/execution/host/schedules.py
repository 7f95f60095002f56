"""Schedules of a KFP host, which KFP calls recurring runs: create, list and delete them."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from torchx_kfp.common.text import UUID, did_you_mean, duration, listed, printable
from torchx_kfp.contract.protocol import named_workspaces
from torchx_kfp.errors import ArgumentError, HostNotFoundError, TorchxKfpError
from torchx_kfp.execution.host.answers import as_object, as_text, refuse_run_id
from torchx_kfp.execution.host.connection import V2BETA1
from torchx_kfp.execution.host.host_runs import DEFAULT, Host, tracker_base_of
from torchx_kfp.execution.host.run_filter import RunFilter, of_name, timestamp
from torchx_kfp.execution.host.settings import Submission
from torchx_kfp.execution.host.states import seconds
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.record import why_not_read
from torchx_kfp.tracking.recorder import Recorder

_SCHEDULES = f"{V2BETA1}/recurringruns"


@dataclass(frozen=True)
class Timing:
    """When a schedule starts runs: by a cron expression, or in regular intervals.

    Attributes:
        cron: minute, hour, day of the month, month and day of the week, such as ``"0 3 * * *"``, in UTC unless KFP's
            administrator has set another zone. Other forms, such as KFP's with the seconds first, are sent as they are,
            unless they have fewer fields.
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

    def verify(self) -> None:
        """Check what KFP would not understand.

        Raises:
            ArgumentError: there is not exactly one of ``cron`` and ``every``, or a time is wrong.
        """
        if bool(self.cron) == (self.every is not None):
            raise ArgumentError("A schedule has either a cron expression or an interval (--cron or --every).")
        if self.cron and "@" not in self.cron and len(self.cron.split()) < 5:
            raise ArgumentError(f"The cron expression {self.cron!r} has fewer than five fields, as in '0 3 * * *'.")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ArgumentError("The schedule ends before it starts (--start, --end).")
        if self.every is not None and not 1 <= self.every < math.inf:
            raise ArgumentError(f"The interval of a schedule is at least 1 s, but {self.every!r} s is given (--every).")

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Timing:
        """Return the timing in the JSON of a recurring run."""
        trigger = as_object(answer.get("trigger"))
        cron, periodic = as_object(trigger.get("cron_schedule")), as_object(trigger.get("periodic_schedule"))
        texts = as_text(periodic.get("interval_second")), as_text(answer.get("max_concurrency"))
        interval, most = (int(text) if re.fullmatch("[0-9]{1,10}", text) else None for text in texts)
        return cls(
            # Five fields are what people write.
            re.sub(r"^0 (?=(?:\S+ ){4}\S+$)", "", as_text(cron.get("cron"))),
            interval,
            seconds((cron or periodic).get("start_time")),
            seconds((cron or periodic).get("end_time")),
            most or 1,
            not answer.get("no_catchup"),
        )

    @property
    def expression(self) -> str:
        """The cron expression as KFP takes it, with the seconds first. Empty for an interval."""
        return f"0 {self.cron}" if len(self.cron.split()) == 5 else self.cron

    def encode(self) -> dict[str, Any]:
        """Return the fields of a recurring run, as JSON of v2beta1. The errors are those of ``verify``."""
        self.verify()
        times = {"start_time": self.start, "end_time": self.end}
        about: dict[str, Any] = {name: timestamp(time) for name, time in times.items() if time is not None}
        if self.every is None:
            trigger = {"cron_schedule": {**about, "cron": self.expression}}
        else:
            trigger = {"periodic_schedule": {**about, "interval_second": str(round(self.every))}}
        # JSON has numbers of 64 bits as text.
        return {"trigger": trigger, "max_concurrency": str(self.max_runs), "no_catchup": not self.catchup}

    def __str__(self) -> str:
        """The timing for people."""
        return self.cron if self.every is None else f"every {duration(self.every, whole=True)}"


@dataclass(frozen=True)
class Schedule:
    """A schedule of a host.

    Attributes:
        schedule_id: KFP's id of the recurring run.
        name: its name in KFP's UI, which several may share.
        timing: when it starts runs.
        is_paused: whether somebody has paused it.
        created: the time of its creation, in seconds since the epoch; 0 if it is unknown.
        tracker_base: the tracker base of its runs; empty if they have none.
    """

    schedule_id: str
    name: str
    timing: Timing
    is_paused: bool
    created: float
    tracker_base: str = ""

    @property
    def state(self) -> str:
        """``paused`` or ``active``."""
        return "paused" if self.is_paused else "active"


class Schedules:
    """The schedules of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._connection = host.connection

    def create(
        self,
        pipeline: Pipeline,
        arguments: Mapping[str, Any] | None,
        timing: Timing,
        submission: Submission = DEFAULT,
    ) -> Schedule:
        """Create a schedule and return it.

        Args:
            pipeline: the pipeline that its runs run.
            arguments: the values of its parameters.
            timing: when runs start.
            submission: the options of its runs; its name is that of the schedule, by default that of the pipeline.

        Raises:
            ArgumentError: the arguments do not fit, or there is a schedule with this name.
            HostError: the host does not answer or refuses the schedule.
        """
        name = submission.name or pipeline.name
        fields = self._host.run_body(pipeline, arguments, submission)
        if others := [each for each in self.list(of_name(name)) if each.name == name]:
            raise ArgumentError(
                f"{self._connection.name} has a schedule {printable(name)!r} already. Delete it first (torchx-kfp "
                f"schedule delete {others[0].schedule_id}), or give this one another --name."
            )
        body = {"display_name": name, **fields, **timing.encode(), "mode": "ENABLE"}
        if_lost = (
            f"The host may have accepted the schedule {printable(name)!r}: look for it with `torchx-kfp schedule list`."
        )
        return self._schedule(self._connection.post(_SCHEDULES, body, if_lost=if_lost))

    def list(self, query: str = "") -> Iterator[Schedule]:
        """Yield the schedules, the newest first.

        Args:
            query: a filter as JSON, as KFP's API takes it.

        Raises:
            HostError: the host does not answer.
        """
        return map(self._schedule, self._answers(query))

    def find(self, name: str) -> Schedule:
        """Return the schedule with a name in KFP's UI, or an id.

        Raises:
            ArgumentError: there is none, or there are several with this name.
            HostError: the host does not answer.
        """
        if UUID.fullmatch(name.lower()):
            try:
                return self._schedule(self._connection.get(f"{_SCHEDULES}/{quote(name.lower(), safe='')}"))
            except HostNotFoundError as error:
                raise ArgumentError(f"There is no schedule {name!r}. ({error})") from None
        found = [each for each in self._answers(of_name(name)) if each.get("display_name") == name]
        if len(found) == 1:
            return self._schedule(found[0])
        where = f"{self._connection.name}{self._host.in_namespace()}"
        if found:
            ids = listed(as_text(each["recurring_run_id"]) for each in found)
            raise ArgumentError(f"{where} has {len(found):,} schedules {name!r}: {ids}. Give the id.")
        names = [each.name for each in self.list()]
        raise ArgumentError(
            f"There is no schedule {name!r} on {where}.{did_you_mean(name, names)} Schedules: "
            f"{listed(map(printable, names)) or 'none'}."
        )

    def find_id(self, name: str) -> str:
        """Return the id of the schedule with a name, or the given id, which may be that of a deleted schedule.

        The errors are those of ``find``.
        """
        return name.lower() if UUID.fullmatch(name.lower()) else self.find(name).schedule_id

    def delete(self, schedule: Schedule, warn: Callable[[str], object] | None = None) -> None:
        """Delete a schedule. Its runs stay in KFP's list, and their results under the tracker base.

        Runs in progress continue; KFP before 2.16 ends them. The code that travels with the runs is kept until ``gc``
        removes the runs.

        Args:
            schedule: the schedule.
            warn: gets a sentence if the tracker base of its code cannot be changed. By default, it is a warning.
        """
        path = f"{_SCHEDULES}/{schedule.schedule_id}"
        has_code = bool(named_workspaces(json.dumps(self._connection.get(path))))
        found = self._host.list(self.runs_of(schedule)) if has_code else ()
        runs = [run.run_id for run in found if not run.state.is_over]
        # By default, Kubernetes would delete the workflows of the runs, too. KFP before 2.16 ignores this (its #12574).
        self._connection.delete(path, propagation_policy="ORPHAN")
        if not has_code:
            return
        base = schedule.tracker_base
        try:
            why = why_not_read(base, [self._connection.settings.tracker_base])
            if not why:
                Recorder.open(base).end_schedule(schedule.schedule_id, runs)
        except TorchxKfpError as error:
            why = str(error)
        if why:
            sentence = f"The code of the schedule stays under {base!r}, where gc keeps it: {why}"
            warnings.warn(sentence, stacklevel=2) if warn is None else warn(sentence)

    @staticmethod
    def runs_of(schedule: Schedule) -> RunFilter:
        """Return the filter for the runs of a schedule, with those that are archived."""
        return RunFilter(archived=True, schedule_id=schedule.schedule_id)

    def _answers(self, query: str = "") -> Iterator[Mapping[str, Any]]:
        found = self._host.objects(_SCHEDULES, "recurringRuns", query)
        return (each for each in found if each.get("recurring_run_id"))

    def _schedule(self, answer: Mapping[str, Any]) -> Schedule:
        identity = answer.get("recurring_run_id")
        refuse_run_id(identity, f"A request for {self._connection.name}{_SCHEDULES}")
        return Schedule(
            schedule_id=as_text(identity),
            name=as_text(answer.get("display_name")),
            timing=Timing.of(answer),
            is_paused=answer.get("status") == "DISABLED" or answer.get("mode") == "DISABLE",
            created=seconds(answer.get("created_at")) or 0.0,
            tracker_base=tracker_base_of(answer),
        )
