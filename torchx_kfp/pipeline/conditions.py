"""Conditions of ``dsl.If`` and fields of loop items: expressions of the Common Expression Language.

celpy evaluates them in a separate process (``evaluator``), which is ended when it takes too long. KFP's backend uses
cel-go, which compares numbers of different types by value and treats values of different types as unequal. celpy
rejects both, so this module has cel-go's operators.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from torchx_kfp.pipeline.evaluator import LONGEST, ask

# KFP's compiler quotes an operand if the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


def verify_condition(expression: str, seconds: float = LONGEST) -> None:
    """Raise ValueError if the expression is not CEL, or takes longer than ``seconds`` to parse."""
    _verified(expression, seconds)


@functools.cache
def _verified(expression: str, seconds: float) -> None:
    ask(expression, None, seconds)


def holds(
    expression: str,
    parameters: Mapping[str, Any],
    seconds: float = LONGEST,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Tell whether the condition is true for a task's inputs.

    Args:
        expression: the condition, in CEL.
        parameters: the task's inputs.
        seconds: how long the evaluation may take.
        is_wanted: is called now and then, and returns whether the answer is still needed.

    Raises:
        ValueError: the expression is not CEL, is not a boolean, or takes too long, or the answer is no longer needed.
    """
    return bool(ask(expression, parameters, seconds, is_wanted))


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
def number_operators() -> dict[str, Callable[..., Any]]:
    """Return comparisons of celpy's values that behave like cel-go's; ``torchx-kfp results --where`` also uses them."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def equal(a: Any, b: Any) -> Any:
        for operand in (a, b):
            if isinstance(operand, celpy.CELEvalError):
                return operand
        if isinstance(a, numbers) and isinstance(b, numbers):
            # Python compares numbers of different types exactly.
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
