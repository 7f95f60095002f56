"""``torchx-kfp watch``: show a run in progress, on this machine or on a KFP host."""

from __future__ import annotations

import click

from torchx_kfp.cli.flags import output_dir_option, view_options
from torchx_kfp.cli.following import show
from torchx_kfp.cli.hosts import Flags, host_options, host_words
from torchx_kfp.cli.resolver import find_source


@click.command("watch", short_help="Show a run in progress.")
@click.argument("run")
@output_dir_option
@view_options
@host_options
def watch_command(run: str, output_dir: str, quiet: bool, verbose: bool, as_json: bool, flags: Flags) -> None:
    """Show RUN while it goes on, and its table of stages at its end.

    RUN is a run id, the beginning or the end of one, or "latest". A run that is not on this machine is one of the KFP
    host, where it may also have a name. The exit code is that of the run: 0 if it has succeeded. Ctrl-C ends the view,
    and the run goes on.
    """
    from torchx_kfp.runs import output_dir_words
    from torchx_kfp.runs.history import RunReader

    source = find_source(run, output_dir, flags)
    words = output_dir_words(source.folder) if isinstance(source, RunReader) else host_words(flags)
    show(source, words, quiet=quiet, verbose=verbose, as_json=as_json)
