"""Values of parameters: the arguments of a run, and their text in commands and files, as on KFP's backend.

If KFP's backend and its SDK (``kfp.local``) differ, this module does the same as the backend:

====================================  =====================  ==========================================
value                                 SDK                    backend, and locally
====================================  =====================  ==========================================
the double 1.0                        ``1.0``                ``1``
the double 0.00001                    ``1e-05``              ``0.00001``; a word of a command that has no output:
                                                             ``1e-05`` on 2.17, see ``driver_text``
a boolean                             ``true``               ``true``
an integer above 2**53                exact                  the nearest double (rejected)
the list [1, "é"]                     ``[1, "\\u00e9"]``     ``[1,"é"]``
a struct                              insertion order        sorted keys, no spaces
``<``, ``>``, ``&`` in those two      unchanged              ``\\u003c``, ``\\u003e``, ``\\u0026``
an optional input that is not set     ``null``               the empty string
an output file with ``3.0`` (int)     3                      rejected
an output file with 2**63 (int)       2**63                  rejected: Go's ParseInt has 64 bits
an output above 2**53                 exact                  the nearest double (rejected)
an output file with ``1``, ``t`` ...  rejected               true (as Go's ParseBool reads it)
====================================  =====================  ==========================================

The backend stores every number as a double, which is why an integer and an equal double have the same text.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from torchx_kfp.common.text import did_you_mean, shown
from torchx_kfp.contract.carried.publisher import EXACT
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Parameter, Pipeline

#: KFP's parameter types, and their names in Python.
TYPE_NAMES = {
    "STRING": "str",
    "NUMBER_INTEGER": "int",
    "NUMBER_DOUBLE": "float",
    "BOOLEAN": "bool",
    "LIST": "list",
    "STRUCT": "dict",
}

#: Types of inputs that KFP provides: the final status of another task, and this task's Kubernetes settings.
FROM_KFP = ("TASK_FINAL_STATUS", "TASK_CONFIG")

_ROUNDED = "but KFP passes numbers as doubles, which are exact for integers up to 2**53. Pass it as text"
# Go's ParseInt accepts 64 bits with a sign: 19 digits.
_INT64 = range(-(2**63), 2**63)
# Protobuf's own limit on nesting in JSON, in most languages.
_DEEPEST = 100
_TOO_DEEP = f"is nested more than {_DEEPEST} levels deep, which KFP cannot pass on"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
# Characters that Go's encoding/json escapes in strings although JSON does not require it.
_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def to_text(value: Any) -> str:
    """Return a value as text for a command."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _number_text(value)
    return to_json(value)


def driver_text(value: Any) -> str:
    """Return a value as text in a word of a command. Since KFP 2.17, the driver writes numbers with Go's ``%g``.

    Up to 2.16, and in words with an output file, the launcher does, like ``to_text``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return to_text(value)
    number = _double(value)
    if not math.isfinite(number) or (number.is_integer() and int(number) in _INT64):
        return to_text(value)
    return _number_text(number) if 1e-4 <= abs(number) < 1e6 else _exponential(number)


def _exponential(number: float) -> str:
    """Format a number as Go's ``strconv.FormatFloat(value, 'e', -1, 64)``."""
    digits = Decimal(repr(number)).normalize()
    sign, figures, _ = digits.as_tuple()
    head, tail = str(figures[0]), "".join(map(str, figures[1:]))
    power = digits.adjusted()
    return f"{'-' if sign else ''}{head}{f'.{tail}' if tail else ''}e{'-' if power < 0 else '+'}{abs(power):02d}"


