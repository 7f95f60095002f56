"""``torchx-kfp run``: run a pipeline on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.component import ComponentWords, component_options
from torchx_kfp.entrypoints.cli.flags import (
    Duration,
    Flags,
    container_options,
    dry_run_option,
    host_options,
    parameter_option,
    tag_option,
    tracker_base_option,
    view_options,
    workspace_option,
)
from torchx_kfp.entrypoints.cli.resolver import is_host_set_up, names_host
from torchx_kfp.entrypoints.cli.resuming import from_option, print_plan, read_resumed, resumed_arguments
from torchx_kfp.entrypoints.cli.tags import read_tags
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs import OUTPUT_DIR

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline

_DOCKER = "--docker"
# Matches the name of a stage, as KFP makes it. The name of a file has a dot, and a colon if a pipeline is selected.
_STAGE = re.compile(r"[^-.:][^.:]*")


class ContainerCommand(click.Command):
    """A command with the option ``--docker [STAGE]``, after which click alone would always expect a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_values(args))


def _with_values(words: Sequence[str]) -> list[str]:
    """Return the words, with an empty value for each ``--docker`` that is not followed by a stage's name."""
    found: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            return [*found, *words[len(found) :]]
        has_value = word != _DOCKER or _STAGE.fullmatch(following)
        found.append(word if has_value else f"{_DOCKER}=")
    return found


