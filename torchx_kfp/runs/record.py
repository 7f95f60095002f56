"""A run as it is recorded: in a folder of this machine (``history``) or by a KFP host (``torchx_kfp.backend``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs.events import Event
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.vocabulary import State


@dataclass(frozen=True)
class RunRecord:
    """A run as it is recorded now.

    A run on this machine has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI and a ``name``.
    ``created`` is in seconds since the epoch; ``options`` are those of ``torchx_kfp.local.run``.
    """

    run_id: str
    pipeline: str
    created: float
    events: tuple[Event, ...] = field(repr=False)
    #: The state that results from the events.
    run: RunState = field(repr=False)
    #: Whether it goes on: the process that runs it here is alive, or the host has not ended it.
    is_running: bool
    #: Loads the compiled pipeline; raises PipelineFileError if that is not recorded.
    load: Callable[[], Pipeline] = field(repr=False, compare=False)
    folder: Path | None = None
    link: str = ""
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Sentences about parts of the record that could not be read.
    corrupt: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The run's state: running, succeeded, failed, canceled, or interrupted if its process was killed."""
        return self.run.state

    def absolute_base(self, base: str) -> str:
        """Return a tracker base of the run for other directories: a relative one is relative to that of its stages."""
        directory = self.options.get("directory")
        return os.path.join(directory, base) if isinstance(directory, str) and "://" not in base else base

    @property
    def duration(self) -> float:
        """The seconds for which a runner has worked on the run, up to now."""
        return self.run.duration(time.time())
