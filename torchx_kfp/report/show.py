"""Values as a page shows them."""

from __future__ import annotations

import json
import math
from typing import Any

from torchx_kfp.text import shorten

#: Longer values, and those in a table's cell, are shown in part, and up to the last number when they are opened.
SHORT, CELL, LONG = 100, 40, 20_000


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


def beginning(value: str, most: int) -> str:
    """A long text in one line: its first one where there are several, or else cut in its middle."""
    first, *others = value.strip().splitlines() or [""]
    return shorten(f"{first[: most - 1]}…" if others else first, most, keep="ends")


def as_number(value: Any) -> float | None:
    """A finite number, also one in a text: parameters that stand in a command are text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
