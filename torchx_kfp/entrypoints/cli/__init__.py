"""The command line: commands parse their arguments, call the other packages, and print the results.

Results go to stdout, everything else to stderr. Exit codes: 0, 1 for a failure, 2 for wrong usage, 128 + n for signal
n.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

import torchx_kfp
from torchx_kfp.errors import StageFailedError, TorchxKfpError

__all__ = ["main"]


#: The commands by purpose, each with its help line. The module of a command in ``commands`` defines
#: ``<command>_command`` and is imported on use.
_SECTIONS = {
    "Write": {
        "init": "Create a small project that runs out of the box.",
        "check": "Find problems of a pipeline, local and on KFP.",
        "compile": "Write a pipeline as YAML for KFP's own tools.",
    },
    "Run": {
        "run": "Run a pipeline locally.",
        "submit": "Run a pipeline on a KFP host.",
    },
    "Follow": {
        "runs": "List runs, newest first.",
        "watch": "Show a run until it ends.",
        "logs": "Print the output of stages.",
        "cancel": "End a run.",
        "retry": "Run the failed stages of a run again.",
        "replay": "Run one stage again locally.",
    },
    "Results": {
        "results": "Show results of stages: filtered, sorted, as JSON or CSV.",
        "show": "Show a run, all records of a stage, or its lineage.",
        "compare": "Show runs side by side.",
        "get": "Copy an artifact of a run to this machine.",
        "report": "Write a run as an HTML page.",
        "ui": "Show runs in a browser, and compare them.",
    },
    "Set up": {
        "dev-host": "Try submit without a cluster: a local KFP host.",
        "doctor": "Check this machine, a KFP host and storage.",
        "rbac": "Print the permissions that distributed stages need.",
    },
}
_COMMANDS = {name: line for section in _SECTIONS.values() for name, line in section.items()}
_LONGEST = max(map(len, _COMMANDS))
#: Former commands, and what to use in their place.
_FORMER = {
    "schedule": "torchx-kfp compile, and kfp recurring-run create",
    "secret": "kubectl create secret generic (docs/guides/storage.md)",
    "tag": "--name of torchx-kfp run and submit",
    "gc": "rm -r, or a lifecycle rule of the bucket (docs/guides/storage.md#remove-old-runs)",
}
#: The variable with which a shell requests completions.
_COMPLETE = "_TORCHX_KFP_COMPLETE"
#: The meaning of RUN in all commands.
_ABOUT_RUN = """\
RUN is the id of a pipeline run, its beginning or end, its name on KFP, the URL of its page there, the path of its
folder, or "latest". RUN/STAGE is one of its stages, with the name in tables and logs: latest/train[2]; make_data is
make-data. Local runs are searched before those of the KFP host; with --host, only the host's. "latest" is the first run
of `torchx-kfp runs`."""

#: The least similarity of a suggested option, from 0 to 1.
_SIMILAR = 0.75


@contextlib.contextmanager
def _explaining_options() -> Iterator[None]:
    """Explain options of other commands; click would suggest similar ones."""
    try:
        yield
    except click.NoSuchOption as error:
        raise _explained(error) from None


def _explained(error: click.NoSuchOption) -> click.UsageError:
    import difflib

    from torchx_kfp.execution.host.settings import SETTINGS, way_to_give

    command = error.ctx.command if error.ctx is not None else None
    flags = [flag for param in command.params for flag in param.opts] if command is not None else []
    name, hint = error.option_name.lstrip("-"), ""
    if error.option_name == "--traceback" and error.ctx is not None:
        hint = f" It goes before the command: torchx-kfp --traceback {error.ctx.info_name} ..."
    elif name == "format" and "--json" in flags:
        hint = " Did you mean '--json'?"
    elif "--host" in flags and (setting := name.removeprefix("no-").replace("-", "_")) in SETTINGS:
        hint = f" Set {way_to_give(setting)}."
    elif near := [flag for flag in flags if flag.startswith(error.option_name)] or difflib.get_close_matches(
        name, [flag.lstrip("-") for flag in flags], 1, _SIMILAR
    ):
        hint = f" Did you mean '--{near[0].lstrip('-')}'?"
    elif "-p" in flags:
        hint = (
            f" For a parameter of a pipeline: -p {name}=... For an argument of a component, after all options: "
            f"-- --{name} ..."
        )
    return click.UsageError(f"{error.message.rstrip('.')}.{hint}", error.ctx)


class _CommandGroup(click.Group):
    """Loads commands on use, and prints torchx-kfp's errors as messages, with a traceback on request."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_LONGEST), line) for name, line in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = import_module(f"torchx_kfp.entrypoints.cli.commands.{name}")
        command: click.Command = getattr(module, f"{name}_command")
        command.short_help = _COMMANDS[cmd_name]
        if any((item.metavar or item.human_readable_name).lstrip("[").startswith("RUN") for item in command.params):
            command.epilog = "RUN: see `torchx-kfp --help`."
        if _COMPLETE in os.environ:
            import_module("torchx_kfp.entrypoints.cli.completion").complete(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from torchx_kfp.entrypoints.cli.display.printing import WORDS

        ctx.meta[WORDS] = tuple(args)
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            from torchx_kfp.common.text import did_you_mean

            use = f" Use: {_FORMER[args[0]]}" if args[0] in _FORMER else did_you_mean(args[0], _COMMANDS)
            ctx.fail(f"No such command {args[0]!r}.{use}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _explaining_options():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)

    def _invoke(self, ctx: click.Context) -> Any:
        import logging
        import traceback

        from torchx_kfp.entrypoints.cli.display.printing import MessageHandler, print_message

        logger, handler = logging.getLogger("torchx_kfp"), MessageHandler(logging.WARNING)
        logger.addHandler(handler)
        try:
            with _explaining_options():
                return super().invoke(ctx)
        except TorchxKfpError as error:
            if ctx.params.get("traceback"):
                print_message(traceback.format_exc())
            # The last lines of a stage's log keep their colors.
            print_message(f"Error: {error}", colours=isinstance(error, StageFailedError))
            ctx.exit(error.exit_code)
        finally:
            logger.removeHandler(handler)


@click.group(cls=_CommandGroup, epilog=_ABOUT_RUN, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(torchx_kfp.__version__, prog_name="torchx-kfp")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
def cli(traceback: bool) -> None:
    """TorchX applications as stages of Kubeflow Pipelines v2."""
    del traceback  # the group reads it


class _Pipe(io.FileIO):
    """The file of a stream whose reader may be gone, such as ``head -1``: writes that fail with this error are dropped.

    Any other error ends the command. It is raised once: Python writes the rest of a buffer again at exit.
    """

    def __init__(self, stream: io.TextIOWrapper, error: type[OSError]) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream, self._error = stream, error  # the end of the stream would close the file

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, self._error):
                self._error = OSError
                raise TorchxKfpError(f"The output cannot be written: {error.strerror}.") from error
            return memoryview(data).nbytes


def _lenient(stream: Any, error: type[OSError]) -> Any:
    """Return a replacement for a standard stream: missing readers and odd characters do not end a command."""
    if type(stream) is not io.TextIOWrapper:
        return stream
    file = io.BufferedWriter(_Pipe(stream, error))
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)


def main() -> None:
    """Run the program ``torchx-kfp``."""
    # Unwritable messages do not change the exit code.
    sys.stdout, sys.stderr = _lenient(sys.stdout, BrokenPipeError), _lenient(sys.stderr, OSError)
    try:
        sys.exit(cli(prog_name="torchx-kfp"))
    except TorchxKfpError as error:  # from --help; the group prints errors of commands
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
