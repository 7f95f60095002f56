"""The sections of the page: one for each task, with the iterations of a loop as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.report.artifacts import ArtifactView, ArtifactViews, Link
from torchx_kfp.report.formats import text
from torchx_kfp.report.graph import summary
from torchx_kfp.report.input_names import identifier
from torchx_kfp.report.model import Read, RunView, StageView
from torchx_kfp.report.tracked import Tracked
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.tracking import Curve
from torchx_kfp.tracking.statements.sources import Start

#: How many lines of a failed stage's log the page has, for how many stages, and how many for further ones.
LINES, FULL_LOGS, FEWER_LINES = 40, 40, 4
#: How many columns a loop's table has at most.
_MOST_COLUMNS = 12


@dataclass(frozen=True)
class Reading:
    """An input with run ids; ``sources`` are links to the stages that have them."""

    name: str
    sources: list[Link]
    more: int = 0


@dataclass(frozen=True)
class Entry:
    """A stage with everything that the page shows about it."""

    stage: StageView
    anchor: str
    #: Inputs that are not in ``reads``, and outputs that do not repeat results.
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    results: Mapping[str, Any]
    artifacts: list[ArtifactView]
    #: The tracker's record of the start, metadata, and metrics over steps.
    start: Start | None
    metadata: Mapping[str, Any]
    curves: Mapping[str, Curve]
    reads: list[Reading]
    read_by: list[Link]
    read_by_more: int
    log: Link | None


@dataclass(frozen=True)
class Section:
    """A task: one stage, or the iterations of a loop. ``constant`` has the inputs that all iterations share."""

    path: str
    anchor: str
    state: State | None
    note: str
    entries: list[Entry]
    is_loop: bool
    constant: Mapping[str, Any] = field(default_factory=dict)
    input_columns: Sequence[str] = ()
    result_columns: Sequence[str] = ()
    output_columns: Sequence[str] = ()
    hidden_columns: Sequence[str] = ()


@dataclass(frozen=True)
class Failure:
    """A stage that failed, with the end of its log."""

    stage: StageView
    anchor: str
    log: Link | None
    lines: list[str]


#: How many sources or readers of a stage are listed; the rest are counted.
_MOST_LINKS = 12


class Links:
    """Anchors of stages, and relative links from the report's folder."""

    def __init__(self, run: RunView, place: Path) -> None:
        self._run = run
        self._files = ArtifactViews(place, run.folder.parent if run.folder is not None else None)
        numbers: dict[str, int] = {}
        self.sections = {stage.path: numbers.setdefault(stage.path, len(numbers)) for stage in run.stages}
        self.anchors = {stage.name: f"s{number}" for number, stage in enumerate(run.stages)}

    def section(self, path: str) -> str:
        return f"t{self.sections[path]}" if path in self.sections else ""

    def home(self) -> Link:
        """Return a link to the run's folder, or to its page in KFP's UI."""
        run = self._run
        return Link(run.link, run.link) if run.folder is None else self._files.file(run.folder, str(run.folder))

    def log(self, stage: StageView) -> Link | None:
        """Return a link to a stage's log. That of a run on a host is read into a file which does not last."""
        path = stage.result.log_file
        return None if path is None or self._run.folder is None else self._files.file(path, path.name)

    def artifacts(self, made: Mapping[str, Artifact | list[Artifact]]) -> list[ArtifactView]:
        """Return the views of a stage's artifacts."""
        return self._files.of(made)


def sections(run: RunView, reads: Iterable[Read], links: Links, tracked: Tracked) -> list[Section]:
    """Return a section for each task, in the pipeline's order."""
    of_stage: dict[str, list[Read]] = {}
    readers: dict[str, dict[str, StageView]] = {}
    for read in reads:
        of_stage.setdefault(read.stage.name, []).append(read)
        if read.source is not None:
            readers.setdefault(read.source.name, {})[read.stage.name] = read.stage
    groups: dict[str, list[Entry]] = {}
    for stage in run.stages:
        of_it = list(readers.get(stage.name, {}).values())
        entry = _entry(stage, of_stage.get(stage.name, []), of_it, links, tracked)
        groups.setdefault(stage.path, []).append(entry)
    return [_section(path, entries, links) for path, entries in groups.items()]


def failures(run: RunView, links: Links) -> list[Failure]:
    """Return the failed stages, in the pipeline's order."""
    failed = [stage for stage in run.stages if stage.state is State.FAILED]
    return [
        Failure(
            stage,
            links.anchors[stage.name],
            links.log(stage),
            _last_lines(stage, LINES if number < FULL_LOGS else FEWER_LINES),
        )
        for number, stage in enumerate(failed)
    ]


def _last_lines(stage: StageView, count: int) -> list[str]:
    try:
        return stage.result.last_lines(count)
    except OSError as error:
        return [f"(the log cannot be read: {error.strerror})"]


def _entry(stage: StageView, reads: list[Read], readers: list[StageView], links: Links, tracked: Tracked) -> Entry:
    result = stage.result
    results = dict(result.results or {})
    # Declared results are also outputs, with KFP's names.
    repeated = {"run_id": result.run_id, **{identifier(name): value for name, value in results.items()}}
    by_name: dict[str, list[Link]] = {}
    for read in reads:
        source = read.source
        link = Link(source.name, f"#{links.anchors[source.name]}") if source else Link(read.run_id, "")
        by_name.setdefault(read.name, []).append(link)
    return Entry(
        stage=stage,
        anchor=links.anchors[stage.name],
        inputs={name: value for name, value in result.inputs.items() if name not in by_name},
        outputs={
            name: value for name, value in result.outputs.items() if name not in repeated or repeated[name] != value
        },
        results=results,
        artifacts=links.artifacts(result.artifacts),
        start=tracked.start(stage),
        metadata=tracked.metadata(stage),
        curves=tracked.history(stage),
        reads=[Reading(name, found[:_MOST_LINKS], max(0, len(found) - _MOST_LINKS)) for name, found in by_name.items()],
        read_by=[Link(reader.name, f"#{links.anchors[reader.name]}") for reader in readers[:_MOST_LINKS]],
        read_by_more=max(0, len(readers) - _MOST_LINKS),
        log=links.log(stage),
    )


def _section(path: str, entries: list[Entry], links: Links) -> Section:
    state, note = summary(entry.stage for entry in entries)
    if not entries[0].stage.indices:
        return Section(path, links.section(path), state, note, entries, is_loop=False)
    ran = [entry for entry in entries if entry.stage.attempts or entry.stage.result.state.is_success]
    names = list(dict.fromkeys(name for entry in ran for name in entry.inputs))
    varies = [name for name in names if len({text(entry.inputs.get(name)) for entry in ran}) > 1]
    results = list(dict.fromkeys(name for entry in ran for name in entry.results))
    outputs = list(dict.fromkeys(name for entry in ran for name in entry.outputs))
    columns = [*varies, *results, *outputs]
    shown = set(columns[:_MOST_COLUMNS])
    return Section(
        path,
        links.section(path),
        state,
        note,
        entries,
        is_loop=True,
        constant={name: ran[0].inputs.get(name) for name in names if name not in varies},
        input_columns=[name for name in varies if name in shown],
        result_columns=[name for name in results if name in shown],
        output_columns=[name for name in outputs if name in shown],
        hidden_columns=columns[_MOST_COLUMNS:],
    )
