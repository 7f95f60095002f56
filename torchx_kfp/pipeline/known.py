"""The inputs of tasks that are known before a run: constants, parameters of the pipeline, and defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchx_kfp.pipeline.placeholders import Facts, resolve_text, resolve_value
from torchx_kfp.pipeline.spec import Component, Constant, FromInput, Pipeline, Task
from torchx_kfp.pipeline.walk import Place, walk

#: A variable in the words after ``env``.
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)


def known_inputs(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield every task of the pipeline with its known inputs; ``arguments`` has the values of all parameters."""
    inputs: dict[str, Mapping[str, Any]] = {}
    for place in walk(pipeline):
        around = arguments if place.inside is None else inputs[place.inside.path]
        inputs[place.path] = _known_inputs(place.task, place.component, around)
        yield place, inputs[place.path]


def known_values(pipeline: Pipeline, arguments: Mapping[str, Any], variable: str) -> dict[str, list[Place]]:
    """Return the known values of a variable that commands set with ``env``, each with the stages that get it.

    Args:
        pipeline: the pipeline.
        arguments: the values of all its parameters.
        variable: the name of the variable.
    """
    name = f"{variable}="
    values: dict[str, list[Place]] = {}
    for place, known in known_inputs(pipeline, arguments):
        container = place.component.container
        for word in (*container.command, *container.args) if container is not None else ():
            value = resolve_text(word, Facts(parameters=known)).removeprefix(name) if word.startswith(name) else ""
            if value and "{{$" not in value:
                values.setdefault(value, []).append(place)
    return values


def variables_set(component: Component) -> Iterator[tuple[str, str]]:
    """Yield the variables that a stage's container and its command set, with their values as they are compiled."""
    container = component.container
    if container is None:
        return
    yield from container.env
    yield from assignments((*container.command, *container.args))


def assignments(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that ``env`` sets in a command."""
    after_env = False
    for word in words:
        found = _ASSIGNMENT.match(word) if after_env else None
        if found:
            yield found[1], word[found.end() :]
        after_env = word == "env" or found is not None


def _known_inputs(task: Task, component: Component, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a task that are known before the run; ``scope`` has the inputs of the pipeline around it."""
    known = {name: input.default for name, input in component.inputs.items() if input.has_default}
    constants = {}
    for name, source in task.inputs.items():
        known.pop(name, None)
        if isinstance(source, Constant):
            constants[name] = source.value
        elif isinstance(source, FromInput) and not source.selector and source.name in scope:
            known[name] = scope[source.name]
    # A constant's text may contain placeholders for the other inputs.
    facts = Facts(parameters=dict(known))
    return {**known, **{name: resolve_value(value, facts) for name, value in constants.items()}}
