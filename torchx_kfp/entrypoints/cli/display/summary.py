"""Show a run until its end, and summarize it: stages, failures, logs, and ways to continue."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import click

from torchx_kfp.common.text import duration, listed
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER
from torchx_kfp.entrypoints.cli.display.printing import (
    Column,
    for_stderr,
    print_message,
    print_rows,
    show_results,
    this_command,
)
from torchx_kfp.entrypoints.cli.display.views import View, view_of
from torchx_kfp.entrypoints.cli.flags import ViewOptions
from torchx_kfp.errors import HostError, HostNotFoundError, HostSettingsError, PipelineError, StageFailedError
from torchx_kfp.execution.pipeline.walk import is_meant, outline, without_indices
from torchx_kfp.execution.runs import output_dir_words
from torchx_kfp.execution.runs.journal import CommandLine
from torchx_kfp.execution.runs.record import cached_by_kfp
from torchx_kfp.execution.runs.result import RunResult, StageResult, describe_failure
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import ending_signals

#: On a terminal, more iterations with the same state than this share a row.
_ROWS = 10
#: On a terminal, a result has at most this many characters: long URLs would make a run higher than the terminal.
_LONGEST = 40


class _DetachedError(BaseException):
    """A signal (the argument is its number) ended the view of a run that continues."""


def attach(source: RunSource, words: Sequence[str], options: ViewOptions, command: CommandLine | None = None) -> None:
    """Show a run of another process or a host until its end, then its summary.

    Args:
        words: the options with which commands find the run.
        command: the current command line, if it submitted the run.

    Raises:
        StageFailedError: the run has failed.
        HostError: the host does not answer, or has lost the run.
        Exit: Ctrl-C or another signal ended the view; the code is 128 + its number.
    """
    again = [
        f"To watch it again: {this_command('watch', source.run_id, *words)}",
        f"To end it: {this_command('cancel', source.run_id, *words)}",
    ]

    def detach(number: int) -> NoReturn:
        raise _DetachedError(number)

    try:
        with ending_signals(detach):
            result = _follow(source, words, options, command)
    except _DetachedError as signaled:
        for line in (f"The run {source.run_id} continues.", *again):
            print_message(line)
        raise click.exceptions.Exit(128 + signaled.args[0]) from None
    except (HostNotFoundError, HostSettingsError):
        raise
    except HostError as error:
        raise type(error)("\n".join([f"{error}", f"The run {source.run_id} may still be running.", *again])) from error
    if result.state is not State.SUCCEEDED:
        raise StageFailedError(f"The run {result.run_id} was {result.state}.")


def _follow(source: RunSource, words: Sequence[str], options: ViewOptions, command: CommandLine | None) -> RunResult:
    last = source.read()
    try:
        stages = outline(last.load())
    except PipelineError:
        stages = {}  # they become known as they start
    view = view_of(RunState(stages), options)

    def follow() -> RunResult:
        nonlocal last
        last = source.attend(view)
        return last.run.result()

    def notes(result: RunResult) -> list[str]:
        if last.folder is not None:
            return unread(result)
        problems = [*last.corrupt, *filter(None, [cached_by_kfp(last)]), *([] if last.corrupt else unread(result))]
        return [*problems, *source.left_replicas()]

    return summarize(follow, view, notes=notes, words=words, command=command or last.command)


def summarize(
    follow: Callable[[], RunResult],
    view: View,
    *,
    notes: Callable[[RunResult], Sequence[str]] | None = None,
    words: Sequence[str] = (),
    command: CommandLine | None = None,
) -> RunResult:
    """Show a run until its end, print a summary, and return its result.

    Args:
        follow: runs the pipeline, or waits for its end.
        view: the view. If a signal ends the run, its state is summarized; its options limit the output.
        notes: returns messages to print below the table. Default: ``unread``.
        words: the options with which commands find a run on a host.
        command: the command line that started the run, if known.

    Raises:
        StageFailedError: the run failed.
    """

    def ways_on(result: RunResult) -> list[str]:
        arguments = view.run.started.arguments if view.run.started else {}
        if result.folder is None:
            return [*_ways_on_host(result, arguments, words), *_ways_to_go_on(command, result, "KFP's cache")]
        replay = _replay(result, "in this terminal, where breakpoint() works", output_dir_words(result.folder))
        return [*replay, *_forgotten_code(result, arguments, "started"), *_ways_to_go_on(command, result, "the cache")]

    def end(result: RunResult) -> None:
        if not view.options.as_json:
            print_stages(result.stages)
        for sentence in (notes or unread)(result):
            print_message(sentence)

    try:
        with view.shown():
            result = follow()
    except (KeyboardInterrupt, SystemExit) as ending:
        if view.run.started is not None:
            result = view.run.result()
            end(result)
            code = (
                ending.code if isinstance(ending, SystemExit) and isinstance(ending.code, int) else 128 + signal.SIGINT
            )
            print_message(f"Run {result.run_id} was ended by {signal.Signals(code - 128).name}.")
            if not view.options.quiet and result.folder is not None:
                print_message("\n".join([f"Logs and outputs are in {result.folder}", *ways_on(result)]))
        raise
    end(result)
    if not view.options.quiet:
        took = f"{result.state}, {duration(result.duration)}"
        place = result.link if result.folder is None else f"logs and outputs are in {result.folder}"
        print_message(f"Run {result.run_id} ({took}): {place}")
    if not view.options.as_json:
        recorded = [stage for stage in result.stages if stage.results and stage.execution_id]
        bases = list(dict.fromkeys(str(stage.tracker_base) for stage in recorded))
        for base in bases:
            # A local run knows its tracker base, and the results of its cached stages.
            place_words = ["--tracker-base", base]
            if result.folder is not None and len(bases) == 1:
                place_words = output_dir_words(result.folder)
            print_message(f"See the results again: {this_command('results', result.run_id, *place_words)}")
        if not view.options.quiet and result.folder is not None:
            page = this_command("report", result.run_id, *output_dir_words(result.folder))
            print_message(f"Write the run as a page: {page}")
    if result.state is State.FAILED:
        failure = for_stderr(describe_failure(result, view.printed))
        raise StageFailedError("\n".join([failure, *([] if view.options.quiet else ways_on(result))]))
    if result.state is not State.SUCCEEDED and not view.options.quiet:  # canceled, or the runner was killed
        for sentence in ways_on(result):
            print_message(sentence)
    return result


def _ways_on_host(result: RunResult, arguments: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    failed = [stage.name for stage in result.stages if stage.state is State.FAILED and stage.pod_name]
    logs = [f"To see the whole log: {this_command('logs', f'{result.run_id}/{name}', *words)}" for name in failed[:1]]
    lines = [*logs, *_replay(result, "locally", words)]
    forgotten = _forgotten_code(result, arguments, "submitted") if failed else []
    retry = this_command("retry", result.run_id, *words)
    return [*lines, *forgotten, f"To retry the failed stages unchanged, in the same run: {retry}"]


def _replay(result: RunResult, where: str, words: Sequence[str]) -> list[str]:
    """Return the message with the command that runs the first failed stage alone, if one has started."""
    failed = [stage.name for stage in result.stages if stage.state is State.FAILED and stage.pod_name]
    replays = (this_command("replay", f"{result.run_id}/{name}", *words) for name in failed[:1])
    return [f"To run the stage {where}: {replay}" for replay in replays]


def _forgotten_code(result: RunResult, arguments: Mapping[str, Any], done: str) -> list[str]:
    """Return a message if a Python module was missing and the pipeline's ``workspace`` is empty."""
    failed = [stage for stage in result.stages if stage.state is State.FAILED]
    lacks_code = any("No module named" in line for stage in failed for line in stage.last_lines())
    if not lacks_code or arguments.get(WORKSPACE_PARAMETER) != "":
        return []
    where = "in their images" if done == "submitted" else "where they ran"
    return [f"The run was {done} without --workspace, so its stages had only the code {where}."]


