"""``torchx-kfp submit``: run a pipeline on a KFP host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.component import ComponentWords, component_options
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, this_command
from torchx_kfp.entrypoints.cli.flags import (
    Flags,
    dry_run_option,
    host_options,
    output_dir_option,
    parameter_option,
    refuse_empty,
    submission_options,
    tag_option,
    tracker_base_option,
    view_options,
    workspace_option,
)
from torchx_kfp.entrypoints.cli.resolver import connect, host_words
from torchx_kfp.entrypoints.cli.resuming import from_option, print_plan, read_resumed, resumed_arguments
from torchx_kfp.entrypoints.cli.scheduling import say_created, schedule_options
from torchx_kfp.entrypoints.cli.tags import read_tags
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.settings import Submission, read_settings

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import Host
    from torchx_kfp.execution.host.timing import Timing
    from torchx_kfp.local import Pipeline


@click.command("submit", short_help="Run a pipeline on a KFP host.")
@click.argument("target", metavar="FILE[:NAME]|YAML|COMPONENT", required=False)
@component_options
@parameter_option
@tracker_base_option("URL")
@workspace_option
@tag_option
@dry_run_option
@click.option(
    "--resume",
    "resumed",
    metavar="RUN",
    help="Keep what succeeded in an earlier run, on KFP or on this machine: a run id, the beginning of one, or "
    '"latest". Without a pipeline, that of the run.',
)
@from_option
@output_dir_option
@submission_options
@click.option(
    "--pipeline",
    "stored_name",
    metavar="NAME[@VERSION]",
    callback=refuse_empty,
    help="Run a pipeline that the host stores, in place of a FILE: its newest version, or VERSION.",
)
@schedule_options
@click.option("--watch", is_flag=True, help="Show the run until its end; the exit code is that of the run.")
@view_options
@host_options
def submit_command(
    target: str | None,
    component: ComponentWords,
    words: tuple[str, ...],
    tracker_base: str | None,
    workspace: str | None,
    tag_words: tuple[str, ...],
    dry_run: bool,
    resumed: str | None,
    from_stages: tuple[str, ...],
    output_dir: str,
    stored_name: str | None,
    watch: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    flags: Flags,
    submission: Submission,
    timing: Timing | None,
) -> None:
    """Run a pipeline on a KFP host, and print the id of the run.

    Takes a compiled pipeline (*.yaml), a Python file that defines one (NAME selects one of several), or a TorchX
    component, whose arguments follow `--`. Nothing is submitted if the pipeline would fail on KFP (see `torchx-kfp
    check`), or if its pods cannot reach the tracker base.

    \b
    torchx-kfp submit pipeline.py --host https://kfp.example.com \\
        --tracker-base s3://bucket/results -p lr=0.1 --watch

    With --resume RUN, stages that succeeded in RUN are kept, also if the pipeline or its code has changed since: the
    command shows which, and why the others run. The new run has the arguments of RUN, unless you give others.

    With --cron or --every, the command makes a schedule on the host instead, and prints its id: KFP starts the runs,
    each with its own results under the tracker base. See `torchx-kfp schedules`.

    The host can also be set up once: in TORCHX_KFP_HOST or in the file ~/.config/torchx-kfp/config.ini.
    """
    from torchx_kfp.entrypoints.cli.display.summary import attach
    from torchx_kfp.entrypoints.cli.pipeline_files import split_words, tracker_base_of
    from torchx_kfp.entrypoints.cli.travel import send, show_dry_run
    from torchx_kfp.execution.host.recurring import Schedules
    from torchx_kfp.execution.host.run import HostRun
    from torchx_kfp.execution.pipeline.values import complete_arguments, parse_arguments
    from torchx_kfp.execution.pipeline.walk import known_bases
    from torchx_kfp.execution.runs.earlier_run import plan_from
    from torchx_kfp.execution.runs.packing import pack, record_start, verify_tags

    if quiet and verbose:
        raise ArgumentError("--quiet and --verbose contradict each other. Give only one of them.")
    if from_stages and resumed is None:
        raise click.UsageError("--from needs --resume RUN, the run whose other stages are kept.")
    of_runs = {"--tag": tag_words, "--watch": watch, "--resume": resumed}
    if timing is not None and any(of_runs.values()):
        given = next(name for name, value in of_runs.items() if value)
        raise ArgumentError(f"{given} is for a run, not for a schedule. Its runs have ids once they start.")
    usual = read_settings(flags).tracker_base or None
    earlier = read_resumed(resumed, output_dir, flags, tracker_base) if resumed is not None else None
    host = connect(flags)
    component = replace(component, tracker_base=tracker_base or usual, has_workspace=workspace is not None)
    reference = None
    if earlier is not None and target is None and stored_name is None:
        pipeline = earlier.pipeline
    else:
        pipeline, reference = _load(host, target, stored_name, component)
    arguments = parse_arguments(pipeline, split_words(words))
    if earlier is not None:
        arguments = resumed_arguments(earlier, pipeline, arguments, tracker_base=tracker_base, workspace=workspace)
    if tracker_base is None and TRACKER_BASE in pipeline.root.inputs and TRACKER_BASE not in arguments:
        tracker_base = usual
    tracker_base_of(pipeline, arguments, tracker_base, "s3://bucket/results, or another URL that the pods can write to")
    if tracker_base is not None:
        arguments[TRACKER_BASE] = tracker_base
    values = complete_arguments(pipeline, arguments)
    tags = read_tags(tag_words)
    verify_tags(tags, values)
    packed = pack(pipeline, arguments, workspace, for_pods=True)
    plan = None
    if earlier is not None:
        plan = plan_from(earlier, packed.pipeline, packed.arguments, from_stages=from_stages, is_here=False)
        print_plan(plan, quiet=quiet or dry_run)
        packed = replace(packed, pipeline=plan.pipeline)
        # What is kept is not in the pipeline that the host stores.
        pipeline, reference = plan.pipeline, None
    _check(pipeline, values)
    if dry_run:
        show_dry_run(packed, plan, as_json=as_json)
        return
    send(packed)
    if timing is not None:
        schedule = Schedules(host).create(packed.pipeline, packed.arguments, timing, submission, reference=reference)
        record_start(schedule.schedule_id, packed, values, {}, print_message, is_schedule=True)
        say_created(schedule, submission, host_words(flags), quiet=quiet, as_json=as_json)
        return
    run_id = host.submit(packed.pipeline, packed.arguments, submission, reference=reference)
    record_start(run_id, packed, values, tags, print_message)
    link = host.connection.link(run_id)
    if as_json and not watch:
        print_json({"run_id": run_id, "link": link})
    elif not as_json:
        print_text(run_id)
    if watch:
        run = HostRun(host.connection, run_id, named=known_bases(pipeline, values))
        attach(run, host_words(flags), quiet=quiet, verbose=verbose, as_json=as_json)
    elif not (as_json or quiet):
        print_message(f"{link}\nTo watch it: {this_command('watch', run_id, *host_words(flags))}".strip())


def _check(pipeline: Pipeline, values: Mapping[str, Any]) -> None:
    """Print what may go wrong on KFP.

    Raises:
        UnsupportedPipelineError: something will surely go wrong.
    """
    from torchx_kfp.execution.host.submission import check_submission, refuse_submission
    from torchx_kfp.execution.model.workflow import check_size, describe, measure

    size = measure(pipeline.text)
    findings = [*check_submission(pipeline, values), *check_size(size)]
    refuse_submission(pipeline, findings)
    for text in (*(f"Warning: {each.kind.value}: {each}" for each in findings), *describe(size)):
        print_message(text)


def _load(
    host: Host, target: str | None, stored_name: str | None, component: ComponentWords
) -> tuple[Pipeline, dict[str, str] | None]:
    """Return the pipeline of a file, or one that the host stores, with its reference."""
    from torchx_kfp.entrypoints.cli.pipeline_files import load_target
    from torchx_kfp.execution.host.uploads import StoredPipelines

    if stored_name is None:
        if target is None:
            raise click.UsageError("Missing argument 'FILE[:NAME]|YAML|COMPONENT', --pipeline NAME, or --resume RUN.")
        return load_target(target, component), None
    if target is not None:
        raise click.UsageError(f"Give a file or --pipeline, not both: got {target!r} and {stored_name!r}.")
    component.refuse(stored_name)
    stored, pipeline = StoredPipelines(host).find(stored_name)
    return pipeline, stored.reference
