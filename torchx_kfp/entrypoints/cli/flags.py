"""Options that several commands share, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from torchx_kfp.common.text import parse_duration
from torchx_kfp.execution.host.settings import FLAGS, SETTINGS, SUBMISSION, Setting, Submission, flag
from torchx_kfp.execution.runs import OUTPUT_DIR

Decorator = Callable[[Any], Any]
#: The settings of the host on the command line, by name.
Flags = Mapping[str, Any]


def gathered(argument: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Add options whose values a function combines into one argument of the command.

    Args:
        make: the function; it gets the options' values as keywords.
    """

    def decorate(command: Callable[..., Any]) -> Any:
        made: Any = lambda **values: make(**values)  # noqa: E731  # a new function, to which click adds the options
        for option in reversed(options):
            made = option(made)

        @wraps(command)
        def with_argument(**words: Any) -> Any:
            values = {param.name: words.pop(param.name) for param in reversed(made.__click_params__)}
            return command(**{argument: made(**values)}, **words)

        decorated: Any = with_argument
        decorated.__click_params__ = [*getattr(command, "__click_params__", ()), *made.__click_params__]
        return decorated

    return decorate


def unless(other: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Return a callback that rejects a flag together with another one; both flags need one."""

    def check(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
        given = [option for option in ctx.command.params if other in option.opts and ctx.params.get(option.name or "")]
        if value and given:
            raise click.UsageError(f"{other} and {param.opts[-1]} contradict each other. Give only one of them.", ctx)
        return value

    return check


@dataclass(frozen=True)
class Target:
    """The target of a command: a pipeline, or a TorchX component with its arguments."""

    word: str
    arguments: tuple[str, ...]


#: The argument ``target``, a ``Target``.
target_argument = gathered(
    "target",
    Target,
    click.argument("word", metavar="FILE[:NAME]|YAML|COMPONENT"),
    click.argument("arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED),
)


output_dir_option: Decorator = click.option(
    "--output-dir",
    metavar="DIR",
    default=OUTPUT_DIR,
    show_default=True,
    help="The directory with the folders of runs.",
)

tracker_base_option: Decorator = click.option(
    "--tracker-base",
    "base",
    metavar="DIR|URL",
    help="The tracker base with the records; RUN is then any run with records there.  [default: the run's]",
)

parameter_option: Decorator = click.option(
    "-p",
    "--parameter",
    "words",
    metavar="NAME=VALUE",
    multiple=True,
    help="The value of a pipeline parameter. May be given several times.",
)


@dataclass(frozen=True)
class ViewOptions:
    """The view of a run in progress: ``--quiet``, ``--verbose`` and ``--json``."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False


view_options = gathered(
    "view",
    ViewOptions,
    click.option(
        "-q",
        "--quiet",
        is_flag=True,
        callback=unless("--verbose"),
        help="Show only the final table and messages.",
    ),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        callback=unless("--quiet"),
        help="Print the start, inputs and outputs of each stage, line by line.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON instead of the table."),
)


def _given_to_containers(
    secrets: tuple[str, ...], config_maps: tuple[str, ...], **values: tuple[str, ...]
) -> dict[str, Any]:
    from torchx_kfp.execution.local.given_keys import parse_given

    return {
        "secrets": parse_given(secrets, "--secret"),
        "config_maps": parse_given(config_maps, "--config-map"),
        **values,
    }


#: Options for data that stages get from this machine, as keywords of ``local.run``.
container_options = gathered(
    "given",
    _given_to_containers,
    click.option(
        "--secret",
        "secrets",
        metavar="NAME=PATH",
        multiple=True,
        help="The values of a Kubernetes secret that stages use. PATH is a folder with one file per key, a file with "
        "KEY=VALUE lines, or the secret's manifest.",
    ),
    click.option(
        "--config-map",
        "config_maps",
        metavar="NAME=PATH",
        multiple=True,
        help="The values of a config map; PATH as for --secret.",
    ),
    click.option(
        "--mount",
        "mounts",
        metavar="SRC[:DST][:ro]",
        multiple=True,
        help="Mount the file or folder SRC in all containers, at DST or at the same path; :ro makes it read-only. May "
        "be given several times.",
    ),
    click.option(
        "--copy-from",
        metavar="URL",
        multiple=True,
        help="Also copy input artifacts from this URL, or from below it. By default, only those in object stores are "
        "copied. May be given several times.",
    ),
)

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, callback=unless("--csv"), help="Print JSON, for programs."
)
csv_option: Decorator = click.option("--csv", "as_csv", is_flag=True, callback=unless("--json"), help="Print CSV.")


def refuse_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Reject an empty string: with an unset shell variable, --name "$x" would select all runs."""
    if value == "":
        raise click.BadParameter("It is empty. Omit the option instead.", ctx, param)
    return value


def _settings(settings: Mapping[str, Setting]) -> list[Decorator]:
    """Return the options of settings."""
    return [
        click.option(
            *(["-n"] if name == "namespace" else []),
            flag(name),
            name,
            is_flag=name == "cache",
            callback=refuse_empty,
            metavar=setting.metavar,
            help=setting.help,
        )
        for name, setting in settings.items()
    ]


def _given(**values: Any) -> Flags:
    return {name: value for name, value in values.items() if value is not None}


def _submission(cache: bool, **values: Any) -> Submission:
    return Submission(cache=not cache, **{name: value or "" for name, value in values.items()})


host_options = gathered("flags", _given, *_settings({name: SETTINGS[name] for name in FLAGS}))
submission_options = gathered("submission", _submission, *_settings(SUBMISSION))
#: The options of a submission that apply to a compiled file.
file_options = gathered("submission", _submission, *_settings({"cache": SUBMISSION["cache"]}))


def read_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type of an option that a function parses; it raises ValueError for wrong text."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OverflowError) as error:
            raise click.BadParameter(str(error)) from None

    return read


#: A duration such as ``90s``, ``1h30m`` or ``30d``, as seconds.
seconds = read_by(parse_duration)
