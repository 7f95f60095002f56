"""Schedules of a KFP host, which KFP calls recurring runs: create, list, pause, resume and delete them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from torchx_kfp.common.text import UUID, listed, printable
from torchx_kfp.errors import ArgumentError, HostNotFoundError
from torchx_kfp.execution.host.answers import mapping, refuse_run_id, text
from torchx_kfp.execution.host.connection import V2BETA1
from torchx_kfp.execution.host.host_runs import DEFAULT, Host
from torchx_kfp.execution.host.listing import named
from torchx_kfp.execution.host.run_filter import RunFilter
from torchx_kfp.execution.host.settings import Submission
from torchx_kfp.execution.host.states import seconds
from torchx_kfp.execution.host.timing import Timing
from torchx_kfp.execution.pipeline.spec import Pipeline

_SCHEDULES = f"{V2BETA1}/recurringruns"


@dataclass(frozen=True)
class Schedule:
    """A schedule of a host.

    Attributes:
        schedule_id: KFP's id of the recurring run.
        name: its name in KFP's UI, which several may share.
        timing: when it starts runs; None if KFP describes that in a way that this package does not know.
        is_paused: whether somebody has paused it.
        created: the time of its creation, in seconds since the epoch; 0 if it is unknown.
        arguments: the arguments of its runs.
    """

    schedule_id: str
    name: str
    timing: Timing | None
    is_paused: bool
    created: float
    arguments: Mapping[str, Any]

    def next(self, last: float | None = None, *, now: float | None = None) -> float | None:
        """Return when the next run is due, in seconds since the epoch; None if none is, or that is not known.

        KFP does not say this: it follows from the timing, in UTC. A run may also wait for earlier ones.

        Args:
            last: the time for which the last run was made, if there was one.
            now: the time now.
        """
        now = time.time() if now is None else now
        if self.timing is None or self.is_paused:
            return None
        return self.timing.next_from(self.timing.begin(last, self.created), now)

    def state(self, now: float | None = None) -> str:
        """Return ``paused``, ``ended`` or ``active``."""
        if self.is_paused:
            return "paused"
        return "ended" if self.timing is not None and self.next(now=now) is None else "active"


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
        *,
        reference: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Schedule:
        """Create a schedule and return it.

        Args:
            pipeline: the pipeline that its runs run.
            arguments: the values of its parameters.
            timing: when runs start.
            submission: the options of its runs; its name is that of the schedule, by default that of the pipeline.
            reference: the version of a pipeline of the host that it runs: see ``Host.submit``.
            environ: the environment.

        Raises:
            ArgumentError: the arguments do not fit, no run would ever start, or there is a schedule with this name.
            HostError: the host does not answer or refuses the schedule.
        """
        # A start in the past counts: runs that were missed are caught up.
        if timing.next(timing.begin(None, time.time())) is None:
            raise ArgumentError("The schedule would start no run: it ends before its first one is due (--end).")
        name = submission.name or pipeline.name
        fields = self._host.describe(pipeline, arguments, submission, reference=reference, environ=environ)
        if others := [each for each in self.list(named(name)) if each.name == name]:
            raise ArgumentError(
                f"{self._connection.name} has a schedule {printable(name)!r} already ({others[0].schedule_id}). Delete "
                "it first (torchx-kfp schedules delete), or give this one another --name."
            )
        body = {"display_name": name, **fields, **timing.encode(), "mode": "ENABLE"}
        if_lost = (
            f"The host may have accepted the schedule {printable(name)!r}: look for it with `torchx-kfp schedules`."
        )
        return self._schedule(self._connection.post(_SCHEDULES, body, if_lost=if_lost))

    def list(self, query: str = "") -> Iterator[Schedule]:
        """Yield the schedules, the newest first.

        Args:
            query: a filter as JSON, as KFP's API takes it.

        Raises:
            HostError: the host does not answer.
        """
        found = self._host.objects(_SCHEDULES, "recurringRuns", query)
        return (self._schedule(each) for each in found if each.get("recurring_run_id"))

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
        found = [each for each in self.list(named(name)) if each.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            where = f"{self._connection.name}{self._host.in_namespace()}"
            ids = listed(each.schedule_id for each in found)
            raise ArgumentError(f"{where} has {len(found):,} schedules {name!r}: {ids}. Give the id.")
        raise self._host.unknown("schedule", name, (each.name for each in self.list()))

    def pause(self, schedule: Schedule) -> None:
        """Let a schedule start no further runs. Those that have started continue."""
        self._connection.post(f"{_SCHEDULES}/{schedule.schedule_id}:disable")

    def resume(self, schedule: Schedule) -> None:
        """Let a paused schedule start runs again: those that it has missed, too, if it catches up."""
        self._connection.post(f"{_SCHEDULES}/{schedule.schedule_id}:enable")

    def delete(self, schedule: Schedule) -> None:
        """Delete a schedule. Its runs stay in KFP's list, and their results under the tracker base."""
        self._connection.delete(f"{_SCHEDULES}/{schedule.schedule_id}")

    @staticmethod
    def runs_of(schedule: Schedule) -> RunFilter:
        """Return the filter for the runs of a schedule, with those that are archived."""
        return RunFilter(archived=None, schedule_id=schedule.schedule_id)

    def _schedule(self, answer: Mapping[str, Any]) -> Schedule:
        identity = answer.get("recurring_run_id")
        refuse_run_id(identity, f"A request for {self._connection.name}{_SCHEDULES}")
        return Schedule(
            schedule_id=text(identity),
            name=text(answer.get("display_name")),
            timing=Timing.of(answer),
            is_paused=answer.get("status") == "DISABLED" or answer.get("mode") == "DISABLE",
            created=seconds(answer.get("created_at")) or 0.0,
            arguments=mapping(mapping(answer.get("runtime_config")).get("parameters")),
        )
