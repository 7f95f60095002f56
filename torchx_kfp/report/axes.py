"""Scales of drawings: from numbers, or from the values of a choice, to pixels, with the ticks of the axis."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torchx_kfp.report.formats import text
from torchx_kfp.text import shorten

#: The position of each tick in pixels, and its label.
Ticks = list[tuple[float, str]]

#: The ratio of the largest number to the smallest from which an axis is logarithmic.
_LOG_FROM = 100.0
_LARGEST = sys.float_info.max
#: How many values of a choice have a label, and how long that is at most.
_MOST_LABELS, _LABEL = 12, 14


class Axis:
    """A scale from numbers to pixels.

    Args:
        values: the numbers.
        start: the pixel near which the smallest number is.
        end: the pixel near which the largest one is.
        log: whether it is logarithmic, if there are only positive numbers. Default: if they span a wide range.
        whole: whether there are no ticks between whole numbers. Default: if all numbers are whole.
    """

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool | None = None, whole: bool | None = None
    ) -> None:
        low, high = min(values), max(values)
        self.whole = all(float(value).is_integer() for value in values) if whole is None else whole
        self.log = low > 1e-300 and (high / low >= _LOG_FROM if log is None else log)
        if self.log:
            low, high = math.log10(low), math.log10(high)
        # Leave some room around the outermost points. Halve first: the difference of two large numbers may overflow.
        room = 2 * (high / 2 - low / 2) * 0.04 or abs(high) * 0.1 or 1.0
        self.low, self.high = max(low - room, -_LARGEST), min(high + room, _LARGEST)
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        return self._pixel(math.log10(value) if self.log else value)

    def _pixel(self, value: float) -> float:
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> Ticks:
        if self.log:
            # Larger powers of ten, in the room above the largest number, are not floats.
            powers = range(math.ceil(self.low - 1e-9), math.floor(min(self.high, 308.0) + 1e-9) + 1)
            if len(powers) < 2:
                return [(self.place(value), f"{value:.3g}") for value in self._within_a_decade()]
            every = math.ceil(len(powers) / 6) or 1
            return [(self._pixel(power), f"{10.0**power:g}") for power in powers[::every]]
        rough = self.high / 5 - self.low / 5
        if not 1e-300 < rough < 1e300:
            return [(self.place(value), f"{value:.3g}") for value in (self.low, self.high)]
        step = _nice_step(max(rough, 1.0) if self.whole else rough)
        first = math.ceil(self.low / step)
        values = [(first + count) * step for count in range(12)]
        return [(self.place(value), _tick(value, step)) for value in values if value <= self.high]

    def _within_a_decade(self) -> list[float]:
        first = math.floor(self.low)
        values = [float(f"{factor}e{power}") for power in (first, first + 1) for factor in (1, 2, 5)]
        found = [value for value in values if self.low <= math.log10(value) <= self.high]
        return found if len(found) > 1 else [10**self.low, 10**self.high]


class Steps:
    """A scale from the values of a choice to pixels: one step for each value."""

    def __init__(self, values: Iterable[Any], start: float, end: float) -> None:
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(map(text, values)))}
        self._start, self._step = start, (end - start) / max(1, len(self._numbers))

    def place(self, value: Any) -> float:
        return round(self._start + self._step * (self._numbers[text(value)] + 0.5), 1)

    def ticks(self) -> Ticks:
        every = math.ceil(len(self._numbers) / _MOST_LABELS) or 1
        return [(self.place(name), shorten(name, _LABEL, keep="ends")) for name in list(self._numbers)[::every]]


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _tick(value: float, step: float) -> str:
    if value and (abs(value) >= 1e6 or abs(step) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step)))}f}"
