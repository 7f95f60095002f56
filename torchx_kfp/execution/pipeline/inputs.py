"""Resolve the inputs of tasks, for runs, checks and replays.

The rules follow KFP's driver and launcher (``backend/src/v2/driver/resolve.go``):

1. The task names a constant, an input of its scope, or an output. Null is the value of an optional parameter without
   one. It counts as not given: the task fails unless the input is optional. 2. A nested pipeline that is not given an
   optional input has its default, or null. If it is given one without a value, it has neither, and tasks inside that
   take it fail. 3. A value for a STRING becomes text, lists and dicts as JSON; values of other types are checked.
   Iterations of a loop do not have the list that the loop goes through, and have the item in its place.
4. The launcher adds a component's defaults, and fills in placeholders in the constants of a command. Images, limits and
    conditions use the driver's values, without these.

Before a run, some values are ``UNKNOWN``: a check learns the others from the same functions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.execution.pipeline.artifacts import artifacts_in, is_artifact
from torchx_kfp.execution.pipeline.conditions import select_field
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE, PlaceholderValues, placeholders_in, resolve_value
from torchx_kfp.execution.pipeline.spec import (
    Component,
    Constant,
    FinalStatus,
    FromInput,
    FromTask,
    Importer,
    Loop,
    Origin,
    Parameter,
    Task,
)
from torchx_kfp.execution.pipeline.values import convert, typed

#: The body of the placeholder for the folder that all stages of a run share.
_WORKSPACE = WORKSPACE.removeprefix("{{$.").removesuffix("}}")
_WAY_OUT = "Give it a value, or its parameter a default such as ''"


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


#: A value that only the run knows.
UNKNOWN: Any = _Unknown()


@dataclass(frozen=True)
class NoOutput:
    """The output of a failed task: an empty string; other types have no value."""

    why: str


@dataclass(frozen=True)
class TaskInputs:
    """The inputs of a task.

    Attributes:
        values: the values that the driver passes to it; ``UNKNOWN`` if only the run knows them.
        problems: why other inputs have no value, as clauses.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, Any]:
        """The known values."""
        return {name: value for name, value in self.values.items() if value is not UNKNOWN}