@click.command("run", cls=ContainerCommand, short_help="Run a pipeline on this machine.")
@click.argument("target", metavar="FILE[:NAME]|YAML|COMPONENT", required=False)
@component_options
@parameter_option
@tracker_base_option("DIR|URL")
@workspace_option
@tag_option
@dry_run_option
@click.option(
    "--output-dir",
    metavar="DIR",
    help=f"The directory in which the run gets a folder for its logs and outputs.  [default: {OUTPUT_DIR}]",
)
@click.option(
    "--parallelism",
    metavar="N",
    type=click.IntRange(1),
    help="The number of stages that may run at once.  [default: twice the number of CPUs, and at least 4]",
)
@click.option(
    "--max-items",
    metavar="N",
    type=click.IntRange(1),
    help="The number of items that all loops of the run may have.  [default: 10000]",
)
@click.option(
    "--condition-time",
    metavar="TIME",
    type=Duration(),
    help="How long evaluating a condition may take.  [default: 10s]",
)
@click.option("--timeout", metavar="TIME", type=Duration(), help="End the run after this time, such as 90s or 2h.")
@click.option("--fail-fast", is_flag=True, help="End the run at the first failure. Exit tasks still run.")
@click.option(
    "--resume",
    "resumed",
    metavar="RUN",
    help='Continue a run that failed, was canceled or was killed: a run id, the beginning or end of one, or "latest". '
    "With a pipeline, or for a run on KFP, a new run continues it; otherwise the run itself goes on.",
)
@from_option
@click.option("--no-cache", is_flag=True, help="Run every stage, even if an earlier run has its outputs.")
@click.option(
    "--directory",
    metavar="DIR",
    help="The directory in which stages run and find their scripts.  [default: the current one]",
)
@click.option(
    "--kfp-workspace",
    metavar="DIR",
    help="The directory to use as KFP's workspace, which stages share.  [default: in the run's folder]",
)
@click.option(
    "--docker",
    "stages",
    metavar="[STAGE]",
    multiple=True,
    help="Run all stages in containers of their images, with Docker or Podman; with STAGE, only this stage. May be "
    "given several times.",
)
@container_options
@view_options
@host_options
def run_command(
    target: str,
    component: ComponentWords,
    words: tuple[str, ...],
    tracker_base: str | None,
    workspace: str | None,
    tag_words: tuple[str, ...],
    dry_run: bool,
    output_dir: str | None,
    resumed: str | None,
    from_stages: tuple[str, ...],
    stages: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    as_json: bool,
    flags: Flags,
    **options: Any,
) -> None:
    """Run a pipeline on this machine: its stages as processes of the current environment, or in containers.

    Takes a compiled pipeline (*.yaml), a Python file that defines one (NAME selects one of several), or a TorchX
    component, whose arguments follow `--`: torchx-kfp run utils.echo -- --msg hello. Write the values of LIST and
    STRUCT parameters as JSON: -p 'points=[{"lr": 0.1}]'.

    With --resume RUN, stages that succeeded in RUN are kept, also if the pipeline or its code has changed since: the
    command shows which, and why the others run. RUN is on this machine or on KFP. The new run has the arguments of
    RUN, unless you give others.

    In a terminal, a live view shows the stages while they run. Otherwise the lines that they print are shown.
    """
    from torchx_kfp.entrypoints.cli.display.summary import summarize
    from torchx_kfp.entrypoints.cli.display.views import view_of
    from torchx_kfp.entrypoints.cli.pipeline_files import load_target, split_words
    from torchx_kfp.entrypoints.cli.travel import send, show_dry_run
    from torchx_kfp.execution.local.given_keys import parse_given
    from torchx_kfp.execution.pipeline.values import complete_arguments
    from torchx_kfp.execution.runs.earlier_run import plan_from
    from torchx_kfp.execution.runs.history import find_run, read_run
    from torchx_kfp.execution.runs.packing import pack
    from torchx_kfp.execution.runs.state import RunState, outline
    from torchx_kfp.local import parse_arguments, resume, run

    for name in ("secret", "config_map"):
        options[f"{name}s"] = parse_given(options[f"{name}s"], f"--{name.replace('_', '-')}")
    # None leaves an option as it is: a new run has the default, a resumed one keeps its value.
    options["cache"] = False if options.pop("no_cache") else None
    options["fail_fast"] = options["fail_fast"] or None
    new = {name: options.pop(name) for name in ("directory", "kfp_workspace", "mounts")}
    if from_stages and resumed is None:
        raise click.UsageError("--from needs --resume RUN, the run whose other stages are kept.")
    earlier = None
    if resumed is not None and (target or from_stages or not _is_here(resumed, output_dir or OUTPUT_DIR, flags)):
        earlier = read_resumed(resumed, output_dir or OUTPUT_DIR, flags, tracker_base)
    if resumed is not None and earlier is None:
        started_with: dict[str, object] = {
            "-p": words,
            "--tracker-base": tracker_base,
            "--workspace": workspace,
            "--tag": tag_words,
        }
        started_with |= {"--directory": new["directory"], "--kfp-workspace": new["kfp_workspace"]}
        started_with |= {"--docker": stages, "--mount": new["mounts"], "--dry-run": dry_run}
        for name in filter(started_with.get, started_with):
            raise click.UsageError(
                f"--resume does not accept {name} without a pipeline: the run goes on with the one that it was started "
                "with. Name the pipeline as well: a new run then continues this one, and keeps what has succeeded."
            )
        folder = find_run(output_dir or OUTPUT_DIR, resumed)
        pipeline = read_run(folder).load()
        start = partial(resume, folder, **options)
    elif target is None and earlier is None:
        raise click.UsageError("Missing argument 'FILE[:NAME]|YAML|COMPONENT', or --resume RUN.")
    else:
        asked = replace(component, tracker_base=tracker_base, has_workspace=workspace is not None)
        pipeline = earlier.pipeline if target is None and earlier else load_target(str(target), asked)
        arguments = parse_arguments(pipeline, split_words(words))
        if earlier is not None:
            arguments = resumed_arguments(earlier, pipeline, arguments, tracker_base=tracker_base, workspace=workspace)
        base = _tracker_base(pipeline, arguments, tracker_base)
        if tracker_base is not None or not stages:
            # Containers get only folders that the user, not the pipeline, has named.
            arguments.update(base)
        packed = pack(pipeline, arguments | base, workspace, without=[output_dir or OUTPUT_DIR])
        plan = None
        if earlier is not None:
            place = os.fspath(new["directory"] or os.curdir)
            plan = plan_from(earlier, packed.pipeline, packed.arguments, from_stages=from_stages, directory=place)
            print_plan(plan, quiet=quiet or dry_run)
            packed = replace(packed, pipeline=plan.pipeline)
        if dry_run:
            complete_arguments(pipeline, arguments | base)
            show_dry_run(packed, plan, as_json=as_json)
            return
        send(packed)
        pipeline = packed.pipeline
        # An option without a stage means all stages.
        docker = True if "" in stages else stages
        start = partial(
            run,
            pipeline,
            packed.arguments,
            workspace=packed,
            tags=read_tags(tag_words),
            output_dir=output_dir,
            docker=docker,
            **new,
            **options,
        )
    view = view_of(RunState(outline(pipeline)), quiet=quiet, verbose=verbose, as_json=as_json)
    summarize(lambda: start(watch=view), view, quiet=quiet, as_json=as_json)


def _is_here(run: str, output_dir: str, flags: Flags) -> bool:
    """Tell whether a run is on this machine, or nowhere: then the error is that of a run on this machine."""
    from torchx_kfp.execution.runs.history import find_run

    if names_host(flags):
        return False
    try:
        find_run(output_dir, run)
    except ArgumentError:
        return not is_host_set_up()
    return True


def _tracker_base(pipeline: Pipeline, arguments: Mapping[str, Any], option: str | None) -> dict[str, str]:
    """Return the tracker base as an argument, checked and absolute, if the pipeline has that parameter."""
    from torchx_kfp.entrypoints.cli.pipeline_files import tracker_base_of
    from torchx_kfp.tracking.tracker import check_tracker_base

    base = tracker_base_of(pipeline, arguments, option, "results, or the URL of a bucket")
    if not isinstance(base, str):
        return {}
    if base and "://" not in base:
        base = os.path.expanduser(base)  # a shell does not do this after an '='
    if base.startswith("memory:"):
        raise ArgumentError(
            f"The tracker base {base!r} is in the memory of one process, and each stage is a process. Use another base."
        )
    # The runner checks whether results can be written there.
    check_tracker_base(base)
    # The base is absolute because a stage may change its directory.
    return {TRACKER_BASE: base if "://" in base else os.path.abspath(base)}
