"""How stages and runs end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from torchx_kfp.errors import StageFailedError, StageNotFoundError
from torchx_kfp.pipeline.artifacts import Artifact, artifacts_in
from torchx_kfp.pipeline.names import without_indices
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import clean, clean_line, counted, did_you_mean, duration, listed, shown

#: Lines of a failed stage's log that its message quotes, and how much of the file's end is read for them.
LAST_LINES = 10
#: Failed stages whose last lines a message quotes, and stages that it names besides.
_QUOTED, _NAMED = 5, 20
_TAIL_BYTES = 8192
#: Rows of the table in a notebook, which is no place for thousands.
_ROWS = 100
# KFP's type of artifacts whose metadata are numbers, and the entry that it adds by itself.
_METRICS, _DISPLAY_NAME = "system.Metrics", "display_name"


@dataclass(frozen=True)
class StageResult:
    """How one stage ended; in a loop, in one of its iterations.

    ``name`` is unique in the run: the task's name, behind the nested pipelines it is in, with the indices of its
    loops (``train[2]``, ``inner/train[0,1]``). ``task`` is the task's name alone, ``exit_code`` is negative for
    a signal and None where no process has run, ``duration`` is in seconds over all attempts.
    """

    name: str
    task: str
    state: State
    exit_code: int | None = None
    #: Why it did not succeed, as a part of a sentence.
    reason: str = ""
    duration: float = 0.0
    attempts: int = 0
    #: ``KFP_POD_NAME`` of the last attempt.
    pod_name: str = ""
    log_file: Path | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    #: Of a tracked stage that came that far, also if it failed: under which run id its results are, and where.
    run_id: str | None = None
    tracker_base: str | None = None
    #: What is recorded there; None where it could not be read.
    results: Mapping[str, Any] | None = None
    #: Parameters, as they came to the stage.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: When the first attempt started, in seconds since the epoch.
    started_at: float | None = None
    #: Of a cached stage, or one that an earlier attempt of this run has finished: what covers its command and inputs.
    key: str = ""
    #: Of a cached stage: the run whose outputs these are.
    cached_from: str = ""

    @property
    def measures(self) -> dict[str, Any]:
        """The values that tell about the stage's work.

        They are the results of a tracked stage; of any other stage, or where results cannot be read, outputs that are
        numbers and KFP's metrics.
        """
        if self.results is not None:
            return dict(self.results)
        numbers = {name: value for name, value in self.outputs.items() if type(value) in (int, float)}
        metrics = {
            name: value
            for made in self.artifacts.values()
            for artifact in artifacts_in(made)
            if artifact.type.title == _METRICS
            for name, value in artifact.facts.items()
            if isinstance(value, (int, float, str)) and name != _DISPLAY_NAME
        }
        return {**numbers, **metrics}

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """The end of the stage's log, as it is shown while the stage runs: without control characters."""
        if self.log_file is None or not self.log_file.exists():
            return []
        with self.log_file.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().removesuffix(b"\n").split(b"\n")
        return [clean_line(line) for line in lines if lines != [b""]][-count:]


@dataclass(frozen=True)
class RunResult:
    """How a run ended. ``stages`` are in the pipeline's order, those of a loop in its order."""

    pipeline: str
    run_id: str
    state: State
    folder: Path
    duration: float
    stages: tuple[StageResult, ...]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    #: Why it failed, if no stage did: ``the time limit of 60 s is over``.
    reason: str = ""

    def __getitem__(self, name: str) -> StageResult:
        """The stage of this name: ``result["train"]``, ``result["inner/train[2]"]``.

        Raises:
            StageNotFoundError: the run has no such stage, or several, as a loop has; it names those that there are.
        """
        found = [stage for stage in self.stages if stage.name == name] or self.all(name)
        if len(found) != 1:
            raise StageNotFoundError(self._not_found(name, [stage.name for stage in found]))
        return found[0]

    def all(self, name: str) -> list[StageResult]:
        """The stages of this name, without the indices of loops: each iteration of ``inner/train``."""
        return [stage for stage in self.stages if without_indices(stage.name) == name]

    def _not_found(self, name: str, found: list[str]) -> str:
        if found:
            return f"{name!r} is {len(found):,} stages: {listed(found, _NAMED)}. result.all({name!r}) has all of them."
        known = list(dict.fromkeys(name for stage in self.stages for name in (stage.name, without_indices(stage.name))))
        there = listed((stage.name for stage in self.stages), _NAMED)
        return f"The run {self.run_id} has no stage {name!r}.{did_you_mean(name, known)} It has: {there}."

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run: a table of its stages."""
        caption = f"{self.run_id}: {self.state}, {duration(self.duration)}"
        rows = [_row("th", ("stage", "state", "seconds", "results"))]
        rows += [_row("td", _cells(stage)) for stage in self.stages[:_ROWS]]
        if more := self.stages[_ROWS:]:
            rows.append(_row("td", (f"and {len(more):,} more", "", "", "")))
        return f"<table><caption>{_text(caption)}</caption>{''.join(rows)}</table>"

    def raise_for_failure(self) -> None:
        """Raises StageFailedError if a stage failed: which ones, why, and the last lines of their logs."""
        if self.state is State.FAILED:
            raise StageFailedError(describe_failure(self))


def describe_exit(code: int) -> str:
    """What is said about a process that ended with this code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"


def describe_failure(result: RunResult) -> str:
    """The failed stages with their last lines, and what was not run because of them."""
    failed = [stage for stage in result.stages if stage.state is State.FAILED]
    not_run = [stage.name for stage in result.stages if stage.state is State.NOT_RUN]
    how = result.reason or f"{len(failed):,} of {counted(len(result.stages), 'stage')} failed"
    lines = [f"The run {result.run_id} failed: {how}."]
    for stage in failed[:_QUOTED]:
        attempts = f", the last of {stage.attempts} attempts" if stage.attempts > 1 else ""
        end = "" if stage.reason.endswith("?") else "."
        lines.append(f"{stage.name} {stage.reason}{f'{attempts}.' if attempts else end}")
        tail = stage.last_lines()
        if tail:
            lines.append(f"  Its last lines, from {stage.log_file}:")
            lines += [f"    {line}" for line in tail]
    if failed[_QUOTED:]:
        names = listed((stage.name for stage in failed[_QUOTED:]), _NAMED)
        lines.append(f"Failed too: {names}. Their logs are in {result.folder}.")
    ended = [stage.name for stage in result.stages if stage.state is State.CANCELED]
    if ended:
        lines.append(f"Ended because of that: {listed(ended, _NAMED)}.")
    if not_run:
        lines.append(f"Not run because of that: {listed(not_run, _NAMED)}.")
    return "\n".join(lines)


def _cells(stage: StageResult) -> tuple[str, str, str, str]:
    told = [f"{name}={shown(value)}" for name, value in stage.measures.items()]
    seconds = f"{stage.duration:.1f}" if stage.attempts else ""
    return stage.name, str(stage.state), seconds, ", ".join(told) or stage.reason


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return escape(clean(text))
