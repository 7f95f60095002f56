"""Evaluate the statements of searches: which of them count, the values of trials, and the best trials.

Each stage of a search states all that is known by then (``statements.search``), so only the latest statement counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torchx_kfp.carried.pareto import unbeaten
from torchx_kfp.tracking.statements.search import Search, Trial


def current(stated: Iterable[Search | None]) -> list[Search]:
    """Return the statements that no later one continues: one for each search, in their order.

    Several searches may have the same name, for example in the iterations of a loop. A statement continues another one
    if it repeats its trials and tells of those that the other one asks for.
    """
    found = [one for one in stated if one is not None and one.objectives]
    return [one for one in found if not any(_continues(other, one) for other in found)]


def value_of(trial: Trial, objective: str) -> float | None:
    """Return the trial's value of an objective, or None if the trial failed or has no finite value."""
    value = None if trial.failed else trial.results.get(objective)
    return value if value is not None and math.isfinite(value) else None


def is_complete(search: Search, trial: Trial) -> bool:
    """Return whether the trial has a value of each objective."""
    return all(value_of(trial, name) is not None for name in search.objectives)


def sign_of(search: Search, objective: str) -> int:
    """Return the factor that turns values of the objective into costs, of which smaller ones are better."""
    return -1 if search.objectives[objective] == "maximize" else 1


def best_in(search: Search, objective: str) -> Trial | None:
    """Return the trial with the best value of one objective, the first of equally good ones."""
    sign = sign_of(search, objective)
    found = [(sign * value, trial) for trial in search.trials if (value := value_of(trial, objective)) is not None]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def best_trials(search: Search) -> list[Trial]:
    """Return the best trial; with several objectives, the Pareto front: the trials than which no other is better.

    A trial is better than another one if it is as good in every objective and better in one.
    """
    if len(search.objectives) == 1:
        best = best_in(search, next(iter(search.objectives)))
        return [] if best is None else [best]
    costs = [
        (tuple(sign_of(search, name) * (value_of(trial, name) or 0.0) for name in search.objectives), trial)
        for trial in search.trials
        if is_complete(search, trial)
    ]
    return [costs[index][1] for index in unbeaten([cost for cost, _ in costs])]


def _continues(later: Search, search: Search) -> bool:
    if later.round <= search.round or later.name != search.name:
        return False
    count = len(search.trials)
    since = later.trials[count : count + len(search.asked)]
    return [trial.run_id for trial in later.trials[:count]] == [trial.run_id for trial in search.trials] and [
        trial.parameters for trial in since
    ] == list(search.asked)
