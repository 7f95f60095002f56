"""Draw a run as lines that fit a terminal: a pure function, so that tests can draw any moment at any size.

If not all stages fit, running and failed ones come first, then the next ones. The rest becomes a line of counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from rich.text import Text

from torchx_kfp.common.text import REPLACEMENT, clean, duration
from torchx_kfp.entrypoints.cli.display.printing import show_results
from torchx_kfp.execution.runs.events import CANCELED_ON_KFP
from torchx_kfp.execution.runs.state import RunState, StageState
from torchx_kfp.execution.runs.vocabulary import State, state_of_all

#: Line breaks and tabs become spaces; joiners, whose width depends on the terminal, become a replacement character.
_IN_A_LINE = {**dict.fromkeys(map(ord, "\n\t"), " "), **dict.fromkeys(map(ord, "\u200c\u200d"), REPLACEMENT)}
#: The most failed iterations of a loop with a row.
_FAILED = 3
#: The width of a bar, and the most characters of a line that are read.
_BAR, _CUT = 12, 1000
#: Narrower terminals have no bars.
_NARROW = 70
#: The most lines of a running stage's output.
LINES = 5
#: Returns the last lines of a stage's output.
Tails = Callable[[str], list[str]]


@dataclass(eq=False)
class _Row:
    """A candidate line of the picture: a task, or an iteration of a loop."""

    name: str
    state: State
    #: Returns the text beside the name; only called for shown rows.
    detail: Callable[[], Text]
    #: Rows with smaller ranks take precedence.
    rank: int
    time: str = ""
    is_iteration: bool = False
    #: The states of a task's stages.
    counts: Mapping[State, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def frame(run: RunState, tails: Tails, width: int, height: int, now: float) -> list[Text]:
    """Draw the current state of the run in at most ``height`` lines of at most ``width`` columns.

    Args:
        tails: returns the last lines of a stage's output.
        now: the time in seconds since the epoch.
    """
    rows, room = list(_rows(run, tails, now, width >= _NARROW)), max(1, height - 1)
    rest: Counter[State] = Counter()
    if len(rows) > room:
        hidden = {*sorted(rows, key=lambda row: row.rank)[max(0, room - 1) :]}
        rest = sum((Counter(row.counts) for row in hidden), rest)
        rows = [row for row in rows if row not in hidden]
    talking = sum(bool(row.lines) for row in rows)
    # The lines of output below each running stage; if 0, the last line is shown next to the stage.
    most = min(LINES, (room - len(rows) - bool(rest)) // talking) if talking else 0
    most = most if most > 1 else 0
    labels = [_cleaned(_label(row)) for row in rows]
    widest = max((label.cell_len for label in labels), default=0)
    column = min(widest, max(16, width * 2 // 5))
    lines = [_header(run, now)]
    for row, label in zip(rows, labels, strict=True):
        label.truncate(column, overflow="ellipsis", pad=True)
        line = Text.assemble(label, f"{row.time:>7}  ", row.detail())
        if row.lines and not most:
            line.append_text(_output(row.lines[-1]))
        lines.append(line)
        indent = " " * (4 if row.is_iteration else 2)
        lines += [Text.assemble(indent, ("│ ", "dim"), _output(text)) for text in row.lines[-most:] if most]
    if rest:
        counts = {state: rest[state] for state in State if rest[state]}
        lines.append(Text.assemble((f"⋯ {rest.total():,} more: ", "dim"), _counts(counts)))
    lines = [_cleaned(line) for line in lines]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


class OutputTails:
    """Keeps the last lines of the stages' output."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[str]] = {}
        self._unfinished: dict[str, str] = {}

    def on_line(self, stage: str, line: str) -> None:
        """Receive a line of a stage's output. The first line may precede the event of the stage's start."""
        if line and not line.isspace():
            self._lines.setdefault(stage, deque(maxlen=LINES)).append(line)

    def on_unfinished(self, stage: str, line: str) -> None:
        """Receive the stage's unfinished line."""
        self._unfinished[stage] = line

    def tail(self, stage: str) -> list[str]:
        """Return the last lines of the stage, without empty ones."""
        unfinished = self._unfinished.get(stage, "")
        lines = [*self._lines.get(stage, ()), *([unfinished] if unfinished.strip() else [])]
        return lines[-LINES:]

    def forget(self, stage: str) -> None:
        """Forget the lines of a finished stage."""
        self._lines.pop(stage, None)
        self._unfinished.pop(stage, None)


def _header(run: RunState, now: float) -> Text:
    started = run.started
    header = Text(started.pipeline if started else "", "bold")
    if started is not None:
        header.append(f" {duration(now - started.time, whole=True)}", "not bold")
    header.append("  ").append_text(_counts(run.counts()))
    if run.ending is not None:
        left = max(0, round(run.ending.time + run.ending.grace - now))
        reason = run.ending.reason
        at_once = "" if reason == CANCELED_ON_KFP else "; another signal: at once"
        header = Text.assemble((f"{reason}: ending, {left} s left", "bold yellow"), f"{at_once}  ", header)
    return header


def _counts(counts: Mapping[State, int]) -> Text:
    return Text(", ").join(Text(f"{number:,} {state}", state.style) for state, number in counts.items())


