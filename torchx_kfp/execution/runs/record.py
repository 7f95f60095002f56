"""A run as it is recorded, in a local folder or on a KFP host, and the tracker bases that it names.

Commands that read a run read the tracker base that it names: in an object store or, if the run is in a folder, in a
local directory. A directory named by a host could have the user's own files, and a server may be private to this
machine, so such bases are read only if the user also names them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import listed, printable, shorten, shown
from torchx_kfp.errors import PipelineError, TrackerBaseError
from torchx_kfp.execution.pipeline.artifacts import is_object_store
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import ScopedTask, known_stages, walk_tasks, without_indices
from torchx_kfp.execution.runs.events import Event
from torchx_kfp.execution.runs.journal import CommandLine
from torchx_kfp.execution.runs.state import RunState, Session, StageState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import absolute_base


@dataclass(frozen=True)
class RunRecord:
    """The current record of a run.

    A local run has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI and a ``name``.
    ``created`` is in seconds since the epoch; ``options`` are those of ``torchx_kfp.local.run``, and ``command`` is
    the command line that started the local run; None for one from Python.
    """

    run_id: str
    pipeline: str
    created: float
    events: tuple[Event, ...] = field(repr=False)
    #: The state that results from the events.
    run: RunState = field(repr=False)
    #: Whether it is in progress: its local process is alive, or the host has not ended it.
    is_running: bool
    #: Loads the compiled pipeline; raises PipelineError if that is not recorded.
    load: Callable[[], Pipeline] = field(repr=False, compare=False)
    folder: Path | None = None
    link: str = ""
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    command: CommandLine | None = None
    #: The tracker bases that the user has named: see ``why_not_read``.
    named_bases: Collection[str] = ()
    #: Messages about parts of the record that could not be read.
    corrupt: tuple[str, ...] = ()
    #: The time at which it was read, in seconds since the epoch.
    read_at: float = field(default_factory=time.time, compare=False)

    @cached_property
    def spec(self) -> Pipeline | None:
        """The compiled pipeline; None if it is not recorded."""
        with contextlib.suppress(PipelineError):
            return self.load()
        return None

    @cached_property
    def places(self) -> Mapping[str, ScopedTask]:
        """The known stages of the pipeline, by their names without indices."""
        return {place.name: place for place in walk_tasks(self.spec) if place.is_stage} if self.spec is not None else {}

    @cached_property
    def stages(self) -> list[StageState]:
        """All stages, in the pipeline's order; of a loop, those of each iteration."""
        return self.run.stages

    @cached_property
    def tasks(self) -> Mapping[str, list[StageState]]:
        """The stages of each task, by the name of its stages without indices."""
        tasks: dict[str, list[StageState]] = {}
        for stage in self.stages:
            tasks.setdefault(stage.path, []).append(stage)
        return tasks

    @cached_property
    def sessions(self) -> list[Session]:
        """The periods in which a runner worked on the run. For a run in progress, the last one ends at ``read_at``."""
        *before, last = self.run.sessions
        end = max(self.read_at, last.end) if self.run.state is State.RUNNING else last.end
        return [*before, dataclasses.replace(last, end=end)]

    def absolute_base(self, base: str) -> str:
        """Make a tracker base of the run absolute: relative ones are relative to the directory of its stages."""
        directory = self.options.get("directory")
        return absolute_base(base, directory) if isinstance(directory, str) else base

    def why_not_read(self, base: str) -> str:
        """Return why a tracker base that the run names is not read locally; empty if it is read."""
        return why_not_read(base, self.named_bases, ran_locally=self.folder is not None)

    def verify_read(self, base: str) -> None:
        """Raise TrackerBaseError for a tracker base that is not read locally if only the run names it."""
        if why := self.why_not_read(base):
            raise TrackerBaseError(missing(base, why))

    @property
    def duration(self) -> float:
        """The seconds for which a runner worked on the run, up to now."""
        return self.run.duration(time.time())


def missing(base: str, why: str) -> str:
    """Return the message about a base that cannot be read."""
    return f"Results are missing: the tracker base {shown(base)} cannot be read locally: {why}."


def why_not_read(base: str, named_bases: Collection[str], *, ran_locally: bool = False) -> str:
    """Return why a base that a run names is not read locally; empty if it is read.

    Args:
        base: the base.
        named_bases: the bases that the user has named.
        ran_locally: whether the run is in a folder, so that its directories are local.
    """
    place = _place(base)
    is_chained = "::" in place  # fsspec may find the name of any server in a file
    is_local, is_memory = "://" not in place and not is_chained, place.startswith("memory://") and not is_chained
    if is_object_store(base) or (ran_locally and (is_local or is_memory)):
        return ""
    if is_memory:
        return "it is in the memory of the stages' processes"
    if is_local and not os.path.isabs(place):
        return "it is relative to the directory in which the stages run"
    if place not in map(_place, named_bases):
        where = "a directory of the pods" if is_local else "not in an object store"
        when = "this machine has the same volume there" if is_local else "you trust it"
        command = shorten(printable(shlex.join(["export", f"TORCHX_KFP_TRACKER_BASE={base}"])), 300)
        return f"it is {where}, and only the run names it. Use s3://bucket/results or, if {when}, name it: {command}"
    if is_local and not os.path.isdir(place):
        return "there is no such directory. Mount the same volume locally at this path, or use s3://bucket/results"
    return ""


def cached_by_kfp(run: RunRecord) -> str:
    """Return the message about cached stages whose executions are unknown; empty without such stages.

    A host does not report these; their readers do.
    """
    cached = [stage.name for stage in run.run.stages if stage.state is State.CACHED and not stage.result.execution_id]
    tracked = (_tracked(run) if cached else None) or ()
    names = listed(name for name in cached if without_indices(name) in tracked)
    if not names:
        return ""
    return f"No results of cached stages: {names}. Neither KFP nor their readers report which run they are from."


def untracked(run: RunRecord) -> str:
    """Return the message that no stage of a run has a tracker base; empty if one has, or if that is not known."""
    has_none = (tracked := _tracked(run)) is not None and not tracked
    return "Its stages have no tracker base: write Stages(tracker_base=tracker_base)." if has_none else ""


def _tracked(run: RunRecord) -> set[str] | None:
    """Return the names of the stages that have a tracker base, without indices; None if that is not known."""
    try:
        stages = known_stages(run.load(), run.arguments)
        return {stage.name for stage in stages if stage.decoded.tracker_base is not None}
    except PipelineError:
        return None


def _place(base: str) -> str:
    """Return a base in normal form."""
    return re.sub(r"^(?:file|local)://", "", base).rstrip("/")
