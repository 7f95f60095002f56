"""The optimizers that need only the standard library: random search and grids.

An optimizer is a function ``ask(definition, told, state, number)``, which returns the parameters of up to ``number``
trials and its next state. ``told`` has the trials so far, in the order in which it asked for them. A state is any JSON
value, None at first.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

#: The most draws to find new trials in a small space.
_DRAWS = 10_000


def number_of_digits(low: float, high: float) -> int:
    """Return the significant digits of numbers between the bounds: six, or more in a narrow range."""
    return min(17, 6 + max(0, int(math.log10(max(abs(low), abs(high)) / (high - low)))))


def place(space: Any, share: float, room: float = 0.0) -> Any:
    """Return the number at this fraction of the range, from 0 to 1.

    ``room`` extends the range at both ends. With 0.5, the first and last integers are as likely as others.
    """
    if share in (0, 1):
        return space["bounds"][int(share)]
    low, high = space["bounds"][0] - room, space["bounds"][1] + room
    number = low ** (1 - share) * high**share if space["log"] else low * (1 - share) + high * share
    # Short numbers have the same text on each engine.
    number = round(number) if space["type"] == "int" else float(f"{number:.{number_of_digits(low, high)}g}")
    return max(space["bounds"][0], min(space["bounds"][1], number))


def points(space: Any) -> Any:
    """Return the values of a parameter in a grid."""
    if "values" in space:
        return space["values"]
    low, high = space["bounds"]
    if "points" not in space:
        return range(low, high + 1)
    shares = (index / (space["points"] - 1) for index in range(space["points"]))
    # Two points may round to the same integer.
    return list(dict.fromkeys(place(space, share) for share in shares))


def ask_random(definition: Any, told: Sequence[Any], state: None, number: int) -> tuple[list[Any], None]:
    """Draw random trials that differ from all others."""
    seed = definition["seed"]
    # With the same trials told, a stage that runs again draws the same trials.
    source = random.SystemRandom() if seed is None else random.Random(f"{seed} {len(told)}")
    known = [trial["parameters"] for trial in told]
    asked: list[Any] = []
    for draw in range(_DRAWS):
        drawn = {
            name: source.choice(space["values"])
            if "values" in space
            else place(space, source.random(), 0.5 if space["type"] == "int" else 0.0)
            for name, space in definition["parameters"].items()
        }
        if drawn not in known or (draw + 1 == _DRAWS and not asked):
            known.append(drawn)
            asked.append(drawn)
        if len(asked) == number:
            break
    return asked, None


def ask_grid(definition: Any, told: Sequence[Any], state: None, number: int) -> tuple[list[Any], None]:
    """Return the next points of the grid. The last parameter changes fastest."""
    spaces = definition["parameters"]
    grid = itertools.product(*map(points, spaces.values()))
    asked = itertools.islice(grid, len(told), len(told) + number)
    return [dict(zip(spaces, point, strict=True)) for point in asked], None


#: The functions of the optimizers that need only the standard library, and of all named optimizers.
SIMPLE = {"random": f"{__name__}:ask_random", "grid": f"{__name__}:ask_grid"}
OPTIMIZERS = {**SIMPLE, "ax": "torchx_kfp.hpo.ax.optimizer:ask"}