def inputs_of_root(root: Component, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the inputs of a pipeline; its arguments are the values of all parameters, or None if unknown."""
    if arguments is None:
        return dict.fromkeys((*root.parameter_inputs, *root.artifact_inputs), UNKNOWN)
    return {**{name: None if its.optional else UNKNOWN for name, its in root.parameter_inputs.items()}, **arguments}


def resolve(
    task: Task,
    component: Component,
    scope: Mapping[str, Any],
    output: Callable[[FromTask | FinalStatus], Any],
    placeholders: Mapping[str, str] | None = None,
) -> TaskInputs:
    """Return the inputs that KFP's driver passes to a task.

    Args:
        task: the task.
        component: its component.
        scope: the inputs of the pipeline, branch or iteration that it is in.
        output: returns the output or the status of another task, or ``NoOutput`` if it failed; may raise ValueError.
        placeholders: the values of placeholders that a constant may consist of, by the text after ``{{$.``. None if
            unknown.
    """
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    if component.dag is not None:
        for name, parameter in component.parameter_inputs.items():
            if parameter.optional and name not in task.parameters:
                values[name] = convert(parameter.default, parameter.type) if parameter.has_default else None
    for name, source in {**task.parameters, **task.artifacts}.items():
        declared = component.parameter_inputs.get(name)
        try:
            value = _value(source, scope, output, placeholders, is_artifact_input=name in task.artifacts)
            if value is not UNKNOWN:
                value = value if name in task.artifacts else _checked(value, source, declared)
            values[name] = value
        except _NullError as error:
            if declared is None or not declared.optional:
                problems[name] = str(error)
        except ValueError as error:
            problems[name] = str(error)
    for name, parameter in component.parameter_inputs.items():
        is_given = name in task.parameters or name in values or parameter.optional or parameter.has_default
        if not is_given and (task.loop is None or task.loop.item_input != name):
            problems[name] = "it is not passed on"
    return TaskInputs(values, problems)


def inputs_of_iteration(
    task: Task, component: Component, values: Mapping[str, Any], item: Any = UNKNOWN
) -> dict[str, Any]:
    """Return the inputs of an iteration of a loop, given those of the loop.

    An item of another type stays as it is: the tasks that take it fail.
    """
    loop = task.loop
    assert loop is not None
    with contextlib.suppress(ValueError):
        item = item_of(loop, component, item)
    return {**{name: value for name, value in values.items() if name != loop.from_input}, loop.item_input: item}


def item_of(loop: Loop, component: Component, item: Any) -> Any:
    """Return an item as the tasks of a loop receive it.

    Raises:
        ValueError: its type is not that of their input.
    """
    declared = component.parameter_inputs.get(loop.item_input)
    if item is UNKNOWN or is_artifact(item) or declared is None:
        return item
    try:
        return typed(item, declared.type)
    except ValueError as error:
        raise ValueError(f"has an item of another type: {error}") from None


def with_defaults(component: Component, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a stage as KFP's launcher has them: with the component's defaults."""
    defaults = {
        name: convert(parameter.default, parameter.type)
        for name, parameter in component.parameter_inputs.items()
        if parameter.has_default and name not in values
    }
    return {**defaults, **values}


def inputs_of_stage(task: Task, component: Component, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a stage as its command has them: with defaults, and constants without placeholders."""
    every = with_defaults(component, values)
    constants = [name for name, source in task.parameters.items() if isinstance(source, Constant) and name in every]
    known = {name: value for name, value in every.items() if value is not UNKNOWN and name not in constants}
    return {**every, **{name: resolve_value(every[name], PlaceholderValues(parameters=known)) for name in constants}}


def loop_items(loop: Loop, values: Mapping[str, Any]) -> list[Any]:
    """Return the items of a loop, given the inputs of its task.

    Raises:
        ValueError: they are not a list.
    """
    if loop.raw is not None:
        return list(json.loads(loop.raw))
    value = items = values.get(loop.from_input or "")
    if is_artifact(items):
        return artifacts_in(items)
    if isinstance(items, str):
        # A field of a loop item may be a list in a string.
        try:
            items = json.loads(items)
        except ValueError:
            items = None
    if not isinstance(items, list):
        raise ValueError(f"loops over something that is not a list: {shown(value)}")
    return items


def importer_uri(importer: Importer, task: Task, scope: Mapping[str, Any]) -> Any:
    """Return the URI of an importer; ``UNKNOWN`` if only the run knows it.

    Raises:
        ValueError: KFP does not find it. The message follows the task's name in a sentence.
    """
    uri: Any
    if isinstance(importer.uri, Constant):
        uri = importer.uri.value
    else:
        # KFP's importer has no driver: it takes only an input of its scope.
        source = task.parameters.get(importer.uri.name)
        if not isinstance(source, FromInput) or source.selector:
            kind = "the output of another task" if isinstance(source, FromTask) else "text, or a field of a loop's item"
            raise ValueError(
                f"imports an artifact whose URI is {kind}, and KFP's importer takes a parameter of its pipeline or an "
                "item of a loop only. Use torchx_kfp.artifact_from_uri, or pass the URI to a stage"
            )
        uri = scope.get(source.name)
    if uri is not UNKNOWN and (not isinstance(uri, str) or not uri):
        raise ValueError(f"has no URI to import: it is {shown(uri)}")
    return uri


class _NullError(ValueError):
    """An input is an optional parameter without a value."""


def _value(
    source: Origin,
    scope: Mapping[str, Any],
    output: Callable[[FromTask | FinalStatus], Any],
    placeholders: Mapping[str, str] | None,
    *,
    is_artifact_input: bool,
) -> Any:
    """Return the value that a task names, with its type unchecked."""
    if isinstance(source, Constant):
        return _constant(source.value, placeholders)
    if isinstance(source, FromInput):
        if source.name not in scope and is_artifact_input:
            raise ValueError(
                f"{source.name!r} was not set, and KFP's driver fails on that, even if the input is optional. Pass an "
                "artifact, or leave the input out"
            )
        if source.name not in scope:
            raise ValueError(
                f"{source.name!r} was not set: on KFP, a nested pipeline that is passed a parameter without a value "
                f"does not use its default. {_WAY_OUT}"
            )
        value = scope[source.name]
        if value is None:
            raise _NullError(f"{source.name!r} was not set. {_WAY_OUT}")
    elif isinstance(source, (FromTask, FinalStatus)):
        value = output(source)
    else:
        return UNKNOWN  # a kind that no local run has
    selector = getattr(source, "selector", "")
    return select_field(value, selector) if selector and value is not UNKNOWN else value


def _constant(value: Any, placeholders: Mapping[str, str] | None) -> Any:
    """Return a constant, with KFP's workspace filled in as KFP's driver does, or the text of one placeholder."""
    found = list(placeholders_in(value)) if isinstance(value, str) else []
    for placeholder in found:
        if placeholder.body == _WORKSPACE and placeholders is not None:
            return value.replace(placeholder.text, placeholders[_WORKSPACE])
        if placeholder.text == value and placeholders is not None:
            return placeholders.get(placeholder.body or "", value)
    return value


def _checked(value: Any, source: Origin, declared: Parameter | None) -> Any:
    if isinstance(value, NoOutput):
        if declared is not None and declared.type == "STRING":
            return ""
        raise ValueError(value.why)
    if declared is None:
        return value
    if isinstance(source, Constant) and value is None and declared.type != "STRING":
        raise ValueError("it is null")
    value = typed(value, declared.type)
    if declared.literals and value not in declared.literals:
        allowed = ", ".join(repr(convert(literal, declared.type)) for literal in declared.literals)
        raise ValueError(f"it is {shown(value)}, and must be one of {allowed}")
    return value