def _ways_to_go_on(command: CommandLine | None, result: RunResult, cache: str) -> list[str]:
    """Return the message with the command that continues after the finished stages."""
    if command is None:
        again = "Submit" if result.folder is None else "Run"
        return [f"{again} it again to continue: finished stages come from {cache}."]
    again = this_command(*words_to_go_on(command, result))
    if os.path.realpath(command.directory) != os.getcwd():
        again = f"cd {shlex.quote(command.directory)} && {again}"
    if "--no-cache" in command.words:
        return [f"To run all stages again (--no-cache): {again}"]
    return [f"To continue, with finished stages from {cache}: {again}"]


def words_to_go_on(command: CommandLine, result: RunResult) -> list[str]:
    """Return the arguments of the command that continues a run: locally without ``--fresh`` for finished stages.

    KFP does not cache stages that ran with ``--fresh``.
    """
    words = [*command.words]
    places = [place for place, word in enumerate(words) if word == "--fresh" or word.startswith("--fresh=")]
    for place in reversed(places if result.folder is not None else []):
        end = place + 1 if "=" in words[place] else place + 2
        named = words[end - 1].removeprefix("--fresh=")
        meant = [stage for stage in result.stages if is_meant(stage.name, named)]
        if meant and all(stage.state is State.SUCCEEDED for stage in meant):
            del words[place:end]
    return words


