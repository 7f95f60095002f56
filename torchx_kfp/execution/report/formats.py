"""Format values for the page."""

from __future__ import annotations

import json
import math
from typing import Any

from torchx_kfp.common.text import shorten

#: How many characters of a value are shown: usually, in a table's cell, and when the value is opened.
SHORT, CELL, LONG = 100, 40, 20_000


def text(value: Any) -> str:
    """Format a parameter or result: text unchanged, numbers at a legible length, the rest as JSON."""
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
    """Shorten a text to one line: its first line if it has several, otherwise its two ends."""
    first, *others = value.strip().splitlines() or [""]
    return shorten(f"{first[: most - 1]}…" if others else first, most, keep="ends")


def as_number(value: Any) -> float | None:
    """Return a finite number, or None. Text is parsed, because parameters in a command are text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return None
    return found if math.isfinite(found) else None