def to_json(value: Any) -> str:
    """Return a value as the backend's JSON: compact, in UTF-8, with sorted keys."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        number = _double(value)
        # Go's protojson writes tiny and huge numbers with an exponent.
        if number != 0 and (abs(number) < 1e-6 or abs(number) >= 1e21):
            return re.sub(r"e-0(\d)$", r"e-\1", repr(number))
        return _number_text(number)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{to_json(key)}:{to_json(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(to_json(item) for item in value) + "]"


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # arguments are checked; the record of a run may have anything
        raise ArgumentError(f"The number {shown(value)} is larger than any that KFP passes on.") from None


def _number_text(value: float) -> str:
    """Format a number as Go's ``strconv.FormatFloat(value, 'f', -1, 64)``."""
    number = _double(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return format(Decimal(repr(number)), "f").removesuffix(".0")


def convert(value: Any, type_: str) -> Any:
    """Convert a value from a compiled file, in which the integer 3 is ``3.0``."""
    if isinstance(value, bool) or value is None:
        return value
    if type_ == "NUMBER_INTEGER" and isinstance(value, float) and value.is_integer():
        return int(value)
    if type_ == "NUMBER_DOUBLE" and isinstance(value, int):
        return float(value)
    return value


#: The values that KFP's driver accepts for inputs of types other than text.
_TAKEN: dict[str, type | tuple[type, ...]] = {
    "NUMBER_INTEGER": (int, float),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": bool,
    "LIST": list,
    **dict.fromkeys(("STRUCT", *FROM_KFP), dict),
}


def typed(value: Any, type_: str) -> Any:
    """Return the value for an input of this type, as KFP's driver does: as text for a STRING, otherwise checked.

    Raises:
        ValueError: it has another type, or is null.
    """
    if type_ == "STRING":
        return to_text(value)
    taken = _TAKEN.get(type_)
    if taken is None:
        return value
    if not isinstance(value, taken) or (isinstance(value, bool) and taken is not bool):
        raise ValueError(f"it is {'null' if value is None else shown(value)}, not {_article(type_)}")
    return convert(value, type_)


def from_output(text: str, type_: str) -> Any:
    """Read the value in an output file.

    Raises:
        ValueError: the text is not a value of that type.
    """
    if type_ == "STRING":
        return text
    word = text.strip()
    if type_ == "NUMBER_INTEGER" and (match := re.fullmatch(r"([+-]?)0*([0-9]+)", word)):
        # Python would raise a different error for thousands of digits.
        if len(match.group(2)) > 19 or (integer := int("".join(match.groups()))) not in _INT64:
            raise ValueError(f"is not a 64-bit int: {shown(text)}")
        if integer != float(integer):
            raise ValueError(f"is {shown(integer)}, {_ROUNDED}")
        return integer
    if type_ == "NUMBER_DOUBLE":
        with contextlib.suppress(ValueError):
            # The backend passes outputs on as JSON, which has neither NaN nor infinities.
            if math.isfinite(number := float(word)) and "_" not in word:
                return number
    if type_ == "BOOLEAN" and word in _TRUE + _FALSE:
        return word in _TRUE
    if type_ in ("LIST", "STRUCT"):
        try:
            value = json.loads(word)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except ValueError:
            value = None
        if isinstance(value, list if type_ == "LIST" else dict):
            _verify_json(value)
            return value
    raise ValueError(f"is not {_article(type_)}: {shown(text)}")


#: Examples of values, for types whose text is not obvious.
_EXAMPLES = {"BOOLEAN": "true or false", "LIST": "JSON, such as [0.1, 0.5]", "STRUCT": 'JSON, such as {"lr": 0.1}'}


def from_word(text: str, type_: str) -> Any:
    """Read a value given as ``name=text`` for a parameter of this type.

    Raises:
        ValueError: the text is not a value of that type.
    """
    if type_ == "BOOLEAN" and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if type_ == "STRING":
        return text
    try:
        return check(from_output(text, type_), type_)
    except ValueError as error:
        example = _EXAMPLES.get(type_)
        raise ValueError(f"{error}. Write it as {example}" if example else str(error)) from None


def check(value: Any, type_: str) -> Any:
    """Return a Python value as a parameter of this type.

    Raises:
        ValueError: the value has another type, or KFP cannot pass it on.
    """
    if type_ == "STRING" and isinstance(value, str):
        _verify_text(value)
        return value
    if type_ == "BOOLEAN" and isinstance(value, bool):
        return value
    if type_ == "NUMBER_INTEGER" and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > EXACT:
            raise ValueError(f"is {shown(value)}, {_ROUNDED}")
        return value
    if type_ == "NUMBER_DOUBLE" and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not is_finite(value):
            raise ValueError(f"is {shown(value)}, but KFP passes numbers only as finite doubles")
        return float(value)
    if type_ in ("LIST", "STRUCT"):
        wanted = (list, tuple) if type_ == "LIST" else (dict,)
        if isinstance(value, wanted):
            try:
                copy = json.loads(json.dumps(value))
            except (TypeError, ValueError) as error:
                raise ValueError(f"cannot be written as JSON: {error}") from None
            except RecursionError:
                raise ValueError(_TOO_DEEP) from None
            _verify_json(copy)
            return copy
    raise ValueError(f"is not {_article(type_)}: {shown(value)}")


def _article(type_: str) -> str:
    name = TYPE_NAMES.get(type_, type_)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_finite(number: float) -> bool:
    """Return whether KFP can pass on the number, as a double and in JSON."""
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer larger than any double
        return False


def large_integers(value: Any) -> Iterator[float]:
    """Yield the integers in a value that doubles may not represent exactly."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if is_finite(value) and abs(value) >= EXACT and float(value).is_integer() and abs(value) < 1e21:
            yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from large_integers(item)


def _verify_json(value: Any, depth: int = 1) -> None:
    """Raise ValueError for values inside a LIST or STRUCT that KFP cannot pass on."""
    if isinstance(value, str):
        _verify_text(value)
    elif isinstance(value, (int, float)):
        if not is_finite(value):
            raise ValueError(f"contains the number {shown(value)}, but KFP passes numbers only as finite doubles")
        if isinstance(value, int) and abs(value) > EXACT:
            raise ValueError(f"contains the number {shown(value)}, {_ROUNDED}")
    elif isinstance(value, (list, dict)):
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        items = [*value, *value.values()] if isinstance(value, dict) else value
        for item in items:
            _verify_json(item, depth + 1)


def _verify_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"contains the character {text[error.start]!r}, half of a surrogate pair, which UTF-8 cannot encode: "
            f"{shown(text)}"
        ) from None


def parse_arguments(pipeline: Pipeline, words: Mapping[str, str]) -> dict[str, Any]:
    """Read arguments from text, each according to its parameter's type; LIST and STRUCT are JSON.

    Raises:
        ArgumentError: names or values do not fit the parameters; the message lists all of them. Missing arguments are
            checked later, when the run starts.
    """
    return _collect(pipeline, words, from_word)


def complete_arguments(pipeline: Pipeline, arguments: Mapping[str, Any], *, may_lack: bool = False) -> dict[str, Any]:
    """Return the values of all parameters: these arguments, and defaults for the rest.

    Args:
        pipeline: the pipeline.
        arguments: the arguments.
        may_lack: whether required parameters may lack a value, because the run is started elsewhere.

    Raises:
        ArgumentError: arguments are unknown, missing or wrong; the message lists all of them.
    """
    parameters = pipeline.root.parameter_inputs
    given = {
        name: value
        for name, value in arguments.items()
        if value is not None or name not in parameters or not parameters[name].optional
    }
    missing = [] if may_lack else missing_arguments(pipeline, given)
    return {**defaults_of(pipeline), **_collect(pipeline, given, check, missing)}


def defaults_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return the default arguments of a run."""
    parameters = pipeline.root.parameter_inputs.items()
    return {name: convert(its.default, its.type) for name, its in parameters if its.has_default}


def missing_arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> list[str]:
    """Return the required parameters without a value."""
    return [
        name
        for name, its in pipeline.root.parameter_inputs.items()
        if name not in arguments and not _may_be_missing(its)
    ]


def describe_parameters(pipeline: Pipeline) -> str:
    """Describe the parameters in one line each: ``name: type = default``."""
    lines = []
    for name, parameter in sorted(pipeline.root.parameter_inputs.items(), key=lambda item: _may_be_missing(item[1])):
        line = f"  {name}: {TYPE_NAMES.get(parameter.type, parameter.type)}"
        if parameter.has_default:
            default = convert(parameter.default, parameter.type)
            line += f" = {to_json(default) if parameter.type in ('LIST', 'STRUCT') else repr(default)}"
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
        parameter = pipeline.root.parameter_inputs.get(name)
        if parameter is None:
            problems.append(f"There is no parameter {name!r}.{did_you_mean(name, pipeline.root.parameter_inputs)}")
            continue
        try:
            values[name] = read(value, parameter.type)
            if parameter.literals and values[name] not in parameter.literals:
                allowed = ", ".join(repr(convert(literal, parameter.type)) for literal in parameter.literals)
                raise ValueError(f"is {shown(values[name])}, but must be one of {allowed}")
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