def _rows(run: RunState, tails: Tails, now: float, has_bars: bool) -> Iterator[_Row]:
    for path, stages in run.tasks.items():
        counts = run.counts([path])
        if path not in run.expected:
            unheard = StageState(path, path, next(iter(counts), State.WAITING))
            yield _stage_row(tails, next(iter(stages.values()), unheard), now, counts)
            continue
        if not counts:  # its loop has no items
            continue
        state = state_of_all(counts)
        row = _Row(path, state, partial(_several, counts, has_bars), min(map(_rank, counts)), counts=counts)
        active = [stage for stage in stages.values() if stage.state.is_active]
        if starts := [stage.attempts[0].start for stage in stages.values() if stage.attempts]:
            end = now if active else max(stage.ended_at for stage in stages.values())
            row.time = duration(end - min(starts), whole=bool(active))
        yield row
        stuck = [stage for stage in stages.values() if stage.is_stuck]
        failed = [stage for stage in stages.values() if stage.state is State.FAILED]
        failed.sort(key=lambda stage: stage.ended_at)
        for stage in (*active, *stuck[:_FAILED], *failed[-_FAILED:]):
            inner = _stage_row(tails, stage, now, {})
            inner.is_iteration = True
            yield inner


def _stage_row(tails: Tails, stage: StageState, now: float, counts: Mapping[State, int]) -> _Row:
    rank = _rank(State.RETRYING if stage.is_stuck else stage.state)
    row = _Row(stage.name, stage.state, partial(_detail, stage, now), rank, counts=counts)
    if stage.state.is_active:
        row.time = duration(now - (stage.started_at or now), whole=True)
        row.lines = tails(stage.name) if stage.state is State.RUNNING else []
    elif stage.state.is_over and stage.result.attempts:
        row.time = duration(stage.result.duration)
    return row


def _detail(stage: StageState, now: float) -> Text:
    result = stage.result
    attempt = f"attempt {result.starts}  " if result.starts > 1 else ""
    replicas = f"{result.replicas} replicas  " if result.replicas else ""
    if stage.state is State.RETRYING:
        left = round(stage.retry_at - now)
        when = f"in {left} s" if left > 0 else "is next"
        return Text(f"attempt {result.attempts + 1} {when}: {stage.reason}", "yellow")
    if not stage.state.is_over:
        running = f"{stage.replicas[0]}/{stage.replicas[1]} replicas  " if stage.replicas else ""
        stuck = f"cannot start: {stage.reason}" if stage.is_stuck else ""
        return Text.assemble((attempt, "yellow"), running, (stuck, "yellow"))
    if result.state.is_success:
        is_plain = stage.state is State.SUCCEEDED
        how = "" if is_plain else (f"{stage.state}  ", "dim" if stage.state is State.CACHED else stage.state.style)
        # Numbers first: texts are long and would hide whatever follows them.
        results = dict(sorted(result.measures.items(), key=lambda item: isinstance(item[1], str)))
        return Text.assemble(how, (attempt, "dim"), (replicas, "dim"), (show_results(results)))
    if not result.attempts:
        return Text(result.reason.removeprefix("was "), "dim")
    style = "red" if stage.state is State.FAILED else ""
    attempts = (f" ({result.starts} attempts)", "yellow") if result.starts > 1 else ""
    return Text.assemble((result.reason, style), attempts)


def _rank(state: State) -> int:
    if state.is_over:
        return 1 if state is State.FAILED else 3
    return 0 if state.is_active else 2


def _label(row: _Row) -> Text:
    style = "bold red" if row.counts.get(State.FAILED) else row.state.style
    dim = "dim" if style == "dim" else ""
    return Text.assemble("  " * row.is_iteration, (row.state.glyph, style), " ", (row.name, dim))


def _several(counts: Mapping[State, int], has_bar: bool) -> Text:
    """Format the progress of a loop."""
    total = sum(counts.values())
    if counts == {State.WAITING: total}:
        return Text()
    open_ = sum(number for state, number in counts.items() if not state.is_over)
    if not open_:
        return _counts(counts)
    filled = _BAR * (total - open_) // total
    text = Text.assemble(("━" * filled, "green"), ("─" * (_BAR - filled), "dim"), " ") if has_bar else Text()
    text.append(f"{total - open_:,}/{total:,}  ")
    expected = {State.SUCCEEDED, *(state for state in State if state.is_pending)}
    return text.append_text(_counts({state: number for state, number in counts.items() if state not in expected}))


def _output(line: str) -> Text:
    """Return a line of a stage's output with its colors, but without cursor movements."""
    # rich breaks lines wherever Python's splitlines does.
    text = _cleaned(Text.from_ansi("".join(line[:_CUT].expandtabs(4).splitlines())))
    text.stylize_before("dim")
    return text


def _cleaned(text: Text) -> Text:
    """Return the text in one line; unsafe characters are replaced one by one."""
    if not text.plain.isprintable():
        text = text.copy()
        # Each character is replaced by exactly one, so that styles keep their places.
        text.plain = clean(text.plain).translate(_IN_A_LINE)
    return text
