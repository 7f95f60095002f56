"""``torchx-kfp submit``: run a pipeline on a KFP host."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, this_call, this_command
from torchx_kfp.entrypoints.cli.flags import (
    Flags,
    Target,
    ViewOptions,
    host_options,
    submission_options,
    target_argument,
    view_options,
)
from torchx_kfp.entrypoints.cli.lookup import connect, host_words
from torchx_kfp.entrypoints.cli.run_inputs import RunInputs, input_options, show_dry_run
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.host.settings import Settings, Submission
from torchx_kfp.execution.runs.journal import CommandLine

if TYPE_CHECKING:
    from torchx_kfp.execution.model.versions import Version
    from torchx_kfp.execution.runs.prepared_run import PreparedRun


#: Values of ``--tracker-base``, for a message.
_EXAMPLES = "s3://bucket/results, or another URL that the pods can write to"


@click.command("submit")
@target_argument
@input_options("URL")
@submission_options
@click.option("--watch", is_flag=True, help="Show the run until its end; the exit code is that of the run.")
@view_options
@host_options
def submit_command(
    target: Target,
    inputs: RunInputs,
    watch: bool,
    view: ViewOptions,
    flags: Flags,
    submission: Submission,
) -> None:
    """Run a pipeline on a KFP host, and print the id of the run.

    Takes a compiled pipeline (*.yaml), a Python file that defines one (NAME selects one of several), or a TorchX
    component, whose arguments follow `--`. A pipeline that would fail on KFP (see `torchx-kfp check`), or whose pods
    cannot reach the tracker base, is not submitted.

    \b
    torchx-kfp submit pipeline.py --host https://kfp.example.com \\
        --tracker-base s3://bucket/results -p lr=0.1 --watch

    After a failure, submit it again: finished stages come from KFP's cache. `torchx-kfp retry RUN` retries the failed
    stages in the same run, unchanged.

    The host can also be configured in TORCHX_KFP_HOST or in the file ~/.config/torchx-kfp/config.ini.
    """
    from torchx_kfp.entrypoints.cli.display.summary import attach
    from torchx_kfp.execution.host.submission import start_run, version_of
    from torchx_kfp.execution.model.versions import NEWEST
    from torchx_kfp.execution.runs.prepared_run import forecast_submission

    host = connect(flags)
    # A dry run asks the host for nothing.
    find_version = (lambda: NEWEST) if inputs.dry_run else functools.partial(version_of, host.connection)
    prepared = prepare_submission(host.connection.settings, target, inputs, find_version)
    if inputs.dry_run:
        stages: list[tuple[str, str]] = []
        try:
            stages = forecast_submission(prepared, cache=submission.cache)
        except TrackerError as error:
            print_message(f"The records of earlier submissions cannot be read: {error}")
        show_dry_run(prepared, stages, as_json=view.as_json)
        return
    run = start_run(host, prepared, submission, say=print_message, warn=print_message)
    if not view.as_json:
        print_text(run.run_id)
    elif not watch:
        print_json({"run": run.run_id, "link": run.link or None})
    if watch:
        attach(run, host_words(flags), view, CommandLine(this_call(), os.getcwd()))
    elif not (view.as_json or view.quiet):
        print_message(f"{run.link}\nTo watch it: {this_command('watch', run.run_id, *host_words(flags))}".strip())


def prepare_submission(
    settings: Settings,
    target: Target,
    inputs: RunInputs,
    find_version: Callable[[], Version] | None = None,
) -> PreparedRun:
    """Prepare a run on a host, and print warnings.

    Args:
        find_version: returns the version of KFP on the host; None for a run in a file, which may lack arguments and is
            not rejected.

    Raises:
        PipelineError: the run would surely fail.
    """
    from torchx_kfp.entrypoints.cli.pipeline_files import find_own_functions
    from torchx_kfp.execution.host.submission import check_submission, refuse_submission
    from torchx_kfp.execution.model.versions import NEWEST
    from torchx_kfp.execution.model.workflow import check_size, describe, measure

    usual, is_file = settings.tracker_base or None, find_version is None
    prepared = inputs.prepare(target, usual=lambda _: usual, examples=_EXAMPLES, tracked=bool(usual), may_lack=is_file)
    size = measure(prepared.pipeline)
    version = find_version() if find_version is not None else NEWEST
    findings = check_submission(prepared.pipeline, prepared.values, settings, version=version)
    findings += [*find_own_functions(prepared.pipeline), *check_size(size)]
    if not is_file:
        refuse_submission(prepared.pipeline, findings)
    for text in (*(f"Warning: {each.kind.value}: {each}" for each in findings), *describe(size)):
        print_message(text)
    is_empty = not prepared.values.get(WORKSPACE) and WORKSPACE not in prepared.arguments
    if is_empty and WORKSPACE in prepared.pipeline.root.parameter_inputs:
        print_message(
            f"The pipeline's {WORKSPACE!r} is empty: stages run the code in their images. To send the code in this "
            "folder, add --workspace ."
        )
    return prepared
