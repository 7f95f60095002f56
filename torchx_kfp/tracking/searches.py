"""The state of a search: its definition, the trials with their results, and the trials that it asks for next.

Each stage of a search that asks for trials records one entry (``torchx_kfp.hpo.ask``), and so does the last stage::

    {"name": "search", "round": 2,
     "definition": {"parameters": {"lr": {"type": "float", "bounds": [0.0001, 1.0], "log": true},
                                   "layers": {"type": "int", "bounds": [1, 8], "log": false},
                                   "act": {"type": "choice", "values": ["relu", "gelu"]}},
                    "objectives": {"loss": "minimize"}, "rounds": 3, "trials": 4, "optimizer": "random", "seed": null},
     "trials": [{"round": 1, "index": 0, "run_id": "...", "parameters": {"lr": 0.1, "layers": 3, "act": "relu"},
                 "results": {"loss": 0.3}, "exit_code": 0, "failed": false}],
     "asked": [{"lr": 0.01, "layers": 2, "act": "gelu"}], "state": null, "before": "..."}

A parameter with bounds may have ``points``: the number of its values in a grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.tracking.entries import from_json


@dataclass(frozen=True)
class Trial:
    """A finished trial.

    Attributes:
        round: its round, from 1.
        index: its position in the round, from 0.
        run_id: its execution.
        parameters: the value of each parameter.
        results: its objectives. NaN, infinities and missing objectives are left out.
        exit_code: the exit code of its application.
        failed: whether the optimizer counts it as failed: its exit code is not 0, or an objective is missing.
    """

    round: int
    index: int
    run_id: str
    parameters: Mapping[str, int | float | bool | str]
    results: Mapping[str, float]
    exit_code: int
    failed: bool

    def value_of(self, objective: str) -> float | None:
        """Return the value of an objective, or None if the trial failed or has no finite value."""
        value = None if self.failed else self.results.get(objective)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Search:
    """The state of a search.

    Attributes:
        name: the name of the search.
        round: the round for which it asks; ``rounds + 1`` at the end of the search.
        parameters: the space of each parameter, as in the definition.
        objectives: ``"minimize"`` or ``"maximize"`` for each objective. The first one decides which trial is best; ties
            are decided by the next one.
        rounds: the number of rounds.
        trials: the trials of earlier rounds, in the order in which they were asked for.
        asked: the parameters of each trial of this round; empty in the last stage.
        definition: the arguments of the search.
        state: the optimizer's own state.
        before: the execution id of the stage that this one continues; None for the first one.
    """

    name: str
    round: int
    parameters: Mapping[str, Mapping[str, Any]]
    objectives: Mapping[str, str]
    rounds: int
    trials: tuple[Trial, ...]
    asked: tuple[Mapping[str, int | float | bool | str], ...]
    definition: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    before: str | None = None

    @staticmethod
    def latest(searches: Mapping[str, Search | None]) -> dict[str, Search]:
        """Return the latest state of each search, by execution id.

        Each stage of a search records the whole state, so the latest is the one that no other stage continues.

        Args:
            searches: the recorded states by execution id, in the order of stages.
        """
        continued = {search.before for search in searches.values() if search is not None}
        return {run_id: it for run_id, it in searches.items() if it is not None and run_id not in continued}

    def is_complete(self, trial: Trial) -> bool:
        """Return whether the trial has a value of each objective."""
        return all(trial.value_of(name) is not None for name in self.objectives)

    def sign_of(self, objective: str) -> int:
        """Return 1 or -1: the factor that turns values of the objective into costs, where smaller is better."""
        return -1 if self.objectives[objective] == "maximize" else 1

    def cost_of(self, trial: Trial) -> tuple[float, ...]:
        """Return the objectives of a complete trial as costs. The best trial has the smallest tuple."""
        return tuple(self.sign_of(name) * trial.results[name] for name in self.objectives)

    def best_in(self, objective: str) -> Trial | None:
        """Return the first trial with the best value of one objective."""
        finite = [trial for trial in self.trials if trial.value_of(objective) is not None]
        return min(finite, key=lambda trial: self.sign_of(objective) * trial.results[objective], default=None)

    def best(self) -> Trial | None:
        """Return the best complete trial. The first objective decides; ties are decided by the next one."""
        return min(filter(self.is_complete, self.trials), key=self.cost_of, default=None)

    def best_trials(self) -> list[Trial]:
        """Return the best trial or, with several objectives, the Pareto front: the trials that no other trial
        dominates.

        A trial dominates another one if it is at least as good in every objective and better in one.
        """
        if len(self.objectives) == 1:
            return [best] if (best := self.best()) else []
        costs = [(self.cost_of(trial), trial) for trial in self.trials if self.is_complete(trial)]
        return [
            trial
            for own, trial in costs
            if not any(cost != own and all(a <= b for a, b in zip(cost, own, strict=True)) for cost, _ in costs)
        ]


def _parse_space(content: Mapping[str, Any]) -> Mapping[str, Any]:
    space = dict(content)
    if "values" in space:
        space["values"] = list(space["values"])
    else:
        low, high = space["bounds"]
        space["bounds"] = [low + 0, high + 0]  # numbers; a TypeError otherwise
    return space


def parse_search(content: Mapping[str, Any]) -> Search:
    """Return the search in an entry. Raises KeyError, TypeError or ValueError if it is malformed."""
    definition = content["definition"]
    spaces = {name: _parse_space(space) for name, space in definition["parameters"].items()}
    if not definition["objectives"]:
        raise ValueError("a search has an objective")
    return from_json(Search, {**definition, **content, "parameters": spaces})
