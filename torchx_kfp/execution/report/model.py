"""A run as data for the page: its stages, which stages each one reads, tracker records, and values as text.

The inputs of stages have their names in the pipeline. A stage's component names inputs after their channels:
``threshold_float`` for the parameter ``threshold``, and ``item_lr_float`` for the field ``lr`` of a loop's item. Ids of
executions that it reads without an alias are in ``reads``, and parts of its command are in ``stage``. Names given by
users, such as those of KFP's own components and aliases of reads, stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import shorten
from torchx_kfp.contract.inputs import ADDED, INNER, READS, identifier, is_stage_input
from torchx_kfp.errors import ArgumentError, TrackerError
from torchx_kfp.execution.pipeline.spec import CHANNEL, Constant, FromInput, FromTask, Origin
from torchx_kfp.execution.pipeline.walk import ScopedTask, outline
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.record import RunRecord, missing
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.state import StageState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, Record, RecordTracker
from torchx_kfp.tracking.record_tracker import Artifact as RegisteredArtifact

#: The most characters of a value: usually, in a table's cell, and in an opened value.
SHORT, CELL, LONG = 100, 40, 20_000


def text(value: Any) -> str:
    """Format a parameter or result: text unchanged, numbers briefly, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def beginning(value: str, most: int) -> str:
    """Shorten a text to one line: the first of several lines, or both ends of one."""
    first, *others = value.strip().splitlines() or [""]
    return shorten(f"{first[: most - 1]}…" if others else first, most, keep="ends")


def as_number(value: Any) -> float | None:
    """Return a finite number, or None. Text is parsed, because parameters in a command are text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


_READS = re.compile(rf"{READS}(_\d+)?")
_ITEM = re.compile(r"(?:(?P<of>.*)-)?loop-item(?:-param-\d+)?")
_FIELD = re.compile(r"\[(?P<quote>[\"'])(?P<name>.*)(?P=quote)\]$")


def read_for_page(source: RunSource) -> RunRecord:
    """Return the current record of a run for its page, with the logs of failed stages.

    Raises:
        ArgumentError: the run has not started.
    """
    record = source.read()
    if record.run.first is None:
        raise ArgumentError(f"The run {record.run_id} has not started yet.")
    if record.folder is not None:
        # Without the pipeline, only stages that have started are known.
        record = read_run(record.folder.absolute(), None if record.spec is None else outline(record.spec))
    source.fetch({end.name for end in record.run.ends if end.state is State.FAILED})
    return dataclasses.replace(record, read_at=time.time())


def inputs_of(record: RunRecord, stage: StageState) -> dict[str, Any]:
    """Return the inputs of a stage by their names in the pipeline, where these are distinct."""
    place = record.places.get(stage.path)
    found: dict[str, Any] = {}
    for name, value in stage.result.inputs.items():
        wanted = name if place is None else _name_in_pipeline(name, place)
        if wanted:
            found[name if found.get(wanted, value) != value else wanted] = value
    return found


def _name_in_pipeline(name: str, place: ScopedTask) -> str:
    """Return the pipeline's name for an input of a stage; "" for parts of its command."""
    inputs, source = place.task.parameters, place.task.parameters.get(name)
    is_tracked = place.component.decoded.tracker_base is not None
    if is_tracked and isinstance(source, Constant) and is_stage_input(name):
        return ""
    derived, shown = _origin(source)
    if is_tracked and derived.endswith("_run_id") and _READS.fullmatch(name):
        return shown.removesuffix("_run_id")
    if not derived or not re.fullmatch(f"({INNER})?{re.escape(derived)}{ADDED}", name):
        return name
    # To pass a field of an item into a group inside the loop, KFP also passes the whole item.
    carried = {it.name for other, it in inputs.items() if other.startswith(INNER) and isinstance(it, FromInput)}
    return "" if isinstance(source, FromInput) and not source.selector and source.name in carried else shown


def loop_items(record: RunRecord) -> dict[str, dict[int, Any]]:
    """Return the items of loops that are not nested, by stage and index.

    An item is known if it is a number or text and was an input of a stage.
    """
    by_loop: dict[str, dict[int, Any]] = {}
    loops: dict[str, str] = {}
    for stage in record.stages:
        place = record.places.get(stage.path)
        if place is None or len(stage.indices) != 1:
            continue
        loops[stage.path] = next(around.path for around in place.around if around.task.loop is not None)
        items = by_loop.setdefault(loops[stage.path], {})
        for name, value in stage.result.inputs.items():
            if _origin(place.task.parameters.get(name))[0] == "item" and isinstance(value, str | int | float):
                items.setdefault(stage.indices[0], value)
    return {path: by_loop[loop] for path, loop in loops.items()}


def _origin(source: Origin | None) -> tuple[str, str]:
    """Return the name that `authoring` derives from this source, and its display name."""
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
class Hyperlink:
    """A link; ``href`` is "" if a browser cannot open the target, or it does not exist."""

    label: str
    href: str
    #: The whole path or URL of the target, if the label is shorter.
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A stage, one iteration of a loop, or a trial of a search.

    ``number`` is its position on an axis, ``label`` its name in a table, and ``title`` its name elsewhere. ``inputs``
    exclude ids of executions, which are in ``lineage``; ``outputs`` exclude results. A trial that ran elsewhere has no
    ``stage``.
    """

    title: str
    number: float
    label: str
    link: Hyperlink
    state: State
    inputs: Mapping[str, Any]
    results: Mapping[str, Any]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    stage: StageState | None = None
    note: str = ""
    is_best: bool = False
    lineage: Mapping[str, Sequence[Hyperlink]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tracked:
    """The tracker's records by tracker base and execution id. ``problems`` are messages about unreadable records."""

    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: The record of the run as a whole: its code.
    whole: Record = field(default_factory=Record)

    def record(self, stage: StageState) -> Record:
        """Return the record of the stage; for a cached stage, that of the execution that made its results."""
        return self.records.get(_key(stage), Record())

    def artifacts(self, stage: StageState) -> Mapping[str, RegisteredArtifact]:
        """Return the artifacts that the stage registered, except those declared to KFP."""
        found = self.record(stage).artifacts
        return {name: artifact for name, artifact in found.items() if identifier(name) not in stage.result.artifacts}


def read_tracked(record: RunRecord) -> Tracked:
    """Read the trackers of a run's stages; each unreadable store adds a message to ``problems``."""
    records: dict[tuple[str, str], Record] = {}
    problems: list[str] = []
    whole = Record()
    run_ids: dict[str, list[str]] = {}
    for base, run_id in map(_key, record.stages):
        if base and run_id:
            run_ids.setdefault(base, []).append(run_id)
    for base, wanted in run_ids.items():
        if why := record.why_not_read(base):
            problems.append(missing(base, why))
            continue
        try:
            found = RecordTracker(base, patience=SHORT_PATIENCE).records([record.run_id, *wanted])
            records.update({(base, run_id): found[run_id] for run_id in wanted})
            problems += map(str, found.problems)
            whole = found.get(record.run_id, whole)
        except TrackerError as error:
            problems.append(f"Metrics of steps, searches and metadata could not be read: {error}")
    return Tracked(records, problems, whole)


def _key(stage: StageState) -> tuple[str, str]:
    return stage.result.tracker_base or "", stage.result.execution_id or ""
