"""Ask optimizers that need torchx-kfp in the image for trials: ``contract.carried.asking`` with other optimizers.

They are found by name, and their answers are checked.
"""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchx_kfp.common.text import describe_unknown, did_you_mean, shown
from torchx_kfp.contract.carried import asking
from torchx_kfp.errors import SearchError

#: Of a range: how far beyond a bound rounding may carry a number, such as 10 ** math.log10(bound).
_ROUNDING = 1e-9

Optimizer = Callable[[Mapping[str, Any], Sequence[Any], Any, int], tuple[list[dict[str, Any]], Any]]


def ask_other(
    definition: Mapping[str, Any], told: Sequence[Any], state: Any, number: int
) -> tuple[list[dict[str, Any]], Any]:
    """Ask the definition's optimizer for trials: see ``torchx_kfp.contract.carried.asking``."""
    name = definition["optimizer"]
    # An optimizer may change what it is given: it gets copies, because what was recorded is the search's own.
    answer = find_optimizer(name)(*copy.deepcopy((definition, told, state)), number)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], list):
        raise SearchError(
            f"{name} returns {shown(answer)}. Return a list with the parameters of each trial, and the next state: "
            "return trials, state."
        )
    asked, state = answer
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise SearchError(f"{name} returns a state that JSON cannot represent: {error}.") from None
    return [_check(name, definition["parameters"], trial) for trial in asked], state


def find_optimizer(name: str) -> Optimizer:
    """Return the function of an optimizer: ``ax``, or ``module:function``."""
    module, _, function = name.partition(":")
    if not function:
        module, function = f"torchx_kfp.hpo.{name}.optimizer", "ask"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module}.".startswith(f"{missing}."):
            raise SearchError(f"optimizer={name!r} cannot be imported: {error}") from None
        raise SearchError(
            f"optimizer={name!r}: the image has no module {missing!r}.{_similar_module(missing)} Install it in the "
            "image, or name its folder in PYTHONPATH; the working directory does not count."
        ) from None
    except ImportError as error:
        raise SearchError(f"optimizer={name!r} cannot be imported: {error}") from None
    functions = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
    if not callable(getattr(found, function, None)):
        raise SearchError(
            f"optimizer={name!r}: {describe_unknown(f'The module {module!r}', 'function', function, functions)}"
        )
    return getattr(found, function)  # type: ignore[no-any-return]


def _similar_module(missing: str) -> str:
    """Return a sentence that suggests a module of the same package."""
    package, _, _name = missing.rpartition(".")
    path = getattr(importlib.import_module(package), "__path__", []) if package else None
    prefix = f"{package}." if package else ""
    return did_you_mean(missing, (f"{prefix}{each.name}" for each in pkgutil.iter_modules(path)))


def _check(name: str, spaces: Mapping[str, Any], trial: Any) -> dict[str, Any]:
    """Return a trial for which an optimizer asks, with all values in their space."""
    if not isinstance(trial, Mapping) or trial.keys() != spaces.keys():
        raise SearchError(f"{name} asks for {shown(trial)}, but the parameters are {', '.join(spaces)}.")
    values = {}
    for parameter, space in spaces.items():
        given = trial[parameter]
        if "values" in space:
            there = f"one of {shown(space['values'])}"
            same = [
                each for each in space["values"] if each == given and isinstance(each, bool) == isinstance(given, bool)
            ]
        else:
            low, high = space["bounds"]
            is_int = space["type"] == "int"
            there = f"a {'whole ' if is_int else ''}number from {low} to {high}"
            room = 0 if is_int else _ROUNDING * (high - low)
            is_number = isinstance(given, int if is_int else (int, float)) and not isinstance(given, bool)
            same = [max(low, min(high, given))] if is_number and low - room <= given <= high + room else []
        if not same:
            raise SearchError(f"{name} asks for {parameter}={shown(given)}, but {parameter} is {there}.")
        values[parameter] = same[0]
    return values


def ask_for(definition: Any, told: Sequence[Any], state: Any, number: int) -> tuple[list[Any], Any]:
    """Ask the definition's optimizer for trials."""
    if definition["optimizer"] in asking.OPTIMIZERS:
        return asking.ask_for(definition, told, state, number)
    try:
        asked, state = ask_other(definition, told, state, number)
    except SearchError as error:
        sys.exit(f"torchx-kfp: {error}")
    # KFP fails a loop without iterations whose runs are collected.
    return asked[:number] or asking.ask_random(definition, told, None, 1)[0], state


def main(text: str) -> None:
    """Ask for trials in a stage of a search."""
    asking.main(text, ask_for)
