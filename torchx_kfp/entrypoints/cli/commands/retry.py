"""``torchx-kfp retry``: run again what failed in a run, on this machine or on a KFP host."""

from __future__ import annotations

import click

from torchx_kfp.entrypoints.cli.display.printing import print_message, this_command
from torchx_kfp.entrypoints.cli.flags import ViewOptions
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.execution.runs.history import RunReader


@click.command("retry")
@click.argument("run")
@click.option("--watch", is_flag=True, help="Show the run until its end; the exit code is that of the run.")
@finds_runs()
@click.pass_context
def retry_command(
    context: click.Context,
    run: str,
    watch: bool,
    lookup: Lookup,
) -> None:
    """Run again what failed in RUN, or was canceled. Stages that succeeded are kept.

    On a KFP host, KFP starts the failed stages again in the same run, as "Retry" in its UI does; the pipeline and its
    arguments stay as they are. A run on this machine is continued by a new run, as with `torchx-kfp run --resume RUN`,
    which is shown until its end.
    """
    from torchx_kfp.entrypoints.cli.commands.run import run_command
    from torchx_kfp.entrypoints.cli.display.summary import attach

    source = lookup.find(run, changes="retry")
    if isinstance(source, RunReader):
        folder = source.folder
        context.invoke(run_command, resumed=folder.name, output_dir=str(folder.parent))
        return
    words = host_words(lookup.flags)
    source.retry()
    if watch:
        attach(source, words, ViewOptions())
    else:
        print_message(f"KFP retries {source.run_id}: {source.link}".rstrip(": "))
        print_message(f"To watch it: {this_command('watch', source.run_id, *words)}")
