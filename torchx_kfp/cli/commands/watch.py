"""``torchx-kfp watch``: show a run in progress, on this machine or on a KFP host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchx_kfp.cli.display.printing import this_command
from torchx_kfp.cli.flags import output_dir_option, view_options
from torchx_kfp.errors import PipelineFileError, StageFailedError, TorchxKfpError
from torchx_kfp.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.runs.result import RunResult
    from torchx_kfp.runs.source import Source


class DetachedError(TorchxKfpError):
    """Ctrl-C has ended the view of a run that goes on."""

    exit_code = 130


@click.command("watch", short_help="Show a run in progress.")
@click.argument("run")
@output_dir_option
@view_options
def watch_command(run: str, output_dir: str, quiet: bool, verbose: bool, as_json: bool) -> None:
    """Show RUN while it goes on, and its table of stages at its end.

    RUN is a run id, the beginning or the end of one, or "latest". The exit code is that of the run: 0 if it has
    succeeded. Ctrl-C ends the view; the run goes on.
    """
    from torchx_kfp.runs.history import RunReader, find_run

    show(RunReader(find_run(output_dir, run)), [], quiet=quiet, verbose=verbose, as_json=as_json)


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
        DetachedError: Ctrl-C has ended the view.
    """
    from torchx_kfp.cli.display.summary import summarize
    from torchx_kfp.cli.display.views import view_of
    from torchx_kfp.runs.state import RunState, outline

    first = source.read()
    try:
        stages = outline(first.load())
    except PipelineFileError:
        stages = {}  # they become known as they begin
    view = view_of(RunState(stages), quiet=quiet, verbose=verbose, as_json=as_json)

    def follow() -> RunResult:
        record, seen = first, 0
        try:
            with view.shown():
                for record in source.follow():
                    for event in record.events[seen:]:
                        view.on_event(event)
                    seen = len(record.events)
        except KeyboardInterrupt:
            back, end = this_command("watch", record.run_id, *words), this_command("cancel", record.run_id, *words)
            text = f"The run {record.run_id} goes on. To watch it again: {back}\nTo end it: {end}"
            raise DetachedError(text) from None
        return record.run.result()

    result = summarize(follow, view.run, quiet=quiet, as_json=as_json)
    if result.state is not State.SUCCEEDED:
        raise StageFailedError(f"The run {result.run_id} was {result.state}.")
