"""What is known of a run that another one continues, and the record of it in the pipeline of the one that does.

The record says what a resumed run has taken over. It is in the pipeline's description, after the author's own, so it is
wherever the run is: in the run's folder, and on the host. It has the whole pipeline, and how the stages ended that the
run has kept of it. So the run can be shown, and resumed, like any other, also when the run before it is gone.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.errors import ArgumentError, PipelineFileError, TrackerError
from torchx_kfp.execution.pipeline.load import pipeline_from_text
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import walk
from torchx_kfp.execution.runs.events import StageFinished, encode, read_fields
from torchx_kfp.execution.runs.record import RunRecord, why_not_read
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import SHORT_PATIENCE, Recorder

#: The version of the record.
_VERSION = 3
#: The states of stages that can be kept. In a branch that is kept, others are skipped.
_KEPT = (State.SUCCEEDED, State.CACHED, State.SKIPPED)
_MARK = "torchx-kfp-resumed: "
#: How many bytes of a record are unpacked: it may be anybody's. It has a pipeline, and what its stages have recorded.
_LONGEST = 64 << 20


@dataclass(frozen=True)
class ResumeRecord:
    """What a run has taken over.

    Attributes:
        resumes: the id of the run that it continues.
        ends: how the stages that were kept had ended; ``cached_from`` is the run in which each of them ran.
        outputs: outputs of the pipeline itself that kept stages have made.
        text: the whole pipeline, as JSON.
    """

    resumes: str
    ends: tuple[StageResult, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the sentence that describes a resumed run on a host."""
        return f"Resumes {self.resumes}, of which {len(self.ends):,} stages are kept."

    def describe(self, own: str) -> str:
        """Return a pipeline's description with the record; ``own`` is the author's."""
        content = {
            "version": _VERSION,
            "stages": [encode(StageFinished(end, kept=True, time=0.0)) for end in self.ends],
            "outputs": dict(self.outputs),
            "pipeline": self.text,
        }
        packed = base64.b64encode(zlib.compress(json.dumps(content).encode(), 1)).decode()
        return "\n".join(filter(None, [own, str(self), f"{_MARK}{self.resumes} {packed}"]))


def resumed_id(description: str) -> str:
    """Return the id of the run that one with this description continues; empty if it continues none."""
    return description.partition(_MARK)[2].partition(" ")[0]


