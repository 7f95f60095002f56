"""Shell completion of local runs and their stages, and of files. No host is contacted."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.history import find_run, find_runs, read_run

#: The most runs that are offered, newest first.
_MOST = 50


class RunWord(click.types.StringParamType):
    """A word ``RUN[/STAGE]``."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return local runs, or stages of a run, that begin with the text."""
        output_dir = ctx.params.get("output_dir") or OUTPUT_DIR
        run, slash, _ = incomplete.partition("/")
        names = [] if slash else [LATEST]
        try:
            if slash:
                names += [f"{run}/{end.name}" for end in read_run(find_run(output_dir, run)).run.ends]
            else:
                names += [folder.name for folder in find_runs(output_dir)[:_MOST]]
        except (TorchxKfpError, OSError):  # there are none, or one is unreadable
            pass
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete(command: click.Command) -> None:
    """Set the completion of a command's parameters according to their metavars."""
    for item in command.params:
        metavar = (item.metavar or item.human_readable_name).lstrip("[")
        if metavar.startswith("RUN"):
            item.type = RunWord()
        elif metavar.startswith(("FILE", "DIR")):
            item.type = click.Path(file_okay=not metavar.startswith("DIR"))
