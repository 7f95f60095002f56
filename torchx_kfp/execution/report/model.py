"""A run as data for the page: its stages, which of them read which, and what only their tracker has.

The inputs of stages have their names in the pipeline. A stage's component names inputs after their channels:
``threshold_float`` for the parameter ``threshold``, and ``item_lr_float`` for the field ``lr`` of a loop's item. Run
ids of stages that it reads without an alias are in ``reads``, and parts of its command are in ``stage``. Names that a
user has given, such as those of KFP's own components and aliases of reads, stay as they are.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torchx_kfp.contract.inputs import ADDED, INNER, READS, identifier, is_stage_input
from torchx_kfp.errors import ArgumentError, PipelineFileError, TrackerError
from torchx_kfp.execution.pipeline.load import load_recorded
from torchx_kfp.execution.pipeline.spec import CHANNEL, Constant, FromInput, FromTask, Origin, Pipeline
from torchx_kfp.execution.pipeline.walk import walk
from torchx_kfp.execution.runs.events import RunFinished
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.journal import PIPELINE_FILE
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.source import RunRecord, missing, why_not_read
from torchx_kfp.execution.runs.state import Attempt, Session, StageState, outline
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import Artifact, History, Record, Recorder, Search, Start

_READS = re.compile(rf"{READS}(_\d+)?")
_ITEM = re.compile(r"(?:(?P<of>.*)-)?loop-item(?:-param-\d+)?")
_FIELD = re.compile(r"\[(?P<quote>[\"'])(?P<name>.*)(?P=quote)\]$")

#: The pipeline's name for each input of a stage; None for an input that repeats another one.
Names = Mapping[str, "str | None"]


@dataclass(frozen=True)
class StageView:
    """One stage of the run; in a loop, one iteration.

    ``path`` is the name without the indices of loops, which are in ``indices``. ``queued_at`` is the time at which the
    stage's inputs were known. The inputs of ``result`` have the pipeline's names.
    """

    name: str
    path: str
    indices: tuple[int, ...]
    state: State
    result: StageResult
    attempts: Sequence[Attempt] = ()
    queued_at: float | None = None

    @classmethod
    def of(cls, stage: StageState, names: Names) -> StageView:
        """Return the view of a stage; ``names`` are those of its inputs."""
        result = stage.result
        result = dataclasses.replace(result, inputs=_named(result.inputs, names))
        return cls(stage.name, stage.path, stage.indices, stage.state, result, stage.attempts, stage.queued_at)


@dataclass(frozen=True)
class RunView:
    """A run as its record shows it at the time ``now``. Times are in seconds since the epoch.

    A run on this machine has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI. ``sessions`` are
    the periods in which a runner worked on the run; each resume begins another one. ``unreadable`` are sentences about
    damaged parts of the record, and ``named`` the tracker bases that the user has named.
    """

    run_id: str
    folder: Path | None
    link: str
    pipeline: str
    state: State
    now: float
    sessions: Sequence[Session]
    duration: float
    stages: tuple[StageView, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    not_applied: tuple[str, ...] = ()
    finished: RunFinished | None = None
    spec: Pipeline | None = None
    unreadable: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    @cached_property
    def tasks(self) -> Mapping[str, list[StageView]]:
        """The stages of each task, by the name of its stages without indices."""
        tasks: dict[str, list[StageView]] = {}
        for stage in self.stages:
            tasks.setdefault(stage.path, []).append(stage)
        return tasks

    @property
    def started(self) -> float:
        """The time at which the run was first started."""
        return self.sessions[0].start


@dataclass(frozen=True)
class StageRead:
    """A read: the input ``name`` of ``stage`` is the run id of ``source``, which is None if no stage has that id."""

    stage: StageView
    name: str
    run_id: str
    source: StageView | None


def find_reads(stages: Iterable[StageView], run_id: str) -> list[StageRead]:
    """Return all reads between stages of the run, in order.

    An input counts as a run id if its value is the run id of another stage, or has the form of one of this run. The
    latter belongs to a stage that has been repeated since.
    """
    stages = list(stages)
    known = {stage.result.run_id: stage for stage in reversed(stages) if stage.result.run_id}
    reads = []
    for stage in stages:
        for name, value in stage.result.inputs.items():
            values = value if isinstance(value, list) else [value]
            for candidate in dict.fromkeys(text for text in values if isinstance(text, str)):
                source = known.get(candidate)
                of_this_run = candidate.startswith(f"{run_id}/") and candidate.count("/") == 2
                if source is not stage and (source is not None or of_this_run):
                    reads.append(StageRead(stage, name, candidate, source))
    return reads


def by_task(reads: Iterable[StageRead]) -> Mapping[tuple[str, str], list[StageRead]]:
    """Group the reads by task, all iterations of a loop together: ``(path, source's path or run id)``."""
    grouped: dict[tuple[str, str], list[StageRead]] = {}
    for read in reads:
        grouped.setdefault((read.stage.path, read.source.path if read.source else read.run_id), []).append(read)
    return grouped


def read_model(folder: Path, now: float | None = None) -> RunView:
    """Return the run in this folder, as far as it has come.

    Raises:
        ArgumentError: the folder is not that of a run, or the run has no event yet.
    """
    spec = _spec(lambda: load_recorded(folder / PIPELINE_FILE, folder))
    return view(read_run(folder, outline(spec) if spec is not None else None), now)


def view(record: RunRecord, now: float | None = None) -> RunView:
    """Return the recorded run, as far as it has come. ``now`` is the current time.

    Raises:
        ArgumentError: the run has no event yet.
    """
    run, spec = record.run, _spec(record.load)
    if run.first is None:
        raise ArgumentError(f"The run {record.run_id} has not started yet: nothing has happened in it.")
    now = time.time() if now is None else now
    sessions = list(run.sessions)
    if run.state is State.RUNNING:
        sessions[-1] = Session(sessions[-1].start, max(now, sessions[-1].end))
    names = {
        place.name: _names(place.task.inputs, place.component.facts.tracker_base is not None)
        for place in (walk(spec) if spec is not None else ())
        if place.is_stage
    }
    return RunView(
        run_id=run.run_id,
        folder=record.folder,
        link=record.link,
        pipeline=run.first.pipeline,
        state=run.state,
        now=now,
        sessions=tuple(sessions),
        duration=run.duration(now),
        stages=tuple(StageView.of(stage, names.get(stage.path, {})) for stage in run.stages),
        arguments=run.first.arguments or record.arguments,
        options=record.options,
        not_applied=run.first.not_applied,
        finished=run.finished,
        spec=spec,
        unreadable=record.corrupt,
    )


def _spec(load: Callable[[], Pipeline]) -> Pipeline | None:
    try:
        return load()
    except PipelineFileError:
        return None


def _named(inputs: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the inputs under these names, or unchanged if two different values would get the same name."""
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        wanted = names.get(name, name)
        if wanted is None:
            continue
        if wanted in found and found[wanted] != value:
            return dict(inputs)
        found[wanted] = value
    return found


def _names(inputs: Mapping[str, Origin], tracked: bool) -> Names:
    # To pass a field of an item into a group inside the loop, KFP passes the whole item along.
    carried = {
        source.name for name, source in inputs.items() if name.startswith(INNER) and isinstance(source, FromInput)
    }
    names: dict[str, str | None] = {}
    for name, source in inputs.items():
        derived, shown = _origin(source)
        if tracked and isinstance(source, Constant) and is_stage_input(name):
            names[name] = None
        elif tracked and derived.endswith("_run_id") and _READS.fullmatch(name):
            names[name] = shown.removesuffix("_run_id")
        elif derived and re.fullmatch(f"({INNER})?{re.escape(derived)}{ADDED}", name):
            alone = isinstance(source, FromInput) and not source.selector and source.name in carried
            names[name] = None if alone else shown
    return names


def _origin(source: Origin) -> tuple[str, str]:
    """Return the name that `authoring` derives for this source, and the name to show."""
    if isinstance(source, FromTask):
        name = f"{source.task}_{source.output}"
    elif isinstance(source, FromInput):
        name = source.name.removeprefix(CHANNEL)
    else:
        return "", ""
    item, field = _ITEM.fullmatch(name), _FIELD.search(source.selector)
    if item is None:
        return identifier(name), identifier(name)
    if field is not None:
        return identifier(f"item_{field['name']}"), field["name"]
    return "item", f"item of {item['of']}" if item["of"] else "item"


@dataclass(frozen=True)
class Tracked:
    """The tracker's records, by tracker base and run id. ``problems`` are sentences about unreadable records."""

    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: The record of the run as a whole: its code and tags.
    whole: Record = field(default_factory=Record)

    def record(self, stage: StageView) -> Record:
        """Return the record of the stage; for a cached stage, of the run that has made its results."""
        return self.records.get(_key(stage), Record())

    def start(self, stage: StageView) -> Start | None:
        """Return when and where the stage started; for a cached stage, when its results were made."""
        return self.record(stage).started

    def history(self, stage: StageView) -> History:
        """Return the curves that the stage has logged."""
        return self.record(stage).steps

    def metadata(self, stage: StageView) -> Mapping[str, Any]:
        """Return the metadata that the stage has recorded."""
        return self.record(stage).metadata

    def artifacts(self, stage: StageView) -> Mapping[str, Artifact]:
        """Return the artifacts that the stage has registered, except for those that it has declared to KFP."""
        found = self.record(stage).artifacts
        return {name: artifact for name, artifact in found.items() if identifier(name) not in stage.result.artifacts}

    def search(self, stage: StageView) -> Search | None:
        """Return what the stage has stated about the search that it belongs to."""
        return self.record(stage).search


def read_tracked(run: RunView) -> Tracked:
    """Read the trackers of a run's stages. A store that is not read adds a sentence to ``problems``."""
    records: dict[tuple[str, str], Record] = {}
    problems: list[str] = []
    whole = Record()
    run_ids: dict[str, list[str]] = {}
    for base, run_id in map(_key, run.stages):
        if base and run_id:
            run_ids.setdefault(base, []).append(run_id)
    for base, wanted in run_ids.items():
        if why := why_not_read(base, run.named, ran_here=run.folder is not None):
            problems.append(missing(base, why))
            continue
        try:
            found = Recorder.open(base).records([run.run_id, *wanted])
            records.update({(base, run_id): found[run_id] for run_id in wanted})
            problems += map(str, found.problems)
            whole = found.get(run.run_id, whole)
        except TrackerError as error:
            problems.append(f"Metrics of steps, searches and metadata could not be read: {error}")
    return Tracked(records, problems, whole)


def _key(stage: StageView) -> tuple[str, str]:
    return stage.result.tracker_base or "", stage.result.run_id or ""
