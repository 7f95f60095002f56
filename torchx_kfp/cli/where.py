"""``--where``: filter runs with an expression of the Common Expression Language."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import click

from torchx_kfp.cli.display.printing import print_message
from torchx_kfp.text import counted, did_you_mean, listed

#: The names in an expression that are not names of results.
OWN = ("run", "stage", "execution", "run_id")
#: The name of the map with all results of a run.
_RESULTS = "results"
_MACROS = {"all", "exists", "exists_one", "filter", "map", "reduce", "min"}
#: Operators of Python or SQL that people may write, and those of the language.
_HINTS = {"and": "&&", "or": "||", "not": "!", "=": "==", "is": "==", "<>": "!="}
#: The language's types, by celpy's names for them.
_KINDS = {"Int": "a whole number", "Double": "a number", "String": "text", "Bool": "true or false"}
_WORD = re.compile(r"\w+|<>|=|\S")

Row = Mapping[str, Any]


def matching(expression: str, rows: Mapping[str, tuple[Row, Row]]) -> list[str]:
    """Return the keys of the rows for which the expression is true. A row that lacks a name does not match.

    Args:
        expression: the expression, in the Common Expression Language.
        rows: for each key, all values by name, and only the results.

    Raises:
        click.UsageError: the text is not an expression, names something that no row has, or is not a boolean.
    """
    import celpy
    from celpy.celparser import CELParseError

    from torchx_kfp.pipeline.cel import number_operators

    environment = celpy.Environment()
    try:
        tree = environment.compile(expression)
    except CELParseError as error:
        raise _wrong(expression, _place(expression, error.column)) from None
    names, fields = set(_names(tree)), set(_fields(tree))
    _check(expression, names - {_RESULTS}, fields, rows)
    program = environment.program(tree, functions={**number_operators(), **_arithmetic()})
    missing = celpy.CELEvalError("missing")
    found, failed, evaluated = [], [], False
    for key, (values, results) in rows.items():
        given = {name: _cel(values[name]) if name in values else missing for name in names - {_RESULTS}}
        if _RESULTS in names:
            given[_RESULTS] = celpy.celtypes.MapType({_cel(name): _cel(value) for name, value in results.items()})
        try:
            holds = program.evaluate(given)
        except (celpy.CELEvalError, ArithmeticError, TypeError, ValueError) as error:
            if all(name in values for name in names - {_RESULTS}) and all(name in results for name in fields):
                failed.append(error)
            continue
        if not isinstance(holds, celpy.celtypes.BoolType):
            raise _wrong(expression, f"is not true or false but {holds!s}; compare it, such as {expression} > 0")
        evaluated = True
        if holds:
            found.append(key)
    if failed:
        reason = _reason(failed[0])
        if not evaluated:
            raise _wrong(expression, f"cannot be evaluated: {reason}")
        print_message(f"--where {expression!r} cannot be evaluated for {counted(len(failed), 'run')}: {reason}.")
    return found


def _check(expression: str, names: set[str], fields: set[str], rows: Mapping[str, tuple[Row, Row]]) -> None:
    """Reject names that no run has: most of them are typos."""
    there = list(dict.fromkeys(name for _, results in rows.values() for name in results))
    for name in sorted(names - {*there, *OWN}):
        composed = next((other for other in there if re.match(rf"{re.escape(name)}\W", other)), None)
        hint = f' Write results["{composed}"].' if composed else ""
        raise _wrong(expression, f"names {name!r}, {unknown_name(name, there)}{hint}")
    for name in sorted(fields - set(there)):
        raise _wrong(expression, f"names {name!r}, {unknown_name(name, there)}")


def unknown_name(name: str, there: Collection[str]) -> str:
    """Return the end of a message about a result that no run has."""
    recorded = f"The recorded results are: {listed(sorted(there), 20)}." if there else "No results are recorded."
    return f"which no run here has recorded.{did_you_mean(name, there)} {recorded}"


def _names(tree: Any, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the variables of an expression that its macros do not bind."""
    if not hasattr(tree, "children"):
        return
    if tree.data == "ident":
        name = str(tree.children[0])
        if name not in bound:
            yield name
        return
    children = tree.children
    if tree.data == "member_dot_arg" and str(children[1]) in _MACROS and len(children) > 2:
        yield from _names(children[0], bound)
        variables = frozenset(map(str, _names(children[2].children[0])))
        for child in children[2].children:
            yield from _names(child, bound | variables)
        return
    for child in children:
        yield from _names(child, bound)


def _fields(tree: Any) -> Iterator[str]:
    """Yield the results that constants select from the map, except those in ``has()``, which may be missing."""
    if not hasattr(tree, "children"):
        return
    if tree.data == "ident_arg" and str(tree.children[0]) == "has":
        return
    if tree.data in ("member_index", "member_dot") and list(_tokens(tree.children[0])) == [_RESULTS]:
        selected = list(_tokens(tree.children[1]))
        if len(selected) == 1:
            text = selected[0]
            if tree.data == "member_dot":
                yield text
            elif re.fullmatch(r"""(["'])(?:(?!\1)[^\\])*\1""", text):
                yield text[1:-1]
    for child in tree.children:
        yield from _fields(child)


def _tokens(tree: Any) -> Iterator[str]:
    if hasattr(tree, "children"):
        for child in tree.children:
            yield from _tokens(child)
    else:
        yield str(tree)


def _cel(value: Any) -> Any:
    import celpy

    try:
        return celpy.json_to_cel(value)
    except ValueError:  # an int of more than 64 bits
        return celpy.celtypes.DoubleType(value)


def _arithmetic() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the language's arithmetic for mixed types of numbers: users do not see the types of results."""
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.DoubleType)

    def mixed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def apply(a: Any, b: Any) -> Any:
            if isinstance(a, numbers) and isinstance(b, numbers) and type(a) is not type(b):
                a, b = celtypes.DoubleType(a), celtypes.DoubleType(b)
            value = function(a, b)
            return celtypes.DoubleType(value) if type(value) is float else value  # celpy itself loses the type

        return apply

    return {
        "_+_": mixed(operator.add),
        "_-_": mixed(operator.sub),
        "_*_": mixed(operator.mul),
        "_/_": mixed(operator.truediv),
    }


def _place(expression: str, column: int | None) -> str:
    rest = expression[(column or 1) - 1 :]
    if not rest.strip():
        return "is empty; write, for example, 'accuracy > 0.9'"
    word = _WORD.match(rest.lstrip())
    if word and word[0].lower() in _HINTS:
        return f"is not an expression: at column {column}, write {_HINTS[word[0].lower()]} for {word[0]}"
    return f"is not a valid expression: syntax error at column {column}, at or after {rest[:20]!r}"


def _reason(error: Exception) -> str:
    args = error.args
    said = str(args[0]) if args else str(error)
    overload = re.search(r"applied to '\((.*)\)'", said)
    if overload:
        kinds = re.findall(r"celtypes\.(\w+)Type", overload[1])
        return f"no operation for {' and '.join(_KINDS.get(kind, kind.lower()) for kind in kinds)}"
    function = re.match(r"undeclared reference to '(\w+)'", said)
    return f"there is no function {function[1]!r}" if function else said.partition("\n")[0]


def _wrong(expression: str, text: str) -> click.UsageError:
    return click.UsageError(f"--where {expression!r} {text.removesuffix('.')}.")
