"""Where a run is read from, while it is in progress or afterwards: its folder on this machine, or a KFP host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol, runtime_checkable

from torchx_kfp.execution.runs.invocation import Invocation
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.resume_plan import EarlierRun
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Watch

#: Messages quote the logs of no more failed stages than this.
_QUOTED = 20


@runtime_checkable
class RunSource(Protocol):
    """A run that can be read repeatedly while it is in progress: ``RunReader`` and ``HostRun``."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    def read(self) -> RunRecord:
        """Return the run as it is recorded now."""

    def follow(self, *, closely: bool = False) -> Iterator[RunRecord]:
        """Yield the run as it is recorded now, and again whenever that has changed, until the run has ended.

        ``closely`` yields it after each look, and looks often, as those need who read its logs.
        """

    def fetch(self, stages: Collection[str]) -> bool:
        """Update the log files of the named stages; return False if one cannot be read."""

    def invocation(self, stage: str | None = None) -> Invocation:
        """Return what the last attempt at a stage was started with.

        Args:
            stage: see ``choose_stage``.

        Raises:
            ArgumentError: there is no such stage, or it was not started.
            HostError: the host does not say it.
        """

    def earlier(self) -> EarlierRun:
        """Return what is known of the run for one that continues it: see ``plan_run``."""


def attend(source: RunSource, watch: Watch, records: Iterable[RunRecord] | None = None) -> RunRecord:
    """Give a watch all events of a run, and those to come as they happen; return the record at the run's end.

    ``records`` are those that ``source.follow()`` yields, at least one.
    """
    seen = 0
    for record in source.follow() if records is None else records:
        for event in record.events[seen:]:
            watch.on_event(event)
        seen = len(record.events)
    # A result quotes the last lines of stages that failed.
    failed = [end.name for end in record.run.ends if end.state is State.FAILED]
    source.fetch(failed[:_QUOTED])
    return record
