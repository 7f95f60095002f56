"""Evaluate conditions of ``dsl.If``, and fields of loop items, as KFP's backend does.

The backend evaluates the Common Expression Language (cel-go). KFP's compiler writes only comparisons in it: of inputs,
text, numbers, true and false, with ``int()`` and ``double()``, joined by ``&&``, ``||`` and ``!``. They are parsed as
Python after replacing these operators; everything else is rejected. As in cel-go, numbers of different types are
compared by value, and values of different types are unequal.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torchx_kfp.common.text import shown

# The characters that a condition may have. KFP compiles conditions of a few hundred.
_MAX_CHARACTERS = 20_000
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^'\\\n]|\\(?:[abfnrtv\\'"]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}))*')"""
    r"""|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?!\w)|\b(?:inputs|parameter_values|int|double|true|false)\b"""
    r"""|&&|\|\||[=!<>]=|[-!<>()\[\].]|[ ]+"""
)
#: Tokens that are different in Python; ``~`` binds like ``!``.
_IN_PYTHON = {"&&": " and ", "||": " or ", "!": "~", "true": "True", "false": "False"}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
#: Text that becomes a number.
_NUMBERS = {
    "int": re.compile(r"[+-]?[0-9]{1,19}"),
    "double": re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,5})?"),
}
# KFP's compiler quotes an operand if the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')

#: A part of a condition, which returns its value for a task's inputs.
_Part: TypeAlias = Callable[[Mapping[str, Any]], Any]


def verify_condition(expression: str) -> None:
    """Raise ValueError if the expression is not a comparison in the form that KFP compiles."""
    _read(expression)


def is_true(expression: str, parameters: Mapping[str, Any]) -> bool:
    """Evaluate a condition for a task's inputs.

    Raises:
        ValueError: it cannot be evaluated; the message continues a sentence that begins with the task's name.
    """
    try:
        # The backend stores numbers as doubles, and the compiler writes int(...) where that matters.
        values = {name: float(v) if type(v) is int else v for name, v in parameters.items() if v is not None}
        return _truth(_read(expression)(values))
    except (ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"has the condition {expression!r}, which cannot be evaluated: {error}") from None


def select_field(value: Any, selector: str) -> Any:
    """Return a field of a loop item. KFP compiles one form: ``parseJson(string_value)["a"]``.

    Raises:
        ValueError: the item lacks the field, or the selector is malformed.
    """
    match = _FIELDS.fullmatch(selector)
    if match is None:
        raise ValueError(f"the expression {selector!r} is not a field of a loop item")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"the loop item {shown(value)} is not JSON, so it has no fields") from None
    for text in _FIELD.findall(match.group(1)):
        name = json.loads(f'"{text}"')
        if not isinstance(value, dict):
            raise ValueError(f"the loop item {value!r} is not a dict, so it has no field {name!r}")
        if name not in value:
            raise ValueError(f"the loop item {value!r} has no field {name!r}")
        value = value[name]
    return value


def compares_types(expression: str) -> bool:
    """Return whether KFP compiled a wrong expression, from values of different types."""
    return _QUOTED_INPUT.search(expression) is not None


def is_field_selector(selector: str) -> bool:
    """Return whether ``select_field`` accepts the selector."""
    return _FIELDS.fullmatch(selector) is not None


@functools.cache
def _read(expression: str) -> _Part:
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"is longer than {_MAX_CHARACTERS:,} characters")
    words, at = [], 0
    while (token := _TOKEN.match(expression, at)) is not None:
        # In parentheses, since Python joins text that follows text.
        words.append(f"({token[0]})" if token["text"] else _IN_PYTHON.get(token[0], token[0]))
        at = token.end()
    try:
        if at < len(expression):
            raise SyntaxError
        return _part(ast.parse("".join(words).strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):  # the last two are about nesting
        raise ValueError("is not a comparison of inputs, text and numbers") from None


def _part(node: ast.expr) -> _Part:
    """Return the part for a node of Python's syntax, or raise SyntaxError."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return functools.partial(_joined, isinstance(op, ast.Or), [_part(value) for value in values])
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            inner = _part(operand)
            return lambda inputs: not _truth(inner(inputs))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return lambda _: -number
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            one, other = _part(left), _part(right)
            return lambda inputs: _compared(_COMPARISONS[type(op)], one(inputs), other(inputs))
        case ast.Call(func=ast.Name(id="int" | "double" as kind), args=[argument]):
            inner = _part(argument)
            return lambda inputs: _number(kind, inner(inputs))
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="inputs"), attr="parameter_values"),
            slice=ast.Constant(value=str() as name),
        ):
            return lambda inputs: _input(inputs, name)
        case ast.Constant(value=str() | bool() | int() | float() as value):
            return lambda _: value
    raise SyntaxError


def _joined(is_or: bool, parts: Sequence[_Part], inputs: Mapping[str, Any]) -> bool:
    """Return the value of ``||`` or ``&&``: a deciding part makes up for one that cannot be evaluated."""
    problem: ValueError | None = None
    for part in parts:
        try:
            if _truth(part(inputs)) is is_or:
                return is_or
        except ValueError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return not is_or


def _compared(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    kinds = {float if type(value) is int else type(value) for value in (one, other)}
    if compare in (operator.eq, operator.ne):
        return compare(one, other) if len(kinds) == 1 else compare is operator.ne
    if len(kinds) > 1 or not kinds <= {float, str, bool}:
        raise ValueError(f"{one!r} and {other!r} have no order")
    return compare(one, other)


def _number(kind: str, value: Any) -> float:
    if type(value) in (int, float) or (isinstance(value, str) and _NUMBERS[kind].fullmatch(value)):
        with contextlib.suppress(OverflowError):  # infinity is no integer
            return int(value) if kind == "int" else float(value)
    raise ValueError(f"{value!r} is not a number")


def _input(inputs: Mapping[str, Any], name: str) -> Any:
    if name not in inputs:
        raise ValueError(f"the task has no input {name}")
    return inputs[name]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
