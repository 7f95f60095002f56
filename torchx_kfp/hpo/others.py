"""Optimizers of the image that asks: found by name, and what they return checked.

They run where torchx-kfp is installed, unlike ``random`` and ``grid``, which are in ``carried.asking``.
"""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchx_kfp.errors import SearchError
from torchx_kfp.named import describe_unknown
from torchx_kfp.text import did_you_mean, shown

#: Of a range: how far beyond a bound rounding may carry a number, such as 10 ** math.log10(bound).
_ROUNDING = 1e-9

Optimizer = Callable[[Mapping[str, Any], Sequence[Any], Any, int], tuple[list[dict[str, Any]], Any]]


def ask_other(
    definition: Mapping[str, Any], told: Sequence[Any], state: Any, number: int
) -> tuple[list[dict[str, Any]], Any]:
    """Ask the definition's optimizer for trials: see ``torchx_kfp.carried.asking``.

    Raises:
        SearchError: there is no such optimizer, or what it returns is not what it was asked for.
    """
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
    """Return the function of an optimizer: ``ax``, or ``module:function``.

    Raises:
        SearchError: there is no such function, or its module cannot be imported.
    """
    module, _, function = name.partition(":")
    if not function:
        module, function = f"torchx_kfp.hpo.{name}", "ask"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module}.".startswith(f"{missing}."):
            raise _not_imported(name, error) from None
        raise SearchError(
            f"optimizer={name!r}: the image has no module {missing!r}.{_similar_module(missing)} Install it in the "
            "image, or name its folder in PYTHONPATH; the working directory does not count."
        ) from None
    except ImportError as error:
        raise _not_imported(name, error) from None
    functions = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
    if not callable(getattr(found, function, None)):
        raise SearchError(
            f"optimizer={name!r}: {describe_unknown(f'The module {module!r}', 'function', function, functions)}"
        )
    return getattr(found, function)  # type: ignore[no-any-return]


def _not_imported(name: str, error: ImportError) -> SearchError:
    return SearchError(f"optimizer={name!r} cannot be imported: {error}")


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
        value = _in_choice(space, trial[parameter]) if "values" in space else _in_range(space, trial[parameter])
        if value is None:
            if "values" in space:
                there = f"one of {shown(space['values'])}"
            else:
                low, high = space["bounds"]
                there = f"a {'whole ' if space['type'] == 'int' else ''}number from {low} to {high}"
            raise SearchError(f"{name} asks for {parameter}={shown(trial[parameter])}, but {parameter} is {there}.")
        values[parameter] = value
    return values


def _in_choice(space: Mapping[str, Any], value: Any) -> Any:
    """Return the value of a choice that this is; None if there is none."""
    same = (each for each in space["values"] if each == value and isinstance(each, bool) == isinstance(value, bool))
    return next(same, None)


def _in_range(space: Mapping[str, Any], value: Any) -> Any:
    """Return the number of a range that this is; None if there is none."""
    low, high = space["bounds"]
    if isinstance(value, bool) or not isinstance(value, int if space["type"] == "int" else (int, float)):
        return None
    room = _ROUNDING * (high - low) if space["type"] == "float" else 0
    return max(low, min(high, value)) if low - room <= value <= high + room else None
