"""The source of a run's data: its folder on this machine (``history.RunReader``) or a KFP host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from torchx_kfp.runs.record import RunRecord
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.runs.watch import Watch

#: Messages quote the logs of no more failed stages than this.
_QUOTED = 20


class Source(Protocol):
    """A run that can be read again and again while it goes on."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    @property
    def interval(self) -> float:
        """The seconds between two looks at a run that goes on."""

    def read(self) -> RunRecord:
        """Return the run as it is recorded now."""

    def look(self) -> RunRecord:
        """Return the run as ``read`` does, or as it was before if the host does not answer for a moment."""

    def follow(self) -> Iterator[RunRecord]:
        """Yield the run as it is recorded now, and again whenever that has changed, until the run has ended."""

    def fetch(self, stages: Collection[str]) -> bool:
        """Bring the log files of these stages, given by name, up to date; return False if one cannot be read."""


def attend(source: Source, watch: Watch, records: Iterable[RunRecord] | None = None) -> RunRecord:
    """Give a watch all events of a run, and those to come as they happen; return the record at the run's end.

    ``records`` are those that ``source.follow()`` yields, at least one.
    """
    seen = 0
    for record in source.follow() if records is None else records:
        for event in record.events[seen:]:
            watch.on_event(event)
        seen = len(record.events)
    # A result quotes the last lines of stages that failed.
    failed = [name for name, end in record.run.ends.items() if end.state is State.FAILED]
    source.fetch(failed[:_QUOTED])
    return record
