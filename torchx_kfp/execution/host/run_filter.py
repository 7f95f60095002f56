"""Filters of lists of a KFP host, as its API takes them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import did_you_mean
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.states import words_of
from torchx_kfp.execution.runs.vocabulary import RUN_STATES, State


@dataclass(frozen=True)
class RunFilter:
    """Selects runs of a host; runs meet all that is given.

    Attributes:
        states: words such as ``"failed"``, of which a run has one.
        name: a part of the run's name in KFP's UI, in upper or lower case.
        newer_than: the age in seconds that runs have not reached, counted from their creation.
        archived: whether archived runs are selected, too.
    """

    states: Collection[str] = ()
    name: str = ""
    newer_than: float | None = None
    archived: bool = False

    def __post_init__(self) -> None:
        """Check the states.

        Raises:
            ArgumentError: a run cannot have one of them.
        """
        for state in self.states:
            if state not in RUN_STATES:
                raise ArgumentError(
                    f"No run is {str(state)!r}.{did_you_mean(state, map(str, RUN_STATES))} "
                    f"States: {', '.join(map(str, RUN_STATES))}."
                )

    def query(self, now: float) -> str:
        """Return the filter for KFP's API; empty if all runs meet it."""
        found: list[dict[str, Any]] = []
        # A run that has not begun may lack a state.
        if self.states and State.QUEUED not in self.states:
            words = sorted({word for state in self.states for word in words_of(State(state))})
            found.append(_predicate("IN", "state", stringValues={"values": words}))
        if self.name:
            found.append(_predicate("IS_SUBSTRING", "display_name", stringValue=self.name))
        if self.newer_than is not None:
            begin = _timestamp(now - self.newer_than)
            found.append(_predicate("GREATER_THAN_EQUALS", "created_at", timestampValue=begin))
        if not self.archived:
            found.append(_predicate("NOT_EQUALS", "storage_state", stringValue="ARCHIVED"))
        return _query(found) if found else ""

    def selects(self, state: State, name: str, age: float) -> bool:
        """Tell whether a run on this machine meets the filter."""
        return (
            (not self.states or state in self.states)
            and self.name.lower() in name.lower()
            and (self.newer_than is None or age < self.newer_than)
        )


def of_name(name: str) -> str:
    """Return the filter for objects with this name in KFP's UI."""
    return _query([_predicate("EQUALS", "display_name", stringValue=name)])


def in_id(part: str) -> str:
    """Return the filter for runs whose ids have this part."""
    return _query([_predicate("IS_SUBSTRING", "run_id", stringValue=part)])


def _timestamp(time: float) -> str:
    """Return a time in seconds since the epoch as KFP's API takes it."""
    return datetime.datetime.fromtimestamp(int(time), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _predicate(operation: str, key: str, **value: Any) -> dict[str, Any]:
    return {"operation": operation, "key": key, **value}


def _query(predicates: list[dict[str, Any]]) -> str:
    return json.dumps({"predicates": predicates})
