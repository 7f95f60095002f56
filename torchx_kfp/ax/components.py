"""The arguments with which a trial calls its TorchX component."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torchx import specs
from torchx.specs import finder

from torchx_kfp.errors import TrialError
from torchx_kfp.text import did_you_mean, joined, shown

#: Returns the app of a trial.
Component = Callable[..., specs.AppDef]

#: Parameters that every trial gives to a component that has them.
TRIAL_INDEX, TRACKER_BASE, EXPERIMENT_NAME = "trial_idx", "tracker_base", "experiment_name"


def find_component(component: Component | str) -> Component:
    """Return a component, which may be given by name.

    Args:
        component: a function; or ``module:function``, or what ``torchx run`` takes: ``train.py:trainer``, ``dist.ddp``.

    Raises:
        TrialError: there is no such component.
    """
    if not isinstance(component, str):
        return component
    if not component:
        raise TrialError(
            "The experiment was saved with a component that has no name of its own, or constants that JSON cannot "
            "represent, so its trials can be read but no new one started. Give the client the runner again: "
            "client.configure_runner(TorchXRunner(component, ...))."
        )
    module, _, path = component.partition(":")
    try:
        if not path or module.endswith(".py"):
            found: Any = finder.get_component(component).fn
        else:
            found = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
    except (AttributeError, ImportError, OSError, finder.ComponentNotFoundException) as error:
        raise TrialError(
            f"There is no TorchX component {component!r}: {error}. Give the function itself: "
            "client.configure_runner(TorchXRunner(function, ...))."
        ) from error
    return found  # type: ignore[no-any-return]


def name_of(component: Component | str) -> str:
    """Return the name by which ``find_component`` finds the component; empty if there is none."""
    if isinstance(component, str):
        return component
    name = f"{getattr(component, '__module__', '')}:{getattr(component, '__qualname__', '')}"
    try:
        return name if find_component(name) is component else ""
    except (TrialError, ValueError):
        return ""


def call_component(
    component: Component, parameters: Mapping[str, Any], constants: Mapping[str, Any], of_trial: Mapping[str, Any]
) -> specs.AppDef:
    """Return the app of a trial.

    Args:
        component: the component.
        parameters: those that Ax has chosen.
        constants: the other arguments.
        of_trial: arguments that the component gets if it has parameters of these names.

    Raises:
        TrialError: the component has not got a parameter, or needs another one, or does not return an AppDef.
    """
    known = inspect.signature(component).parameters
    label = getattr(component, "__name__", None) or shown(component)
    named = [name for name, it in known.items() if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
    takes_any = any(it.kind is it.VAR_KEYWORD for it in known.values())
    for name in (*parameters, *constants):
        if name not in named and not takes_any:
            where = "constants" if name in constants else "the experiment"
            raise TrialError(
                f"The component {label} has no parameter {name!r}, which {where} has.{did_you_mean(name, named)} Its "
                f"parameters: {joined(named) or 'none'}."
            )
    both = [name for name in parameters if name in constants]
    if both:
        raise TrialError(f"{joined(both)} is both a parameter of the experiment and one of the constants. Remove one.")
    given = {**{name: value for name, value in of_trial.items() if name in named}, **constants, **parameters}
    missing = [name for name in named if name not in given and known[name].default is inspect.Parameter.empty]
    if missing:
        raise TrialError(
            f"The component {label} needs {joined(missing)}, which the experiment does not vary. Give it to the "
            f"runner: TorchXRunner(..., constants={{{missing[0]!r}: ...}})."
        )
    app = component(**given)
    if not isinstance(app, specs.AppDef):
        raise TrialError(f"The component {label} has returned {shown(app)}. A component returns an AppDef.")
    return app


def takes(component: Component, name: str) -> bool:
    """Tell whether a component has a parameter of this name."""
    return name in inspect.signature(component).parameters
