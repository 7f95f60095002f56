"""Options of commands: those that several commands share, and those that click alone cannot parse."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from torchx_kfp.runs import OUTPUT_DIR
from torchx_kfp.text import parse_duration

Decorator = Callable[[Any], Any]

output_dir_option: Decorator = click.option(
    "--output-dir",
    metavar="DIR",
    default=OUTPUT_DIR,
    show_default=True,
    help="The directory that has the folders of runs.",
)

parameter_option: Decorator = click.option(
    "-p",
    "--parameter",
    "words",
    metavar="NAME=VALUE",
    multiple=True,
    help="The value of a pipeline parameter. May be given several times.",
)


def format_option(*forms: str, text: str = "The format of the output.") -> Decorator:
    """Add ``--format``, whose value is the argument ``form``; the first of the forms is the default."""
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help=text)


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """A duration such as ``90s``, ``1h30m`` or ``30d``, as seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_DOCKER = "--docker"
# Matches the name of a stage, as KFP makes it. The name of a file has a dot, and a colon if a pipeline is selected.
_STAGE = re.compile(r"[^-.:][^.:]*")


class ContainerCommand(click.Command):
    """A command with the option ``--docker [STAGE]``, after which click alone would always expect a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_values(args))


def _with_values(words: Sequence[str]) -> list[str]:
    """Return the words, with an empty value for each ``--docker`` that is not followed by a stage's name."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            return [*found, *words[len(found) :]]
        has_value = word != _DOCKER or _STAGE.fullmatch(following)
        found.append(word if has_value else f"{_DOCKER}=")
    return found


def chosen_stages(values: tuple[str, ...]) -> bool | tuple[str, ...]:
    """Return the argument ``docker`` of ``torchx_kfp.local.run`` for these values; an empty one means all stages."""
    return True if "" in values else values
