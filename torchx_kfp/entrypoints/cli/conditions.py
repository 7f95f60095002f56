"""Conditions on recorded values, ``loss < 0.1``, and the order of rows by a value."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

_OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
_EQUALITY = ("==", "!=")
#: The characters of a comparison; reading more of them could take long.
_LONGEST = 4000
_COMPARISON = re.compile(
    r"""\s*(?P<name>[^<>=!]*[^<>=!\s])\s*(?P<operator>[<>]=?|[=!]=)\s*(?P<value>"[^"]*"|'[^']*'|[^\s<>=!"']\S*)\s*"""
)


@dataclass(frozen=True)
class Condition:
    """A comparison of ``--where``: ``loss < 0.1``. The value has quotes, or no spaces."""

    name: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Return the comparison in a word of the command line.

        Raises:
            UsageError: it is something else.
        """
        found = _COMPARISON.fullmatch(text.strip()) if len(text) <= _LONGEST else None
        if not found:
            raise click.UsageError(
                f"--where {text!r} is not NAME OPERATOR VALUE, such as 'loss < 0.1' or 'note == \"two words\"'. The "
                f"operators are {' '.join(_OPERATORS)}; several --where must all hold. For anything else, use --json."
            )
        value = found["value"]
        return cls(found["name"], found["operator"], value[1:-1] if value[0] in "\"'" else value)

    def holds(self, value: Any) -> bool:
        """Tell whether the comparison is true of a value. Values of different types differ, and have no order."""
        other: Any = _number(self.value)
        if isinstance(value, bool):
            other = {"true": True, "false": False}.get(self.value.lower())
        elif isinstance(value, str) and (other is None or self.operator in _EQUALITY):
            other = self.value
        if isinstance(value, bool | str) != isinstance(other, bool | str) or other is None:
            return self.operator == "!="
        return bool(_OPERATORS[self.operator](value, other))


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def in_order(values: Mapping[str, Mapping[str, Any]], name: str, *, descending: bool) -> list[str]:
    """Return the keys in the order of what each has under a name: numbers, NaN, text, and those without it."""
    groups: tuple[list[str], ...] = ([], [], [], [])
    numbers, nan, texts, missing = groups
    for key, row in values.items():
        value = row.get(name)
        if name not in row:
            missing.append(key)
        elif isinstance(value, int | float):
            (numbers if value == value else nan).append(key)
        else:
            texts.append(key)
    numbers.sort(key=lambda key: values[key][name], reverse=descending)
    texts.sort(key=lambda key: str(values[key][name]), reverse=descending)
    return [key for group in groups for key in group]
