"""Answers of KFP's API about four runs of one pipeline, as recorded, and the states that follow from them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx_kfp.backend.observer import Observer
from torchx_kfp.runs.events import Event
from torchx_kfp.runs.state import RunState, outline

RECORDED = Path(__file__).parents[1] / "recorded" / "kfp"
#: The names of the recorded runs.
RUNS = ("succeeded", "cached", "failed", "terminated")


@functools.cache
def _read(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text(encoding="utf-8")


def polls(name: str) -> list[dict[str, Any]]:
    """Return v2beta1's answers about a run, whenever something in them had changed."""
    return [poll["answer"] for poll in json.loads(_read(f"{name}-polls"))]


def manifest(name: str) -> dict[str, Any]:
    """Return v1beta1's answer about a run at its end."""
    answer: dict[str, Any] = json.loads(_read(f"{name}-v1beta1"))["answer"]
    return answer


def pods(name: str) -> dict[str, str]:
    """Return the pods of the stages of a run that has them, as MLMD has recorded them."""
    return {stage: facts.get("pod", "") for stage, facts in json.loads(_read(f"{name}-stages")).items()}


def fold(observer: Observer, events: Iterable[Event]) -> RunState:
    """Return the state of the run after these events."""
    state = RunState(outline(observer.pipeline) if observer.pipeline is not None else None)
    for event in events:
        state.on_event(event)
    return state


def observed(run: Mapping[str, Any], manifest: Mapping[str, Any] | None = None) -> RunState:
    """Return the state that an observer finds who sees only one answer."""
    observer = Observer()
    return fold(observer, observer.observe(run, manifest))


def states(state: RunState) -> dict[str, str]:
    """Return the states of all stages, by their names, in order."""
    return {stage.name: str(stage.state) for stage in state.stages}
