"""A length of time on the command line."""

from __future__ import annotations

import re

import click

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """``90s``, ``1.5h``, ``30d``: a number of seconds, minutes, hours, days or weeks, as seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is not a length of time. Write, for example, 30d, 2w, 12h, 90m or 45s.", param, ctx)
        return float(match[1]) * SECONDS[match[2]]
