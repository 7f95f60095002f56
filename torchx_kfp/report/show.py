"""Values as a page shows them."""

from __future__ import annotations

import json
import math
import time
from typing import Any

#: Longer values, and those in a table's cell, are shown in part, and up to the last number when they are opened.
SHORT, CELL, LONG = 100, 40, 20_000


def seconds(value: float) -> str:
    """A duration: ``0.35 s``, ``12.3 s``, ``4 min 05 s``, ``2 h 07 min``."""
    if value < 0.9995:
        return f"{max(0.0, value):.2g} s" if value >= 0.001 else "0 s"
    if value < 59.95:
        return f"{value:.1f} s"
    value = round(value)
    if value < 3600:
        return f"{int(value / 60)} min {int(value % 60):02} s"
    if value < 2 * 86400:
        return f"{int(value / 3600)} h {int(value % 3600 / 60):02} min"
    return f"{int(value / 86400)} d {int(value % 86400 / 3600)} h"


def moment(value: float) -> str:
    """A time, with its zone: ``2026-01-31 14:05:09 +0000``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))


def number(value: float) -> str:
    """Six significant digits, which is what can be compared by eye."""
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else f"{value:.6g}"


def text(value: Any) -> str:
    """A parameter or result: text as it is, numbers at a legible length, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def count(value: int, one: str, many: str = "") -> str:
    """``1 stage``, ``1,000 stages``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def middle(value: str, most: int) -> str:
    """The text cut in its middle, where names differ least."""
    if len(value) <= most:
        return value
    head = (most - 1) * 3 // 5
    return f"{value[:head]}…{value[len(value) - (most - 1 - head) :]}"


def beginning(value: str, most: int) -> str:
    """A long text in one line: its first one where there are several, or else cut in its middle."""
    first, *others = value.strip().splitlines() or [""]
    return middle(f"{first[: most - 1]}…" if others else first, most)


def as_number(value: Any) -> float | None:
    """A finite number, also one in a text: parameters that stand in a command are text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
