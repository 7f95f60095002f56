"""Describe events in lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchx_kfp.runs.events import (
    Event,
    PipelineRetried,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StageRetried,
    StageStarted,
)
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import duration, shown

#: How many characters of a value are shown.
_LONGEST = 200


def messages(event: Event, *, verbose: bool = False) -> list[str]:
    """Return lines about an event; if ``verbose``, also about starts of stages, and their inputs and outputs."""
    if isinstance(event, RunStarted):
        lines = [f"Run {event.run_id}: logs and outputs are in {event.folder}"]
        if event.not_applied:
            lines.append(f"Not applied on this machine: {', '.join(event.not_applied)}.")
        return lines + [f"On KFP: {text}" for text in event.differs]
    if isinstance(event, StageStarted) and verbose:
        attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        return [f"{event.name} starts{attempt}.", *_values(event.name, "input", event.inputs)]
    if isinstance(event, StageRetried | PipelineRetried):
        in_ = f" in {event.delay:g} s" if event.delay else ""
        return [f"{event.name} {event.reason} (attempt {event.attempt}); trying again{in_}."]
    if isinstance(event, StageFinished):
        return _finished(event, verbose)
    if isinstance(event, RunEnding):
        return [f"{event.reason}: the running stages have {event.grace:g} s to end; another signal kills them."]
    if isinstance(event, RunFinished) and event.state is State.CANCELED:
        return [f"Run {event.run_id} was ended by {event.reason}."]
    return []


def _finished(event: StageFinished, verbose: bool) -> list[str]:
    stage = event.result
    if event.kept:
        return [f"{stage.name} is kept: it succeeded before."]
    if not stage.attempts and not verbose and not stage.state.is_success:
        return []
    how = stage.reason or ("is taken from an earlier run" if stage.cached_from else str(stage.state))
    lines = [f"{stage.name} {how} ({duration(stage.duration)})." if stage.attempts else f"{stage.name} {how}."]
    if verbose:
        artifacts = {
            name: [item.location or item.uri for item in made] if isinstance(made, list) else made.location or made.uri
            for name, made in stage.artifacts.items()
        }
        lines += _values(stage.name, "output", {**stage.outputs, **artifacts})
        lines += _values(stage.name, "result", stage.results or {})
    return lines


def _values(stage: str, what: str, values: Mapping[str, Any]) -> list[str]:
    return [f"{stage}   {what} {name} = {_show(value)}" for name, value in values.items()]


def _show(value: Any) -> str:
    # JSON escapes line breaks, so that each value stays in one line.
    return shown(value) if isinstance(value, str) else json.dumps(value, default=str)[:_LONGEST]
