"""The arguments of a run: read from text or Python values, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchx_kfp.errors import ArgumentError
from torchx_kfp.pipeline.spec import Parameter, Pipeline
from torchx_kfp.pipeline.values import TYPE_NAMES, check, convert, from_word, to_json
from torchx_kfp.text import did_you_mean, shown


def parse_arguments(pipeline: Pipeline, words: Mapping[str, str]) -> dict[str, Any]:
    """Read arguments from text, each according to its parameter's type; LIST and STRUCT are JSON.

    Raises:
        ArgumentError: names or values do not fit the parameters; the message lists all of them. Missing arguments are
            not checked here but when the run starts.
    """
    return _collect(pipeline, words, from_word)


def complete_arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters: these arguments, and defaults for the rest.

    Raises:
        ArgumentError: arguments are unknown, missing or wrong; the message lists all of them.
    """
    parameters = pipeline.root.inputs
    given = {
        name: value
        for name, value in arguments.items()
        if value is not None or name not in parameters or not parameters[name].optional
    }
    missing = [name for name, parameter in parameters.items() if name not in given and not _may_be_missing(parameter)]
    values = _collect(pipeline, given, check, missing)
    for name, parameter in parameters.items():
        if name not in values and parameter.has_default:
            values[name] = convert(parameter.default, parameter.type)
    return values


def describe_parameters(pipeline: Pipeline) -> str:
    """Describe the parameters in one line each: ``name: type = default``."""
    lines = []
    for name, parameter in sorted(pipeline.root.inputs.items(), key=lambda item: _may_be_missing(item[1])):
        line = f"  {name}: {TYPE_NAMES.get(parameter.type, parameter.type)}"
        if parameter.has_default:
            line += f" = {_default(parameter)}"
        elif parameter.optional:
            line += " (optional)"
        lines.append(line)
    return "\n".join(lines)


def _collect(
    pipeline: Pipeline, given: Mapping[str, Any], read: Callable[[Any, str], Any], missing: list[str] | None = None
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        parameter = pipeline.root.inputs.get(name)
        if parameter is None:
            problems.append(f"There is no parameter {name!r}.{did_you_mean(name, pipeline.root.inputs)}")
            continue
        try:
            values[name] = read(value, parameter.type)
            _check_literal(values[name], parameter)
        except ValueError as error:
            problems.append(f"The argument {name!r} {error}.")
    problems += [f"The argument {name!r} is missing." for name in missing or ()]
    if problems:
        described = describe_parameters(pipeline)
        title = f"The parameters of the pipeline {pipeline.name!r} are:\n{described}"
        raise ArgumentError(
            "\n".join([*problems, title if described else f"The pipeline {pipeline.name!r} has no parameters."])
        )
    return values


def _may_be_missing(parameter: Parameter) -> bool:
    return parameter.has_default or parameter.optional


def _check_literal(value: Any, parameter: Parameter) -> None:
    if parameter.literals and value not in parameter.literals:
        allowed = ", ".join(repr(convert(literal, parameter.type)) for literal in parameter.literals)
        raise ValueError(f"is {shown(value)}, but must be one of {allowed}")


def _default(parameter: Parameter) -> str:
    value = convert(parameter.default, parameter.type)
    if parameter.type in ("LIST", "STRUCT"):
        return to_json(value)
    return repr(value)
