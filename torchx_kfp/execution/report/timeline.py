"""Draw the timeline: a row for each task, with the attempts of its stages as bars in lanes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.common.text import duration
from torchx_kfp.execution.report.graph import summary
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.state import Session, StageState
from torchx_kfp.execution.runs.vocabulary import State

#: The labeled positions of the timeline, in percent.
_TICKS = (0, 25, 50, 75)


@dataclass(frozen=True)
class Bar:
    """An attempt. ``left`` and ``width`` are percentages of the timeline."""

    state: State
    title: str
    lane: int
    left: float
    width: float


@dataclass(frozen=True)
class TimelineRow:
    """A task. ``lanes`` is the largest number of stages at once."""

    path: str
    note: str
    lanes: int
    bars: list[Bar]


@dataclass(frozen=True)
class Timeline:
    """A drawn timeline. ``ticks`` are (percent, label); ``retried`` are its retries on KFP, in percent."""

    rows: list[TimelineRow]
    ticks: Sequence[tuple[float, str]]
    retried: list[float]


def draw_timeline(record: RunRecord) -> Timeline:
    """Draw the run's timeline, without the gaps between its sessions."""
    clock = _Clock(record.sessions)
    rows = [_row(path, stages, clock, record.sessions[-1].end) for path, stages in record.tasks.items()]
    return Timeline(
        rows=sorted((row for row in rows if row.bars), key=lambda row: min(bar.left for bar in row.bars)),
        ticks=[(share, duration(clock.total * share / 100)) for share in _TICKS],
        retried=[clock.percent(session.start) for session in record.sessions[1:]],
    )


class _Clock:
    """Maps times to the timeline, which omits gaps between sessions."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self.total = max(sum(session.end - session.start for session in sessions), 1e-3)

    def percent(self, when: float) -> float:
        passed = sum(min(max(when - it.start, 0.0), it.end - it.start) for it in self._sessions)
        return 100 * passed / self.total

    def session_end(self, when: float) -> float:
        """Return the end of the session at this time."""
        return next((it.end for it in self._sessions if it.start <= when <= it.end), when)


def _row(path: str, stages: list[StageState], clock: _Clock, now: float) -> TimelineRow:
    bars: list[Bar] = []
    free: list[tuple[float, int]] = []  # (when it is free, lane)
    lanes = 0
    for stage in sorted(stages, key=lambda stage: stage.attempts[0].start if stage.attempts else math.inf):
        if not stage.attempts:
            continue
        start = stage.attempts[0].start
        if free and free[0][0] <= start:
            lane = heapq.heappop(free)[1]
        else:
            lane, lanes = lanes, lanes + 1
        bars += _bars(stage, lane, clock)
        end = stage.attempts[-1].end
        heapq.heappush(free, (now if end is None else end, lane))
    return TimelineRow(path, summary(stages)[1], lanes, bars)


def _bars(stage: StageState, lane: int, clock: _Clock) -> Iterable[Bar]:
    for attempt in stage.attempts:
        end = attempt.end if attempt.end is not None else clock.session_end(attempt.start)
        left, right = clock.percent(attempt.start), clock.percent(end)
        which = f", attempt {attempt.number}" if len(stage.attempts) > 1 else ""
        took = f", {duration(end - attempt.start)}"
        title = f"{stage.name}{which}: {attempt.state}{took}"
        yield Bar(attempt.state, title, lane, left, max(right - left, 0.0))
