"""What commands read a run from: its folder on this machine (``history.RunReader``) or a KFP host."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from torchx_kfp.runs.record import RunRecord


class Source(Protocol):
    """A run that can be read again and again while it goes on."""

    @property
    def interval(self) -> float:
        """The seconds between two looks at a run that goes on."""

    def read(self) -> RunRecord:
        """Return the run as it is recorded now."""

    def follow(self) -> Iterator[RunRecord]:
        """Yield the run as it is recorded now, and again whenever that has changed, until the run has ended."""

    def fetch(self, stages: Collection[str]) -> None:
        """Bring the log files of these stages, given by name, up to date."""