@functools.lru_cache(maxsize=4)
def read_record(description: str) -> ResumeRecord | None:
    """Return the record in a pipeline's description; None without one, or if this version cannot read it."""
    resumes, _, packed = description.partition(_MARK)[2].partition(" ")
    if not resumes:
        return None
    try:
        content = json.loads(zlib.decompressobj().decompress(base64.b64decode(packed), _LONGEST))
        if content["version"] != _VERSION:
            return None
        ends = (read_fields(StageResult, each) for each in content["stages"])
        return ResumeRecord(
            resumes=resumes,
            ends=tuple(end for end in ends if end.state in _KEPT and end.cached_from),
            outputs=dict(content["outputs"]),
            text=str(content["pipeline"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error):
        return None


def whole_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return the whole pipeline of a resumed run, whose own one lacks what was kept; that of any other run as it is."""
    record = read_record(pipeline.description)
    try:
        return pipeline if record is None else pipeline_from_text(record.text)
    except PipelineFileError:  # the record may be anybody's
        return pipeline


def outline(pipeline: Pipeline) -> dict[str, bool]:
    """Return the names of all stages, in an order in which they could run, and whether each is in a loop."""
    return {place.name: place.looped for place in walk(whole_pipeline(pipeline)) if place.is_stage}


@dataclass(frozen=True)
class EarlierRun:
    """What is known of a run that is resumed.

    Attributes:
        record: the run.
        pipeline: its whole pipeline, also if it was resumed itself.
        ends: how its stages ended, by their names, with those that it had kept itself.
        kept: the names of the stages that it had kept itself.
        gone: why results of stages are not there any more, as clauses by the stages' names.
        unreadable: the tracker bases that cannot be read here, and why.
        named_bases: the tracker bases that the user has named, now.
    """

    record: RunRecord
    pipeline: Pipeline
    ends: Mapping[str, StageResult]
    kept: Collection[str] = ()
    gone: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    named_bases: Collection[str] = ()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.record.run_id

    @property
    def trusted_bases(self) -> list[str]:
        """The tracker bases on this machine that the user has named for it: none for a run on a host."""
        found = self.record.options.get("named")
        places = [path for path in found if isinstance(path, str)] if isinstance(found, (list, tuple)) else []
        return self.record.bases_among(places)

    @property
    def options(self) -> dict[str, Any]:
        """How its stages were run on this machine: in containers, and in which directory.

        Raises:
            ArgumentError: its folder is damaged, or somebody else's, and has something else there.
        """
        found = self.record.options if self.record.folder is not None else {}
        options = {name: found[name] for name in ("docker", "directory") if found.get(name)}
        if options.get("docker", True) is not True or not isinstance(options.get("directory", ""), str):
            raise ArgumentError(
                f"The run {self.run_id} cannot be resumed with its own options: {str(self.record.folder)!r} records "
                f"{shown(options)}. Name its pipeline, and give --docker and --directory."
            )
        return options

    def arguments_for(
        self, pipeline: Pipeline, given: Mapping[str, Any], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the arguments of a run that resumes this one: those given, and otherwise this run's own.

        Args:
            pipeline: the pipeline of the new run.
            given: the arguments that the user has given.
            without: parameters of which this run's arguments do not count.
        """
        names = pipeline.root.inputs.keys() - set(without)
        own = {name: value for name, value in self.record.arguments.items() if name in names}
        if isinstance(base := own.get(TRACKER_BASE_PARAMETER), str) and base:
            own[TRACKER_BASE_PARAMETER] = self.record.absolute_base(base)
        return {**own, **given}


def earlier_run(
    record: RunRecord,
    *,
    trusted_bases: Collection[str] = (),
    ends: Mapping[str, StageResult] | None = None,
) -> EarlierRun:
    """Return what is known of a run that is to be resumed.

    Args:
        record: the run.
        trusted_bases: the tracker bases that the user has named.
        ends: how its stages ended, if more is known of that than the record has.

    Raises:
        ArgumentError: the run's pipeline is not recorded.
    """
    try:
        own = record.load()
    except PipelineFileError as error:
        raise ArgumentError(f"The run {record.run_id} cannot be resumed: {error}") from None
    taken = read_record(own.description)
    found = {end.name: end for end in record.run.ends} if ends is None else ends
    kept = {end.name: end for end in taken.ends} if taken is not None else {}
    # A folder may have been moved, with logs; of a run on a host, not all that the record has is shown.
    found = {**kept, **found} if record.folder is not None else {**found, **kept}
    gone, unreadable = _what_is_gone(record, [end for end in found.values() if end.state.is_success], trusted_bases)
    return EarlierRun(record, whole_pipeline(own), found, kept.keys(), gone, unreadable, trusted_bases)


def _what_is_gone(
    record: RunRecord, ends: Sequence[StageResult], trusted_bases: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return why results of stages are not there any more, and why tracker bases cannot be read here."""
    gone: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    tracked: dict[str, list[StageResult]] = {}
    for end in ends:
        if why := _missing_files(end) if record.folder is not None else "":
            gone[end.name] = why
        # On a host, a stage whose results are not found may have had none.
        if end.tracker_base and (end.results or record.folder is None):
            tracked.setdefault(end.tracker_base, []).append(end)
    for base, stages in tracked.items():
        why = why_not_read(base, trusted_bases, ran_here=record.folder is not None)
        there: dict[str, list[str]] = {}
        removed: set[str] = set()
        try:
            if not why:
                recorder = Recorder(record.absolute_base(base), patience=SHORT_PATIENCE)
                there = {run: recorder.keys(run) for run in {_run_of(end) for end in stages} if run}
                removed = {run for run, keys in there.items() if not (keys or recorder.records([run]))}
        except TrackerError as error:
            why = str(error)
        if why:
            unreadable[base] = why.rstrip(".")
            continue
        for end in stages:
            run = _run_of(end)
            # Whole runs are removed: if anything else of it is there, a stage without results has recorded nothing.
            if end.run_id not in there.get(run, []) and (end.results or run in removed or not run):
                gone[end.name] = f"no results of it are under {record.absolute_base(base)!r} (any more)"
    return gone, unreadable


def _run_of(end: StageResult) -> str:
    return (end.run_id or "").partition("/")[0]


def _missing_files(end: StageResult) -> str:
    """Return which file of a stage that ran on this machine is gone, as a clause; empty if all are there."""
    # The log stands for the stage's folder. Of a tracked stage without artifacts, all that counts is under its base.
    needs_folder = end.tracker_base is None or bool(end.artifacts)
    paths = [
        *(path for path in end.files if "://" not in path),
        *([str(end.log_file)] if end.log_file is not None and needs_folder else []),
    ]
    return next((f"its file {path!r} is gone" for path in paths if not os.path.exists(path)), "")
