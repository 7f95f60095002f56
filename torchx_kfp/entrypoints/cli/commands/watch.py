"""``torchx-kfp watch``: show a run in progress, local or on a KFP host."""

from __future__ import annotations

import click

from torchx_kfp.entrypoints.cli.flags import ViewOptions, view_options
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.execution.runs import output_dir_words
from torchx_kfp.execution.runs.history import RunReader


@click.command("watch")
@click.argument("run")
@view_options
@finds_runs()
def watch_command(run: str, view: ViewOptions, lookup: Lookup) -> None:
    """Show RUN until it ends, then the table of its stages.

    The exit code is that of the run: 0 if it succeeded. Ctrl-C ends the view, not the run.
    """
    from torchx_kfp.entrypoints.cli.display.summary import attach

    source = lookup.find(run)
    words = output_dir_words(source.folder) if isinstance(source, RunReader) else host_words(lookup.flags)
    attach(source, words, view)
