"""Conditions of ``dsl.If`` and fields of loop items, in the Common Expression Language, as on KFP's backend.

celpy evaluates the expressions. KFP's backend uses cel-go, which compares numbers of different types by value and
treats values of different types as unequal. celpy rejects both, so this module has cel-go's operators.

An expression may take any time: a pipeline can do that in its stages as well. A signal ends the evaluation.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

# The characters that a condition may have. KFP compiles conditions of a few hundred.
_MAX_CHARACTERS = 20_000
# KFP's compiler quotes an operand if the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


def verify_condition(expression: str) -> None:
    """Raise ValueError if the expression is not CEL."""
    _compile(expression)


def is_true(expression: str, parameters: Mapping[str, Any]) -> bool:
    """Evaluate a condition for a task's inputs.

    Raises:
        ValueError: the expression is not CEL, or is not a boolean.
    """
    import celpy

    program = _compile(expression)
    try:
        # The backend stores numbers as doubles, and the compiler writes int(...) where that matters.
        values = {name: float(v) if type(v) is int else v for name, v in parameters.items() if v is not None}
        result = program.evaluate({"inputs": celpy.json_to_cel({"parameter_values": values})})
    except Exception as error:  # celpy may raise anything
        raise ValueError(f"cannot be evaluated: {_reason(error)}") from None
    if not isinstance(result, celpy.celtypes.BoolType):
        raise ValueError(f"is not true or false but {result!r}")
    return bool(result)


def select_field(value: Any, selector: str) -> Any:
    """Return a field of a loop item. KFP compiles one form: ``parseJson(string_value)["a"]``.

    Raises:
        ValueError: the item does not have the field, or the selector has another form.
    """
    match = _FIELDS.fullmatch(selector)
    if match is None:
        raise ValueError(f"the expression {selector!r} is not a field of a loop item")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"the loop item {value!r} is not JSON, so it has no fields") from None
    for text in _FIELD.findall(match.group(1)):
        name = json.loads(f'"{text}"')
        if not isinstance(value, dict):
            raise ValueError(f"the loop item {value!r} is not a dict, so it has no field {name!r}")
        if name not in value:
            raise ValueError(f"the loop item {value!r} has no field {name!r}")
        value = value[name]
    return value


def compares_types(expression: str) -> bool:
    """Tell whether KFP compiled the condition from values of different types, which yields a wrong expression."""
    return _QUOTED_INPUT.search(expression) is not None


def is_field_selector(selector: str) -> bool:
    """Tell whether ``select_field`` accepts the selector."""
    return _FIELDS.fullmatch(selector) is not None


@functools.cache
def _operators() -> dict[str, Callable[..., Any]]:
    """Return comparisons of celpy's values that behave like cel-go's."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def function(compare: Callable[[Any, Any], Any], unlike: bool | None = None) -> Callable[[Any, Any], Any]:
        """Return an operator; ``unlike`` is its value for operands of different types, None if they have no order."""

        def apply(a: Any, b: Any) -> Any:
            for operand in (a, b):
                if isinstance(operand, celpy.CELEvalError):
                    return operand
            if isinstance(a, numbers) and isinstance(b, numbers):
                # Python compares numbers of different types exactly.
                return celtypes.BoolType(compare(_plain(a), _plain(b)))
            if type(a) is type(b):
                return celtypes.BoolType(bool(compare(a, b)))
            if unlike is None:
                raise TypeError(f"{type(a).__name__} and {type(b).__name__} have no order")
            return celtypes.BoolType(unlike)

        return apply

    return {
        "_==_": function(operator.eq, unlike=False),
        # The opposite of equality: celpy's values need not have it.
        "_!=_": function(lambda a, b: not a == b, unlike=True),  # noqa: SIM201
        "_<_": function(operator.lt),
        "_<=_": function(operator.le),
        "_>_": function(operator.gt),
        "_>=_": function(operator.ge),
    }


def _plain(number: Any) -> float:
    return float(number) if isinstance(number, float) else int(number)


@functools.cache
def _compile(expression: str) -> Any:
    import celpy
    from celpy.celparser import CELParseError

    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"is longer than {_MAX_CHARACTERS:,} characters")
    limit = sys.getrecursionlimit()
    try:
        environment = celpy.Environment()
        return environment.program(environment.compile(expression), functions=_operators())
    except CELParseError:
        # The error's own message is a drawing of several lines.
        raise ValueError("is not an expression of the Common Expression Language") from None
    except Exception as error:  # celpy may raise anything
        raise ValueError(f"cannot be evaluated: {_reason(error)}") from None
    finally:
        sys.setrecursionlimit(limit)  # which an environment changes


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    args = error.args
    if len(args) > 1 and args[1] is KeyError:
        return f"the task has no input {', '.join(str(name) for name in args[2])}"
    # celpy's own errors have a message first.
    return str(args[0]) if len(args) > 1 else f"{type(error).__name__}: {error}"
