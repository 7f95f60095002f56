"""Follow a run that goes on elsewhere, on this machine or on a KFP host, until its end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from torchx_kfp.cli.display.printing import print_message, this_command
from torchx_kfp.errors import PipelineFileError, StageFailedError
from torchx_kfp.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.runs.result import RunResult
    from torchx_kfp.runs.source import Source


def show(source: Source, words: list[str], *, quiet: bool, verbose: bool, as_json: bool) -> None:
    """Show a run until its end, then its summary.

    Args:
        source: the run.
        words: the options with which commands find the run again.
        quiet: whether to show only the summary.
        verbose: whether to print lines, with the inputs and outputs of stages.
        as_json: whether to print events as JSON instead of the table.

    Raises:
        StageFailedError: the run has failed.
        Exit: Ctrl-C has ended the view; the code is 130.
    """
    from torchx_kfp.cli.display.summary import summarize
    from torchx_kfp.cli.display.views import view_of
    from torchx_kfp.runs.source import attend
    from torchx_kfp.runs.state import RunState, outline

    first = source.read()
    try:
        stages = outline(first.load())
    except PipelineFileError:
        stages = {}  # they become known as they begin
    view = view_of(RunState(stages), quiet=quiet, verbose=verbose, as_json=as_json)

    def follow() -> RunResult:
        try:
            with view.shown():
                return attend(source, view).run.result()
        except KeyboardInterrupt:
            print_message(f"The run {first.run_id} goes on.")
            print_message(f"To watch it again: {this_command('watch', first.run_id, *words)}")
            print_message(f"To end it: {this_command('cancel', first.run_id, *words)}")
            raise click.exceptions.Exit(128 + signal.SIGINT) from None

    result = summarize(follow, view.run, quiet=quiet, as_json=as_json)
    if result.state is not State.SUCCEEDED:
        raise StageFailedError(f"The run {result.run_id} was {result.state}.")
