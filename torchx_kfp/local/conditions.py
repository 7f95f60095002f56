"""Conditions of ``dsl.If`` and fields of loop items: expressions of the Common Expression Language.

celpy evaluates them. KFP's backend uses cel-go, in which numbers of different types compare by their value and
values of different types are unequal, while celpy refuses both; the operators below are cel-go's.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

# KFP's compiler puts an operand into quotes where the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


@functools.cache
def compile_condition(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    """A function that tells whether the condition holds for a task's inputs.

    Raises:
        ValueError: the expression is not CEL. The function raises it where the expression has no boolean value.
    """
    # Imported here since it takes longer than everything else, and few pipelines have conditions.
    import celpy
    from celpy.celparser import CELParseError

    environment = celpy.Environment()
    try:
        program = environment.program(environment.compile(expression), functions=number_operators())
    except CELParseError:
        # Its own text is a drawing of several lines.
        raise ValueError("is not an expression of the Common Expression Language") from None

    def evaluate(parameters: Mapping[str, Any]) -> bool:
        # The backend has numbers as doubles, and the compiler wrote int(...) where that matters.
        values = {name: float(v) if type(v) is int else v for name, v in parameters.items() if v is not None}
        activation = {"inputs": celpy.json_to_cel({"parameter_values": values})}
        try:
            result = program.evaluate(activation)
        except celpy.CELEvalError as error:
            raise ValueError(f"cannot be evaluated: {_reason(error)}") from None
        if not isinstance(result, celpy.celtypes.BoolType):
            raise ValueError(f"is not true or false but {result!r}")
        return bool(result)

    return evaluate


def select_field(value: Any, selector: str) -> Any:
    """A field of a loop item: ``parseJson(string_value)["a"]``, the one form that KFP compiles.

    Raises:
        ValueError: the item has no such field, or the selector has another form.
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
    """Whether KFP compiled the condition from values of different types, which gives no expression."""
    return _QUOTED_INPUT.search(expression) is not None


def is_field_selector(selector: str) -> bool:
    """Whether ``select_field`` takes it."""
    return _FIELDS.fullmatch(selector) is not None


def _reason(error: Exception) -> str:
    args = error.args
    if len(args) > 1 and args[1] is KeyError:
        return f"the task has no input {', '.join(str(name) for name in args[2])}"
    return str(args[0]) if args else str(error)


@functools.cache
def number_operators() -> dict[str, Callable[..., Any]]:
    """Comparisons of celpy's values as cel-go has them; ``torchx-kfp results --where`` uses them, too."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def equal(a: Any, b: Any) -> Any:
        for operand in (a, b):
            if isinstance(operand, celpy.CELEvalError):
                return operand
        if isinstance(a, numbers) and isinstance(b, numbers):
            # Python's own comparison of its numbers, which is exact.
            return celtypes.BoolType(_plain(a) == _plain(b))
        return celtypes.BoolType(type(a) is type(b) and bool(a == b))

    def unequal(a: Any, b: Any) -> Any:
        result = equal(a, b)
        return result if isinstance(result, celpy.CELEvalError) else celtypes.BoolType(not result)

    def ordered(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def function(a: Any, b: Any) -> Any:
            for operand in (a, b):
                if isinstance(operand, celpy.CELEvalError):
                    return operand
            if isinstance(a, numbers) and isinstance(b, numbers):
                return celtypes.BoolType(compare(_plain(a), _plain(b)))
            if type(a) is not type(b):
                raise TypeError(f"{type(a).__name__} and {type(b).__name__} have no order")
            return celtypes.BoolType(compare(a, b))

        return function

    return {
        "_==_": equal,
        "_!=_": unequal,
        "_<_": ordered(operator.lt),
        "_<=_": ordered(operator.le),
        "_>_": ordered(operator.gt),
        "_>=_": ordered(operator.ge),
    }


def _plain(number: Any) -> float:
    return float(number) if isinstance(number, float) else int(number)
