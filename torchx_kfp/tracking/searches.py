"""The progress of a search: its definition, the trials with their results, and what it asks for next.

Each stage of a search between its trials records one entry (``torchx_kfp.hpo.ask``), and so does the last one::

    {"name": "search", "round": 2,
     "definition": {"parameters": {"lr": {"type": "float", "bounds": [0.0001, 1.0], "log": true},
                                   "layers": {"type": "int", "bounds": [1, 8], "log": false},
                                   "act": {"type": "choice", "values": ["relu", "gelu"]}},
                    "objectives": {"loss": "minimize"}, "rounds": 3, "trials": 4, "optimizer": "random", "seed": null},
     "trials": [{"round": 1, "index": 0, "run_id": "...", "parameters": {"lr": 0.1, "layers": 3, "act": "relu"},
                 "results": {"loss": 0.3}, "exit_code": 0, "failed": false}],
     "asked": [{"lr": 0.01, "layers": 2, "act": "gelu"}], "state": null}

A parameter with bounds may have ``points``, the number of its values in a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.tracking.entries import from_json


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Attributes:
        round: the round in which it ran, from 1 on.
        index: its place in the round, from 0 on.
        run_id: its run.
        parameters: the value of each parameter.
        results: its objectives. NaN and infinities are left out, as are those that it did not record.
        exit_code: the exit code of its application.
        failed: whether it counts as failed for the optimizer: it did not exit with 0, or an objective is missing.
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
    """The progress of a search.

    Attributes:
        name: the name of the search.
        round: the round for which it asks; one more than there are rounds when the search has ended.
        parameters: the space of each parameter, as in the definition.
        objectives: ``"minimize"`` or ``"maximize"`` for each objective. The first one decides which trial is the best,
            the next one among equals.
        rounds: the number of rounds.
        trials: the trials of the rounds before this one, in the order in which they were asked for.
        asked: the parameters of each trial of this round. The last stage asks for none.
        definition: all that the search was asked to do.
        state: what the optimizer knows of its earlier answers.
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

    @staticmethod
    def latest(stated: Iterable[Search | None]) -> list[Search]:
        """Return the latest state of each search, in their order.

        Each stage of a search records all that is known by then. Several searches may have the same name, for example
        in the iterations of a loop.
        """
        found = [one for one in stated if one is not None and one.objectives]
        return [one for one in found if not any(other._continues(one) for other in found)]

    def is_complete(self, trial: Trial) -> bool:
        """Return whether the trial has a value of each objective."""
        return all(trial.value_of(name) is not None for name in self.objectives)

    def sign_of(self, objective: str) -> int:
        """Return the factor that turns values of the objective into costs, of which smaller ones are better."""
        return -1 if self.objectives[objective] == "maximize" else 1

    def best_in(self, objective: str) -> Trial | None:
        """Return the trial with the best value of one objective, the first of equally good ones."""
        sign = self.sign_of(objective)
        found = [(sign * value, trial) for trial in self.trials if (value := trial.value_of(objective)) is not None]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def best_trials(self) -> list[Trial]:
        """Return the best trial; with several objectives, the Pareto front: the trials than which no other is better.

        A trial is better than another one if it is as good in every objective and better in one.
        """
        if len(self.objectives) == 1:
            best = self.best_in(next(iter(self.objectives)))
            return [] if best is None else [best]
        complete = [trial for trial in self.trials if self.is_complete(trial)]
        costs = [tuple(self.sign_of(it) * (trial.value_of(it) or 0.0) for it in self.objectives) for trial in complete]
        return [complete[index] for index in unbeaten(costs)]

    def _continues(self, earlier: Search) -> bool:
        """Return whether this state repeats the trials of another one, and has those that the other asks for."""
        if self.round <= earlier.round or self.name != earlier.name:
            return False
        count = len(earlier.trials)
        since = self.trials[count : count + len(earlier.asked)]
        return [trial.run_id for trial in self.trials[:count]] == [trial.run_id for trial in earlier.trials] and [
            trial.parameters for trial in since
        ] == list(earlier.asked)


def unbeaten(costs: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the costs that no others beat: as low in every objective, and lower in one."""
    return [
        index
        for index, own in enumerate(costs)
        if not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in costs)
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
    return from_json(Search, {**definition, **content, "parameters": spaces})
