"""``torchx-kfp retry``: run the failed stages of a run again, locally or on a KFP host."""

from __future__ import annotations

import os

import click

from torchx_kfp.common.text import shown
from torchx_kfp.entrypoints.cli.display.printing import WORDS, print_json, print_message, this_command
from torchx_kfp.entrypoints.cli.flags import ViewOptions, view_options
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs import output_dir_words
from torchx_kfp.execution.runs.history import RunReader
from torchx_kfp.execution.runs.journal import CommandLine
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.vocabulary import State


@click.command("retry")
@click.argument("run")
@click.option("--watch", is_flag=True, help="Show a run on a host until its end; the exit code is that of the run.")
@view_options
@finds_runs()
@click.pass_context
def retry_command(context: click.Context, run: str, watch: bool, view: ViewOptions, lookup: Lookup) -> None:
    """Run failed or canceled stages of RUN again.

    On a KFP host, KFP retries the failed stages in the same run, like "Retry" in its UI, with the same pipeline, code
    and arguments.

    On this machine, the command that started RUN is executed again in the same directory: a new run of the current
    pipeline and code, with the same arguments and options. Finished stages come from the cache. The run is shown until
    its end.
    """
    from torchx_kfp.entrypoints.cli.display.summary import attach

    source = lookup.find(run, changes="retry")
    if isinstance(source, RunReader):
        _run_again(context, source, view)
        return
    words = host_words(lookup.flags)
    source.retry()
    if watch:
        attach(source, words, view)
    elif view.as_json:
        print_json({"run": source.run_id, "link": source.link or None})
    elif not view.quiet:
        print_message(f"KFP retries {source.run_id}: {source.link}".rstrip(": "))
        print_message(f"To watch it: {this_command('watch', source.run_id, *words)}")


def _run_again(context: click.Context, source: RunReader, view: ViewOptions) -> None:
    """Execute the command that started a local run; view options of this command override its own."""
    from torchx_kfp.entrypoints.cli.commands.cancel import end_left_stages
    from torchx_kfp.entrypoints.cli.commands.run import run_command
    from torchx_kfp.entrypoints.cli.display.summary import words_to_go_on

    record = source.read()
    command = _recorded_command(record)
    words = words_to_go_on(command, record.run.result())
    if record.is_running:
        watch = this_command("watch", record.run_id, *output_dir_words(source.folder))
        raise ArgumentError(f"The run {record.run_id} is running. To see it: {watch}")
    if record.run.state is State.SUCCEEDED:
        raise ArgumentError(f"The run {record.run_id} has succeeded. To run it again: {this_command(*words)}")
    if record.run.state is State.INTERRUPTED:
        end_left_stages(source.folder, record)
    if not view.quiet:
        print_message(f"In {command.directory}: {this_command(*words)}")
        print_message("The current pipeline and code are used; finished stages come from the cache.")
    os.chdir(command.directory)
    context.meta[WORDS] = tuple(words)
    with run_command.make_context(words[0], words[1:], parent=context.parent) as again:
        if view != ViewOptions():
            again.params.update(vars(view))
        run_command.invoke(again)


def _recorded_command(record: RunRecord) -> CommandLine:
    """Return the command line that started a run.

    Raises:
        ArgumentError: it is not recorded, or the directory is gone.
    """
    command = record.command
    if command is None or command.words[:1] != ("run",):
        raise ArgumentError(
            f"The run {record.run_id} was not started by a command. Run its Python program again: finished stages come "
            "from the cache."
        )
    if not os.path.isdir(command.directory):
        raise ArgumentError(
            f"The run {record.run_id} was started in {shown(command.directory)}, which no longer exists. In the "
            f"directory of its pipeline, run: {this_command(*command.words)}"
        )
    return command
