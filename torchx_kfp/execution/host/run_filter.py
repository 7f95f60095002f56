"""Which runs of a KFP host are listed: as a filter of KFP's API, and as a test of what the host has sent.

The host filters by what its database has. Its states lack "canceled", and text is compared as the database likes, so
each run is tested again.
"""

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
        experiment: the name of the run's experiment.
        newer_than: the age in seconds that runs have not reached, counted from their creation.
        older_than: the age in seconds that runs have reached.
        archived: whether runs are archived; None for both kinds.
        schedule_id: the id of the schedule that made the run.
    """

    states: Collection[str] = ()
    name: str = ""
    experiment: str = ""
    newer_than: float | None = None
    older_than: float | None = None
    archived: bool | None = False
    schedule_id: str = ""

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
        """Return the filter for KFP's API, as JSON; empty if all runs meet it. The experiment is not in it."""
        found: list[dict[str, Any]] = []
        # A run that has not begun may lack a state.
        if self.states and State.QUEUED not in self.states:
            words = sorted({word for state in self.states for word in words_of(State(state))})
            found.append({"operation": "IN", "key": "state", "stringValues": {"values": words}})
        if self.name:
            found.append({"operation": "IS_SUBSTRING", "key": "display_name", "stringValue": self.name})
        if self.newer_than is not None:
            found.append(_at("GREATER_THAN_EQUALS", now - self.newer_than))
        if self.older_than is not None:
            found.append(_at("LESS_THAN_EQUALS", now - self.older_than))
        if self.archived is not None:
            operation = "EQUALS" if self.archived else "NOT_EQUALS"
            found.append({"operation": operation, "key": "storage_state", "stringValue": "ARCHIVED"})
        if self.schedule_id:
            found.append({"operation": "EQUALS", "key": "recurring_run_id", "stringValue": self.schedule_id})
        return json.dumps({"predicates": found}) if found else ""

    def selects(
        self, state: State, name: str, created: float, now: float, *, archived: bool = False, schedule_id: str = ""
    ) -> bool:
        """Tell whether a run with these fields meets the filter. Its experiment is not compared."""
        age = now - created
        return (
            (not self.states or state in self.states)
            and self.name.lower() in name.lower()
            # The host compares whole seconds.
            and (self.newer_than is None or age < self.newer_than + 1)
            and (self.older_than is None or (created > 0 and age >= self.older_than))
            and self.archived in (None, archived)
            and self.schedule_id in ("", schedule_id)
        )


def _at(operation: str, seconds: float) -> dict[str, Any]:
    time = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)
    return {"operation": operation, "key": "created_at", "timestampValue": time.strftime("%Y-%m-%dT%H:%M:%SZ")}
