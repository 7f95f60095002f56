"""Results of stages and runs, and descriptions of their failures."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchx_kfp.common.extras import require
from torchx_kfp.common.safe_files import open_regular
from torchx_kfp.common.text import (
    SuggestingDict,
    clean,
    clean_line,
    counted,
    did_you_mean,
    duration,
    listed,
    printable,
    shorten,
    shown,
)
from torchx_kfp.contract.protocol import EXIT_CODE, PodAttempt
from torchx_kfp.contract.specification import LAST_LINES_FOLLOW
from torchx_kfp.errors import StageFailedError, UnknownNameError
from torchx_kfp.execution.pipeline.artifacts import Artifact, artifacts_in
from torchx_kfp.execution.pipeline.walk import indices_of, without_indices
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    import pandas

#: How many lines of a failed stage's log a message quotes, and how many bytes are read for them.
LAST_LINES, _TAIL_BYTES = 10, 8192
#: How many failures a message quotes, and how many stages it names.
_QUOTED, _NAMED = 5, 20
#: How many rows the table of a run has, and how many characters a cell that is printed.
_ROWS, _LONGEST = 100, 100
#: The first columns of a table of stages.
_COLUMNS = ("stage", "iteration", "state", "seconds")
# KFP's type of artifacts whose metadata are metrics, and the entry that KFP itself adds.
_METRICS, _DISPLAY_NAME = "system.Metrics", "display_name"


@dataclass(frozen=True)
class StageResult:
    """The result of one stage; in a loop, of one iteration.

    ``name`` is unique in the run: the names of the nested pipelines, the task's name, and the indices of its loops
    (``train[2]``, ``inner/train[0,1]``). ``task`` is just the task's name. ``exit_code`` is negative for a signal and
    None if no process has run. ``duration`` is in seconds over all attempts.
    """

    name: str
    task: str
    state: State
    exit_code: int | None = None
    #: Why the stage did not succeed, as a clause.
    reason: str = ""
    duration: float = 0.0
    attempts: int = 0
    #: ``KFP_POD_NAME`` of the last attempt.
    pod_name: str = ""
    log_file: Path | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    #: The id of the execution, under which the stage recorded its results, and where. None if the stage is not tracked,
    #: or recorded nothing.
    execution_id: str | None = None
    tracker_base: str | None = None
    #: The recorded results; None if they could not be read.
    results: Mapping[str, Any] | None = None
    #: The parameters that the stage was given.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: The time at which the first attempt started, in seconds since the epoch.
    started_at: float | None = None
    #: The code that counts for the local cache, in words: ``train.py, data.py``; empty if none does.
    code: str = ""
    #: The run whose outputs a cached stage has.
    cached_from: str = ""
    #: How many replicas a distributed stage has; None for other stages, and if it ended before they were started.
    replicas: int | None = None
    #: Local files and folders that the stage registered as artifacts, and the URLs of those that it has
    #: stored elsewhere.
    files: tuple[str, ...] = ()
    #: Whether the stage succeeds if its application fails.
    may_fail: bool = False

    def __post_init__(self) -> None:
        """Make lookups of unknown names raise errors with suggestions."""
        for kind in ("output", "artifact", "result", "input"):
            values = getattr(self, f"{kind}s")
            if values is not None:
                object.__setattr__(self, f"{kind}s", SuggestingDict(values, f"The stage {self.name!r}", kind))

    def __str__(self) -> str:
        """Return the stage's state, seconds and results, in one line: ``train: succeeded, 0.3 s, loss=0.04``."""
        name, state, seconds, facts = map(printable, _cells(self))
        return f"{name}: {', '.join(filter(None, [state, seconds and f'{seconds} s', facts]))}"

    def judged(self) -> StageResult:
        """Return the result with the state for users: an allowed failure is not a success."""
        is_allowed = self.may_fail and self.state is State.SUCCEEDED and self.results and self.results.get(EXIT_CODE)
        return replace(self, state=State.ALLOWED) if is_allowed else self

    @property
    def attempts_in_pod(self) -> int:
        """How often the last attempt started the application in its pod (``max_retries``), if the stage is tracked."""
        return PodAttempt.parse(self.execution_id or "").attempt

    @property
    def starts(self) -> int:
        """How often the application was started, as far as known: once in each earlier pod."""
        return self.attempts - 1 + self.attempts_in_pod if self.attempts else 0

    @property
    def measures(self) -> dict[str, Any]:
        """The values that describe the stage's work.

        For a tracked stage these are its results. For any other stage, or if the results cannot be read, they are
        KFP's metrics and the outputs that are numbers.
        """
        if self.results is not None:
            return dict(self.results)
        numbers = {name: value for name, value in self.outputs.items() if type(value) in (int, float)}
        metrics = {
            name: value
            for made in self.artifacts.values()
            for artifact in artifacts_in(made)
            if artifact.type.title == _METRICS
            for name, value in artifact.numeric_metadata.items()
            if isinstance(value, (int, float, str)) and name != _DISPLAY_NAME
        }
        return {**numbers, **metrics}

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines of the stage's log, without control characters."""
        return last_lines(self.log_file, count) if self.log_file is not None else []


