"""The options of ``torchx-kfp run`` for stages in containers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

_OPTION = "--docker"
# A stage's name, as KFP makes it. Files have a dot in their names, and a pipeline in a file is behind a colon.
_STAGE = re.compile(r"[^-.:][^.:]*")


class ContainerCommand(click.Command):
    """A command with the option ``--docker [STAGE]``: click would take the argument behind it for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_values(args))


def _with_values(words: Sequence[str]) -> list[str]:
    """The words, with an empty value for each ``--docker`` that is not followed by the name of a stage."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            return [*found, *words[len(found) :]]
        has_value = word != _OPTION or _STAGE.fullmatch(following)
        found.append(word if has_value else f"{_OPTION}=")
    return found


def chosen_stages(values: tuple[str, ...]) -> bool | tuple[str, ...]:
    """What ``torchx_kfp.local.run`` takes for these values of the option: an empty one stands for all stages."""
    return True if "" in values else values
