"""Compare what has happened in a run with what was known of it before: the events of a poll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torchx_kfp.execution.runs.events import Event, StagePending

#: What the steps of the run itself are steps of.
RUN = ""
#: The place of a step among those of the same thing: the index of the run's period, the rounds of the nested pipelines
#: around it, and a number within these. Whatever is further has a larger place.
Place: TypeAlias = tuple[int, tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Step:
    """An event in the life of one thing: of a stage, a loop or a nested pipeline, by its name, or of the ``RUN``."""

    of: str
    at: Place
    event: Event


def changes(before: Mapping[str, Step], now: Iterable[Step]) -> list[Step]:
    """Return the steps that go further than those before.

    An answer may be older than the one before: nothing that it tells is taken back, or told again.

    Args:
        before: the last step of each thing, by its name.
        now: all steps so far. Those of one thing are in order.
    """
    last, new = dict(before), []
    for step in now:
        known = last.get(step.of)
        if (known is None or step.at >= known.at) and _is_news(step, known):
            new.append(step)
            last[step.of] = step
    return new


def _is_news(step: Step, known: Step | None) -> bool:
    if isinstance(step.event, StagePending):
        # A pod that waits stays in its place, for one reason after the other. Most wait for none.
        before = known.event.reason if known is not None and isinstance(known.event, StagePending) else ""
        return step.event.reason != before
    return known is None or step.at > known.at