@dataclass(frozen=True)
class RunResult:
    """The result of a run. ``stages`` are in the order of the pipeline and, in loops, of the iterations.

    A local run has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI.
    """

    pipeline: str
    run_id: str
    state: State
    folder: Path | None
    duration: float
    stages: tuple[StageResult, ...]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    #: Why the run failed although no stage failed, such as ``the time limit of 60 s was exceeded``.
    reason: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        """Make lookups of unknown names raise errors with suggestions."""
        for kind in ("output", "artifact"):
            values = SuggestingDict(getattr(self, f"{kind}s"), f"The run {self.run_id}", kind)
            object.__setattr__(self, f"{kind}s", values)

    def __getitem__(self, name: str) -> StageResult:
        """Return the stage with this name: ``result["train"]``, ``result["inner/train[2]"]``.

        Raises:
            UnknownNameError: no stage has this name, or several do, as in a loop. The message lists the stages.
        """
        matches = [stage for stage in self.stages if stage.name == name] or self.all(name)
        if len(matches) != 1:
            raise UnknownNameError(self._not_found(name, [stage.name for stage in matches]))
        return matches[0]

    def all(self, name: str) -> list[StageResult]:
        """Return all stages with this name (without indices), such as each iteration of ``inner/train``."""
        return [stage for stage in self.stages if without_indices(stage.name) == name]

    def _not_found(self, name: str, found: list[str]) -> str:
        if found:
            return f"{name!r} is {len(found):,} stages: {listed(found, _NAMED)}. result.all({name!r}) has all of them."
        known = list(dict.fromkeys(name for stage in self.stages for name in (stage.name, without_indices(stage.name))))
        there = listed((stage.name for stage in self.stages), _NAMED)
        return f"The run {self.run_id} has no stage {name!r}.{did_you_mean(name, known)} It has: {there}."

    def __repr__(self) -> str:
        return f"<RunResult {self._caption()}, {counted(len(self.stages), 'stage')}>"

    def __str__(self) -> str:
        """Return the run's state and the table of its stages, as text."""
        rows = [[shorten(printable(cell), _LONGEST) for cell in row] for row in self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([self._caption(), *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        """Return the table of stages that a notebook shows."""
        head, *rows = self._rows()
        table = _row("th", head) + "".join(_row("td", row) for row in rows)
        return f"<table><caption>{_text(self._caption())}</caption>{table}</table>"

    def _caption(self) -> str:
        return f"{self.run_id}: {self.state}, {duration(self.duration)}"

    def _rows(self) -> list[tuple[str, ...]]:
        more = self.stages[_ROWS:]
        rows: list[tuple[str, ...]] = [("stage", "state", "seconds", "results"), *map(_cells, self.stages[:_ROWS])]
        return [*rows, (f"and {len(more):,} more", "", "", "")] if more else rows

    def to_frame(self) -> pandas.DataFrame:
        """Return the stages as a pandas DataFrame with a row for each one, whose index is its name.

        The columns are ``stage``, the name without indices; ``iteration``, the index in the loop, or a tuple of them
        in nested loops; ``state``; ``seconds``; a column for each input of the compiled stage, such as
        ``input.rate_float`` for a parameter ``rate`` that is a number; and one for each result, or other value of
        ``StageResult.measures``, unless another column has its name. Missing values are NaN.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "A DataFrame")
        import pandas

        rows = []
        for stage in self.stages:
            indices = indices_of(stage.name)
            row = {
                "stage": without_indices(stage.name),
                "iteration": indices[0] if len(indices) == 1 else indices or None,
                "state": str(stage.state),
                "seconds": stage.duration,
            }
            rows.append({**stage.measures, **{f"input.{name}": value for name, value in stage.inputs.items()}, **row})
        inputs = [f"input.{name}" for stage in self.stages for name in stage.inputs]
        columns = dict.fromkeys([*_COLUMNS, *inputs, *(name for row in rows for name in row)])
        index = pandas.Index([stage.name for stage in self.stages], name="name", dtype=object)
        return pandas.DataFrame(rows, index=index, columns=[*columns])

    def raise_for_failure(self) -> None:
        """Raise StageFailedError if the run failed; its message has the failed stages, reasons and last lines."""
        if self.state is State.FAILED:
            raise StageFailedError(describe_failure(self))


def open_log(path: Path) -> BinaryIO:
    """Open the log of an attempt, ``<run>/<attempt>/log.txt``, if it is a file of the run's folder.

    Raises:
        OSError: it is missing, is not a regular file, or cannot be read.
    """
    return open_regular(str(path), str(path.parent.parent))


def last_lines(log_file: Path, count: int) -> list[str]:
    """Return the last lines of a log, without control characters; none if there is no log."""
    try:
        with open_log(log_file) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().removesuffix(b"\n").split(b"\n")
    except OSError:
        return []
    texts = [clean_line(line) for line in lines if lines != [b""]]
    # Of a distributed stage, the line that names the replica comes before those of the replica.
    names = (line for line in reversed(texts[:-count]) if line.endswith(LAST_LINES_FOLLOW))
    first = next(names, None) if count >= LAST_LINES else None
    return texts[-count:] if first is None else [first, *texts[1 - count :]]


def describe_exit(code: int) -> str:
    """Describe the end of a process by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"


def describe_failure(result: RunResult, printed: Collection[str] = ()) -> str:
    """Describe the failed stages, with their last lines, and the stages skipped because of them.

    Args:
        result: the result of the run.
        printed: the names of stages whose lines were printed, to omit them.
    """
    failed = [stage for stage in result.stages if stage.state is State.FAILED]
    not_run = [stage.name for stage in result.stages if stage.state is State.NOT_RUN]
    how = result.reason or f"{len(failed):,} of {counted(len(result.stages), 'stage')} failed"
    lines = [f"The run {result.run_id} failed: {how}."]
    alike: dict[tuple[object, ...], list[StageResult]] = {}
    for stage in failed[:_NAMED]:  # iterations of a loop may fail for one reason
        kind = without_indices(stage.name), stage.reason, stage.attempts, *stage.last_lines(1)
        alike.setdefault(kind, []).append(stage)
    quoted = [*alike.values()][:_QUOTED]
    for stage, *others in quoted:
        attempts = f", the last of {stage.attempts} attempts" if stage.attempts > 1 else ""
        end = "" if stage.reason.endswith("?") else "."
        lines.append(f"{stage.name} {stage.reason}{f'{attempts}.' if attempts else end}")
        tail = stage.last_lines()
        if tail and stage.name in printed and result.folder is not None:
            lines.append(f"  Its lines are above, and in {stage.log_file}.")
        elif any(f": {line.removeprefix('torchx-kfp: ').rstrip('?.')}" not in stage.reason for line in tail):
            # The log of a run on a host is in a temporary file.
            lines.append(f"  Its last lines{f', from {stage.log_file}' if result.folder is not None else ''}:")
            lines += [f"    {line}" for line in tail]
        if others:
            lines.append(f"  Likewise: {listed((other.name for other in others), _NAMED)}.")
    told = {stage.name for stages in quoted for stage in stages}
    if left := [stage.name for stage in failed if stage.name not in told]:
        lines.append(f"Also failed: {listed(left, _NAMED)}. Their logs are in {result.folder or result.link}.")
    ended = [stage.name for stage in result.stages if stage.state is State.CANCELED]
    if ended:
        lines.append(f"Ended because of that: {listed(ended, _NAMED)}.")
    if not_run:
        lines.append(f"Not run because of that: {listed(not_run, _NAMED)}.")
    return "\n".join(lines)


def _cells(stage: StageResult) -> tuple[str, str, str, str]:
    told = [f"{name}={shown(value)}" for name, value in stage.measures.items()]
    seconds = f"{stage.duration:.1f}" if stage.attempts else ""
    state = f"{stage.state}, {stage.attempts} attempts" if stage.attempts > 1 else str(stage.state)
    return stage.name, state, seconds, ", ".join(told) or stage.reason


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return escape(clean(text))
