"""Options of commands: those that several commands share, and those that click alone cannot parse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from torchx_kfp.runs import OUTPUT_DIR
from torchx_kfp.text import did_you_mean, parse_duration

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


def view_options(command: Any) -> Any:
    """Add ``--quiet``, ``--verbose`` and ``--json``: how a command shows a run in progress."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print each event as one line of JSON, instead of the table."
        ),
        click.option(
            "-v", "--verbose", is_flag=True, help="Print the start, inputs and outputs of each stage, line by line."
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            help="Show only the final table, the command that shows its results again, and errors.",
        ),
    ):
        command = option(command)
    return command


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


class KnownName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """One of the names that the function ``known`` returns, which is called when a name is needed.

    Unlike ``click.Choice``, it suggests a name for a misspelled one, and help texts do not wait for the names.
    """

    name = "name"

    def __init__(self, known: Callable[[], Iterable[str]]) -> None:
        self.known = known

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        names = list(self.known())
        if value not in names:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, names))}.{did_you_mean(value, names)}", param, ctx)
        return str(value)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what follows "Missing option '--name'." """
        return f"Give one of {', '.join(map(repr, self.known()))}."

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with this text, for the shell's completion."""
        return [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]


class KubernetesName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """A name that Kubernetes accepts: a label, or several joined by dots if ``dotted``."""

    name = "name"

    def __init__(self, *, dotted: bool = False) -> None:
        self.dotted = dotted

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        parts = text.split(".") if self.dotted else [text]
        if len(text) > (253 if self.dotted else 63) or not all(map(_LABEL.fullmatch, parts)):
            self.fail(
                f"{value!r} cannot be a name in Kubernetes. Use lowercase letters, digits and '-'"
                f"{' in parts joined by dots' if self.dotted else ', at most 63'}.",
                param,
                ctx,
            )
        return text


#: Matches a label of a name in Kubernetes.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_DOCKER = "--docker"
# Matches the name of a stage, as KFP makes it. The name of a file has a dot, and a colon if a pipeline is selected.
_STAGE = re.compile(r"[^-.:][^.:]*")


class ContainerCommand(click.Command):
    """A command with the option ``--docker [STAGE]``, after which click alone would always expect a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _with_values(args))
        except click.UsageError as error:
            if "extra argument" not in error.message:
                raise
            raise click.UsageError(
                f"{error.message.rstrip('.')}. Arguments of the pipeline are -p NAME=VALUE. To run a program, make "
                "it an AppDef in a pipeline.",
                ctx,
            ) from None


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
