"""Validate the arguments of a search, and make the definition that all its stages share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from torchx_kfp.authoring.naming import output_name
from torchx_kfp.authoring.references import check_word
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.contract.carried import publisher
from torchx_kfp.contract.inputs import find_rewritten, large_character
from torchx_kfp.errors import AppDefError
from torchx_kfp.hpo.optimizers import OPTIMIZERS, points
from torchx_kfp.hpo.spaces import Space, type_of
from torchx_kfp.tracking.results import MAX_STR_BYTES

#: The names of the execution id of the best trial, and of the Pareto front.
TRIAL, FRONT = "trial", "front"
#: The name of the list that drives the loop of a round.
TRIALS = "trials"

#: The attributes of KFP's loop items and of mappings.
_ITEM = frozenset((*publisher.ATTRIBUTES, "get", "items", "keys", "values"))
_OUTPUTS = frozenset(("run_id", "metrics", "Output", "exit_code", TRIAL, FRONT))


def define_search(
    parameters: Mapping[str, Space],
    minimize: str | Iterable[str],
    maximize: str | Iterable[str],
    rounds: int | None,
    trials: int | None,
    optimizer: str,
    seed: int | None,
) -> dict[str, Any]:
    """Return the definition of a search: see ``torchx_kfp.tracking.searches``."""
    _check_parameters(parameters)
    objectives = _parse_objectives(minimize, maximize)
    fields = {objective: output_name(objective) for objective in objectives}
    for objective, field in fields.items():
        if field in (*parameters, *_OUTPUTS) or list(fields.values()).count(field) > 1:
            raise AppDefError(
                f"The objective {objective!r} would be the output {field!r}, which the search already has for a "
                "parameter, another objective or itself. Record it under another name."
            )
    _check_optimizer(optimizer)
    check_count("rounds", rounds)
    check_count("trials", trials)
    if seed is not None and type(seed) is not int:
        raise AppDefError(f"seed is {seed!r}. Give an integer, or leave it out.")
    definition: dict[str, Any] = {
        "parameters": dict(parameters),
        "objectives": objectives,
        "rounds": rounds,
        "trials": trials,
        "optimizer": optimizer,
        "seed": seed,
    }
    if optimizer == "grid":
        definition |= _plan_grid(definition)
    elif None in (rounds, trials):
        missing = "rounds" if rounds is None else "trials"
        raise AppDefError(f"The search has no {missing}. Write rounds=3, trials=4 for 12 trials, 4 at a time.")
    _check_size(parameters, definition["trials"])
    return definition


def results_of(definition: Mapping[str, Any]) -> dict[str, type[Any]]:
    """Return the types of the results of the last stage by name."""
    results: dict[str, type[Any]] = {name: type_of(space) for name, space in definition["parameters"].items()}
    results |= {**dict.fromkeys(definition["objectives"], float), TRIAL: str}
    return {**results, FRONT: list} if len(definition["objectives"]) > 1 else results


def check_count(what: str, value: object) -> None:
    """Reject values other than None and positive integers."""
    if value is not None and (type(value) is not int or value < 1):
        raise AppDefError(f"{what} is {value!r}. Give an integer, 1 or more.")


def _check_parameters(parameters: Mapping[str, Space]) -> None:
    example = "{'lr': hpo.log(1e-4, 1.0), 'layers': hpo.int(1, 8)}"
    if not isinstance(parameters, Mapping) or not parameters:
        raise AppDefError(f"parameters is {parameters!r}. Name at least one parameter: {example}.")
    for name, space in parameters.items():
        if not isinstance(name, str) or output_name(name) != name:
            raise AppDefError(
                f"parameters has the name {name!r}. Use an identifier that is not a keyword and does not begin or end "
                f"with '_': {example}."
            )
        if name in _ITEM | _OUTPUTS:
            whose = "the search uses for another output" if name in _OUTPUTS else "KFP's loop items use themselves"
            raise AppDefError(
                f"parameters has the name {name!r}, which {whose}. Rename it, for example to {f'trial_{name}'!r}."
            )
        if not isinstance(space, Space):
            raise AppDefError(f"parameters[{name!r}] is {space!r}. Write its range or its values: {example}.")
        for value in space.get("values", ()):
            if isinstance(value, str):
                _check_text(name, value)


def _check_text(name: str, value: str) -> None:
    """Reject text that would not arrive unchanged. In a list that is known only at run time, it cannot be escaped."""
    check_word(value, f"The text of parameters[{name!r}]")
    rewritten = find_rewritten(value) or large_character(value)
    if rewritten:
        raise AppDefError(
            f"parameters[{name!r}] has {value!r}; KFP, Argo or the kubelet would change {rewritten} in it. Choose "
            "between names, and let the application look up what each stands for."
        )
    size = len(value.encode())
    if size > MAX_STR_BYTES:
        raise AppDefError(
            f"parameters[{name!r}] has a text of {size:,} bytes. Choose between names of up to {MAX_STR_BYTES:,} bytes."
        )


def _parse_objectives(minimize: str | Iterable[str], maximize: str | Iterable[str]) -> Mapping[str, str]:
    objectives: dict[str, str] = {}
    for direction, names in (("minimize", minimize), ("maximize", maximize)):
        for name in [names] if isinstance(names, str) or not isinstance(names, Iterable) else names:
            if not isinstance(name, str) or not output_name(name):
                raise AppDefError(f"{direction} has {name!r}. Name a result of the trials: {direction}='loss'.")
            if name in objectives:
                raise AppDefError(
                    f"The objective {name!r} is named twice. Name it once, to minimize or to maximize it."
                )
            objectives[name] = direction
    if not objectives:
        raise AppDefError("The search has no objective. Name a result of the trials: minimize='loss'.")
    return objectives


def _check_optimizer(optimizer: str) -> None:
    module, _, function = str(optimizer).partition(":")
    if optimizer not in OPTIMIZERS and not all(part.isidentifier() for part in [*module.split("."), function]):
        raise AppDefError(
            f"optimizer is {optimizer!r}.{did_you_mean(optimizer, OPTIMIZERS)} Write 'random', 'grid', 'ax', or "
            "'module:function' for a function of your image."
        )


def _plan_grid(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the numbers of rounds and trials that cover the whole grid once."""
    for name, space in definition["parameters"].items():
        if space["type"] == "float" and "points" not in space:
            raise AppDefError(
                f"parameters[{name!r}] is {space}, which has too many values for a grid. Give a number of "
                f"points: {Space(space, points=5)}."
            )
    size = math.prod(len(points(space)) for space in definition["parameters"].values())
    rounds, trials = definition["rounds"], definition["trials"]
    if rounds is None:
        rounds = 1 if trials is None else math.ceil(size / trials)
    if trials is None:
        trials = math.ceil(size / rounds)
    if rounds * trials < size:
        raise AppDefError(
            f"{rounds} rounds of {trials} trials are {rounds * trials:,} trials, but the grid has {size:,} points. "
            "Leave out rounds, or rounds and trials, to try them all; or ask for fewer points."
        )
    # On KFP, collecting a loop without iterations fails.
    return {"rounds": math.ceil(size / trials), "trials": trials}


def _check_size(spaces: Mapping[str, Space], trials: int) -> None:
    longest = {}
    for name, space in spaces.items():
        longest[name] = max(space.get("values") or space["bounds"], key=lambda value: len(json.dumps(value)))
    size = trials * len(json.dumps(longest))
    if size > publisher.LONGEST:
        raise AppDefError(
            f"{trials} trials are a list of about {size:,} bytes; the limit is {publisher.LONGEST:,} bytes. Ask for "
            "fewer trials in more rounds."
        )
