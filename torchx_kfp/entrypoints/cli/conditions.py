"""Conditions on recorded values, such as ``loss < 0.1``, and sorting by a value."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from torchx_kfp.common.text import did_you_mean, listed
from torchx_kfp.entrypoints.cli.display.printing import is_number

_OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
_EQUALITY = ("==", "!=")
#: The most characters of a comparison; parsing more could take long.
_LONGEST = 4000
_COMPARISON = re.compile(
    r"""\s*(?P<name>[^<>=!]*[^<>=!\s])\s*(?P<operator>[<>]=?|[=!]=)\s*(?P<value>"[^"]*"|'[^']*'|[^\s<>=!"']\S*)\s*"""
)


#: The name, the operator and the value of a comparison.
Comparison = tuple[str, str, str]


def parse_comparison(text: str) -> Comparison:
    """Return the name, the operator and the value of a comparison: ``loss < 0.1``. Values with spaces need quotes.

    Raises:
        UsageError: the text is not a comparison, or orders something other than a number.
    """
    match = _COMPARISON.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if not match:
        raise click.UsageError(
            f"--where {text!r} is not NAME OPERATOR VALUE, such as 'loss < 0.1' or 'note == \"two words\"'. The "
            f"operators are {' '.join(_OPERATORS)}; several --where must all hold. For anything else, use --json."
        )
    name, sign, value = match.groups()
    value = value[1:-1] if value[0] in "\"'" else value
    if sign not in _EQUALITY and _number(value) is None:
        raise click.UsageError(
            f"--where {text!r}: {value!r} is not a number, and {sign} compares numbers. For text, use == or !=."
        )
    return name, sign, value


def _holds(value: Any, operator: str, text: str) -> bool:
    """Return whether a comparison holds for a value. Values of different types differ; only numbers have an order.

    Numeric text is ordered as a number. NaN equals itself.
    """
    if isinstance(value, str) and operator not in _EQUALITY:
        value = _number(value)
    if isinstance(value, bool):
        other: Any = {"true": True, "false": False}.get(text.lower())
    else:
        other = text if isinstance(value, str) else _number(text)
    if value != value and other != other:
        return operator == "=="
    return (operator in _EQUALITY or is_number(value)) and bool(_OPERATORS[operator](value, other))


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def select(
    rows: Mapping[str, Mapping[str, Sequence[Any]]],
    where: Sequence[Comparison],
    sorts: Sequence[str],
    known: Iterable[str] = (),
) -> list[str]:
    """Return the keys of the rows for which all comparisons hold, in order.

    Args:
        rows: the values of each row by name. A comparison must hold for any of several values; the smallest or largest
            number is the sort key.
        sorts: the names of sort keys; with ``-``, the largest first. Later ones break ties.
        known: names that all rows may lack.

    Raises:
        UsageError: no row has a value with this name.
    """
    names = {*known, *(name for values in rows.values() for name in values)}
    orders = [(sort, False) if sort in names else (sort.removeprefix("-"), sort.startswith("-")) for sort in sorts]
    for wanted in [*(name for name, _, _ in where), *(name for name, _ in orders)] if rows else []:
        if wanted not in names:
            there = sorted(names.difference(known))
            hint = did_you_mean(wanted, there) or f" The names: {listed(there, 20) or 'none'}."
            raise click.UsageError(f"No run has a value named {wanted!r}.{hint}")
    keys = [
        key
        for key, values in rows.items()
        if all(any(_holds(it, sign, text) for it in values.get(name, ())) for name, sign, text in where)
    ]
    for name, descending in reversed(orders):
        keys = _in_order({key: rows[key].get(name, ()) for key in keys}, descending=descending)
    return keys


def _in_order(rows: Mapping[str, Sequence[Any]], *, descending: bool) -> list[str]:
    """Return the keys sorted by value: numbers, NaN, text, and keys without a value."""

    def place(key: str) -> tuple[int, tuple[float, str]]:
        values = rows[key]
        if numbers := [value for value in values if isinstance(value, int | float) and value == value]:
            return 0, ((max if descending else min)(numbers), "")
        if not values:
            return 3, (0, "")
        return (1, (0, "")) if isinstance(values[0], float) else (2, (0, str(values[0])))

    ordered = sorted(rows, key=lambda key: place(key)[1], reverse=descending)
    return sorted(ordered, key=lambda key: place(key)[0])
