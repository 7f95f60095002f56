"""What a shell completes: runs of this machine and their stages, and files. No host is asked."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.history import find_run, find_runs, read_run

#: How many of the newest runs are offered.
_MOST = 50


class RunWord(click.types.StringParamType):
    """A word ``RUN[/STAGE]``."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the newest runs on this machine, or the stages of one, that begin with the text."""
        output_dir = ctx.params.get("output_dir") or OUTPUT_DIR
        run, slash, _ = incomplete.partition("/")
        names = [] if slash else [LATEST]
        try:
            if slash:
                names += [f"{run}/{end.name}" for end in read_run(find_run(output_dir, run)).run.ends]
            else:
                names += [folder.name for folder in find_runs(output_dir)[:_MOST]]
        except (TorchxKfpError, OSError):  # there are none, or one cannot be read
            pass
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete(command: click.Command) -> None:
    """Give the parameters of a command the completion that their metavars promise."""
    for item in command.params:
        metavar = (item.metavar or item.human_readable_name).lstrip("[")
        if metavar.startswith("RUN"):
            item.type = RunWord()
        elif metavar.startswith(("FILE", "DIR")):
            item.type = click.Path(file_okay=not metavar.startswith("DIR"))