def unread(result: RunResult) -> list[str]:
    """Return messages about stages whose results could not be read."""
    stages = [stage for stage in result.stages if stage.execution_id and stage.tracker_base and stage.results is None]
    messages = []
    for base in dict.fromkeys(str(stage.tracker_base) for stage in stages):
        names = listed(stage.name for stage in stages if stage.tracker_base == base)
        messages.append(f"The results of {names} could not be read from {base}.")
    return messages


def print_stages(stages: Sequence[StageResult]) -> None:
    """Print a table of the stages on stdout; on a terminal, many iterations with the same state share a row."""
    has_retries = any(stage.starts > 1 for stage in stages)
    alike = Counter((without_indices(stage.name), stage.state) for stage in stages)
    groups: dict[object, list[StageResult]] = {}
    for stage in stages:
        kind = (without_indices(stage.name), stage.state)
        groups.setdefault(kind if alike[kind] > _ROWS and sys.stdout.isatty() else stage.name, []).append(stage)
    rows = []
    for group in groups.values():
        first, ran = group[0], [stage for stage in group if stage.attempts]
        results = show_results(first.measures, most=_LONGEST if sys.stdout.isatty() else None)
        if not results and first.reason and not first.attempts:
            # The state column has the first part of "was skipped: its condition is false".
            results = f"({re.sub('^was [a-z ]+: ', '', first.reason)})"
        row = {
            "stage": first.name,
            "state": str(first.state),
            "attempts": _range([stage.starts for stage in ran], ",") if has_retries else "",
            # The end of an interrupted stage is unknown.
            "seconds": _range([it.duration for it in ran if it.duration or it.state is not State.INTERRUPTED], ".1f"),
            "results": results,
        }
        if len(group) > 1:
            name = f"{without_indices(first.name)}[...]"
            row |= {"stage": name, "state": f"{len(group):,} {first.state}", "results": ""}
        rows.append(row)
    numbers = ("attempts", "seconds")
    print_rows(rows, [Column(name, right=name in numbers) for name in ("stage", "state", *numbers, "results")])


def _range(values: Sequence[float], form: str) -> str:
    return " - ".join(dict.fromkeys(f"{it:{form}}" for it in (min(values), max(values)))) if values else ""
