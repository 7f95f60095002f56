"""Follow a run that goes on elsewhere, on this machine or on a KFP host, until its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from torchx_kfp.cli.display.printing import print_message, this_command
from torchx_kfp.errors import HostError, HostNotFoundError, HostSettingsError, PipelineFileError, StageFailedError
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import listed

if TYPE_CHECKING:
    from torchx_kfp.runs.record import RunRecord
    from torchx_kfp.runs.result import RunResult
    from torchx_kfp.runs.source import Source


class _DetachedError(Exception):
    """A signal has ended the view of a run, which goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _detach(number: int) -> NoReturn:
    raise _DetachedError(number)


def show(source: Source, words: Sequence[str], *, quiet: bool, verbose: bool, as_json: bool) -> None:
    """Show a run until its end, then its summary.

    Args:
        source: the run.
        words: the options with which commands find the run again.
        quiet: whether to show only the summary.
        verbose: whether to print lines, with the inputs and outputs of stages.
        as_json: whether to print events as JSON instead of the table.

    Raises:
        StageFailedError: the run has failed.
        HostError: the host does not answer, or has lost the run.
        Exit: Ctrl-C or another signal has ended the view; the code is 130, or 128 + its number.
    """
    again = [
        f"To watch it again: {this_command('watch', source.run_id, *words)}",
        f"To end it: {this_command('cancel', source.run_id, *words)}",
    ]
    from torchx_kfp.runs.signals import ending_signals

    try:
        with ending_signals(_detach):
            _show(source, words, quiet=quiet, verbose=verbose, as_json=as_json)
    except _DetachedError as signaled:
        for line in (f"The run {source.run_id} goes on.", *again):
            print_message(line)
        raise click.exceptions.Exit(128 + signaled.number) from None
    except (HostNotFoundError, HostSettingsError):
        raise
    except HostError as error:
        raise type(error)("\n".join([f"{error}", f"The run {source.run_id} may go on.", *again])) from error


def _show(source: Source, words: Sequence[str], *, quiet: bool, verbose: bool, as_json: bool) -> None:
    from torchx_kfp.cli.display.summary import summarize, unread
    from torchx_kfp.cli.display.views import view_of
    from torchx_kfp.runs.source import attend
    from torchx_kfp.runs.state import RunState, outline

    last = source.read()
    try:
        stages = outline(last.load())
    except PipelineFileError:
        stages = {}  # they become known as they begin
    view = view_of(RunState(stages), quiet=quiet, verbose=verbose, as_json=as_json)

    def follow() -> RunResult:
        nonlocal last
        with view.shown():
            last = attend(source, view)
        return last.run.result()

    def notes(result: RunResult) -> list[str]:
        return [*last.corrupt, *_cached(last, result), *([] if last.corrupt else unread(result))]

    def log_of(result: RunResult) -> str:
        failed = [stage.name for stage in result.stages if stage.state is State.FAILED and stage.pod_name]
        return f"To see the whole log: {this_command('logs', result.run_id, failed[0], *words)}" if failed else ""

    if last.folder is None:
        result = summarize(follow, view.run, quiet=quiet, as_json=as_json, notes=notes, way_on=log_of)
    else:
        result = summarize(follow, view.run, quiet=quiet, as_json=as_json)
    if result.state is not State.SUCCEEDED:
        raise StageFailedError(f"The run {result.run_id} was {result.state}.")


def _cached(record: RunRecord, result: RunResult) -> list[str]:
    """Return a sentence about the results of cached stages, which a host does not tell."""
    from torchx_kfp.backend.tracked import tracked_stages
    from torchx_kfp.pipeline.names import without_indices

    try:
        tracked = tracked_stages(record.load(), record.arguments)
    except PipelineFileError:
        return []
    names = [
        stage.name
        for stage in result.stages
        if stage.state is State.CACHED and without_indices(stage.name) in tracked and stage.results is None
    ]
    if not names:
        return []
    return [f"Cached: {listed(names)}. KFP does not say from which run, so their results are not shown."]
