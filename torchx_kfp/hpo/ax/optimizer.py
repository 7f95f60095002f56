"""The optimizer ``ax``: Bayesian optimization by Ax, between the rounds of a search in a pipeline.

The stage that asks loads Ax's client from the state of the previous round, tells it the results of the trials, and asks
it for the next ones. The state grows with the trials: 20 kB at first, 100 kB after ten trials.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import OptimizationComplete
from ax.exceptions.generation_strategy import MaxParallelismReachedException

from torchx_kfp.hpo.optimizers import number_of_digits
from torchx_kfp.hpo.spaces import type_of

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def ask(
    definition: Mapping[str, Any], told: Sequence[Mapping[str, Any]], state: Any, number: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the parameters of the next trials, and the next state.

    Args:
        definition: the search's: see ``torchx_kfp.tracking.searches``.
        told: the trials so far, in the order requested.
        state: the state returned for the previous round; None at first.
        number: the number of trials. Ax may return fewer, such as when the whole space was tried.
    """
    client = _new_client(definition, number) if state is None else Client._from_json_snapshot(state)
    _tell(client, definition, told)
    # A loaded client does not have a seed. With the same one in each round, random trials would be the same.
    client._random_seed = _seed(definition, len(told))
    asked = _next_trials(client, min(number, _count_untried(definition, told)))
    spaces = definition["parameters"]
    trials = [{name: _value(space, its.get(name)) for name, space in spaces.items()} for its in asked]
    return trials, client._to_json_snapshot()


def _tell(client: Client, definition: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> None:
    """Tell Ax the results of trials that it considers running. Its numbers are their positions in the search."""
    known = client._experiment.trials
    for number, trial in enumerate(told):
        if number not in known:  # drawn by the search, because Ax did not have a trial
            free = {name: type_of(space) for name, space in definition["parameters"].items() if not _is_fixed(space)}
            client.attach_trial({name: kind(trial["parameters"][name]) for name, kind in free.items()})
        elif not known[number].status.is_running:
            continue
        if trial["failed"]:
            client.mark_trial_failed(number)
        else:
            results = [trial["results"][name] for name in definition["objectives"]]
            client.complete_trial(number, {_metric(goal): value for goal, value in enumerate(results)})


def _seed(definition: Mapping[str, Any], offset: int = 0) -> int | None:
    """Return the seed in the range that NumPy takes."""
    return None if definition["seed"] is None else (definition["seed"] + offset) % 2**32


def _new_client(definition: Mapping[str, Any], number: int) -> Client:
    client = Client()
    spaces = definition["parameters"]
    client.configure_experiment(
        [_config(name, space) for name, space in spaces.items() if not _is_fixed(space)], name="search"
    )
    goals = enumerate(definition["objectives"].values())
    client.configure_optimization(
        ", ".join(f"-{_metric(place)}" if goal == "minimize" else _metric(place) for place, goal in goals)
    )
    # The trials of a round run concurrently, so the first round is spread over the whole space.
    client.configure_generation_strategy(
        initialization_budget=max(5, number),
        initialization_random_seed=_seed(definition),
        allow_exceeding_initialization_budget=True,
    )
    return client


def _count_untried(definition: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of untried points. If asked for more, Ax searches for a minute and returns none."""
    size = 1
    for space in definition["parameters"].values():
        if space["type"] == "float":
            return sys.maxsize
        size *= len(space["values"]) if "values" in space else space["bounds"][1] - space["bounds"][0] + 1
    return size - len({tuple(trial["parameters"].items()) for trial in told})


def _next_trials(client: Client, number: int) -> list[dict[str, Any]]:
    """Ask for trials until there are enough: Ax returns those of one of its methods at a time."""
    asked: list[dict[str, Any]] = []
    with contextlib.suppress(OptimizationComplete, MaxParallelismReachedException):
        while len(asked) < number and (found := client.get_next_trials(number - len(asked))):
            asked += found.values()
    return asked


def _config(name: str, space: Mapping[str, Any]) -> RangeParameterConfig | ChoiceParameterConfig:
    if "values" not in space:
        scaling = "log" if space["log"] else "linear"
        return RangeParameterConfig(name, tuple(space["bounds"]), space["type"], scaling=scaling)
    kind = type_of(space)
    values = [kind(value) for value in space["values"]]
    return ChoiceParameterConfig(name, values, _TYPES[kind], is_ordered=kind in (int, float))


def _is_fixed(space: Mapping[str, Any]) -> bool:
    """Return whether a parameter has only one value, which Ax does not accept as a choice."""
    return len(space.get("values", "12")) == 1


def _metric(place: int) -> str:
    """Return Ax's name for an objective: Ax reads names as formulas, in which ``val/loss`` is a quotient."""
    return f"objective_{place}"


def _value(space: Mapping[str, Any], value: Any) -> Any:
    """Return a parameter's value with few digits: short numbers have the same text on each engine."""
    if _is_fixed(space):
        return space["values"][0]
    if "values" in space:
        return next(each for each in space["values"] if each == value)
    low, high = space["bounds"]
    if space["type"] == "int":
        return int(value)
    return max(low, min(high, float(f"{value:.{number_of_digits(low, high)}g}")))
