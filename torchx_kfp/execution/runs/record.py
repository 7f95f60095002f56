"""A run as it is recorded, in a folder of this machine or on a KFP host, and the tracker bases that it names.

A run's author and its host name the tracker base, and a run's folder may come from somebody else. So a server is read
only if the user has named that base, too: it could be a service that only this machine reaches. The same holds for a
directory that a host names: it could have the user's own files. Runs in folders record in directories of this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.common.safe_files import PRIVATE
from torchx_kfp.common.text import listed, printable, shorten, shown
from torchx_kfp.errors import PipelineFileError
from torchx_kfp.execution.pipeline.artifacts import is_object_store
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import known_stages, without_indices
from torchx_kfp.execution.runs.events import Event
from torchx_kfp.execution.runs.journal import CommandLine
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import absolute_base

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: The id of a run on this machine (``make_run_name``).
_RUN = re.compile(r"[\w.-]+-\d{8}-\d{6}-[0-9a-f]{6}")


@dataclass(frozen=True)
class RunRecord:
    """A run as it is recorded now.

    A run on this machine has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI and a ``name``.
    ``created`` is in seconds since the epoch; ``options`` are those of ``torchx_kfp.local.run``, and ``command`` is
    the command line that has started the run on this machine; None for one from Python.
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
    command: CommandLine | None = None
    #: Sentences about parts of the record that could not be read.
    corrupt: tuple[str, ...] = ()

    def absolute_base(self, base: str) -> str:
        """Return a tracker base of the run for other directories: a relative one is relative to that of its stages."""
        directory = self.options.get("directory")
        return absolute_base(base, directory) if isinstance(directory, str) else base

    def bases_among(self, places: Iterable[str]) -> list[str]:
        """Return the folders among these that have been tracker bases, if the run is in a folder.

        It may be somebody else's, and could name any folder of this machine as one that its user has named.
        """
        signs = [PRIVATE, *([self.run_id] if _RUN.fullmatch(self.run_id) else [])]
        return [
            place
            for place in (places if self.folder is not None else ())
            if os.path.isabs(place) and any(os.path.isdir(os.path.join(place, sign)) for sign in signs)
        ]

    @property
    def duration(self) -> float:
        """The seconds for which a runner has worked on the run, up to now."""
        return self.run.duration(time.time())


def missing(base: str, why: str) -> str:
    """Return the sentence about a base that cannot be read."""
    return f"Results are missing: the tracker base {shown(base)} cannot be read here: {why}."


def why_not_read(base: str, trusted_bases: Collection[str], *, ran_here: bool = False) -> str:
    """Say why a base that a run names is not read on this machine; empty if it is.

    Args:
        base: the base.
        trusted_bases: the bases that the user has named.
        ran_here: whether the run is in a folder, so that directories are those of this machine.
    """
    if is_object_store(base):
        return ""
    scheme = _SCHEME.match(base)
    # What is behind reference::/file may be on any server.
    protocol = "" if "::" in base else scheme[1].lower() if scheme else "file"
    is_local = protocol in ("file", "local") and "://" not in _place(base)
    if ran_here and (is_local or protocol == "memory"):
        return ""
    if protocol == "memory":
        return "it is in the memory of the stages' processes"
    if is_local and not os.path.isabs(_place(base)):
        return "it is relative to the directory in which the stages run"
    if _place(base) not in map(_place, trusted_bases):
        where = "a directory of the pods" if is_local else "not in an object store"
        when = "this machine has the same volume there" if is_local else "you trust it"
        command = shorten(printable(shlex.join(["export", f"TORCHX_KFP_TRACKER_BASE={base}"])), 300)
        return f"it is {where}, and only the run names it. Use s3://bucket/results or, if {when}, name it: {command}"
    if is_local and not os.path.isdir(_place(base)):
        return "there is no such directory. Mount the same volume here at this path, or use s3://bucket/results"
    return ""


def cached_by_kfp(run: RunRecord) -> str:
    """Return the sentence about the results of cached stages whose run ids are not known; empty without such stages.

    A host does not tell them; the stages that read them do.
    """
    cached = [stage.name for stage in run.run.stages if stage.state is State.CACHED and not stage.result.run_id]
    tracked = (_tracked(run) if cached else None) or ()
    names = listed(name for name in cached if without_indices(name) in tracked)
    if not names:
        return ""
    return (
        f"No results of cached stages: {names}. Neither KFP nor a stage that reads them says which run they are from."
    )


def untracked(run: RunRecord) -> str:
    """Return the sentence that no stage of a run has a tracker base; empty if one has, or if that is not known."""
    has_none = (tracked := _tracked(run)) is not None and not tracked
    return "Its stages have no tracker base: write Stages(tracker_base=tracker_base)." if has_none else ""


def _tracked(run: RunRecord) -> set[str] | None:
    """Return the names of the stages that have a tracker base, without indices; None if that is not known."""
    try:
        stages = known_stages(run.load(), run.arguments)
        return {stage.name for stage in stages if stage.facts.tracker_base is not None}
    except PipelineFileError:
        return None


def same_base(one: str, other: str) -> bool:
    """Tell whether two tracker bases are the same place."""
    return _place(one) == _place(other)


def _place(base: str) -> str:
    """Return a base so that two ways to write it are the same."""
    return re.sub(r"^(?:file|local)://", "", base).rstrip("/")
