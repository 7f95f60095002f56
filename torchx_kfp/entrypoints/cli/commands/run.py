"""``torchx-kfp run``: run a pipeline locally."""

from __future__ import annotations

import os
from typing import Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import print_message, this_call
from torchx_kfp.entrypoints.cli.flags import (
    Target,
    ViewOptions,
    container_options,
    refuse_empty,
    seconds,
    target_argument,
    view_options,
)
from torchx_kfp.entrypoints.cli.lookup import usual_base
from torchx_kfp.entrypoints.cli.run_inputs import RunInputs, input_options, show_dry_run
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import outline
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.journal import CommandLine
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.tracking.tracker import absolute_base, check_tracker_base


@click.command("run")
@target_argument
@input_options("DIR|URL")
@click.option(
    "--name",
    metavar="NAME",
    callback=refuse_empty,
    help="The prefix of the run's id. [default: the pipeline's name]",
)
@click.option(
    "--output-dir",
    metavar="DIR",
    help=f"The directory for the run's folder, with logs and outputs.  [default: {OUTPUT_DIR}]",
)
@click.option(
    "--parallelism",
    metavar="N",
    type=click.IntRange(1),
    help="The maximum number of concurrent stages.  [default: twice the number of CPUs, at least 4]",
)
@click.option("--timeout", metavar="TIME", type=seconds, help="End the run after this time, such as 90s or 2h.")
@click.option("--fail-fast", is_flag=True, help="End the run at the first failure. Exit tasks still run.")
@click.option("--no-cache", is_flag=True, help="Run every stage, even if an earlier run has its outputs.")
@click.option(
    "--directory",
    metavar="DIR",
    help="The directory in which stages run and find scripts.  [default: the current one]",
)
@click.option("--docker", is_flag=True, help="Run stages in containers of their images, with Docker or Podman.")
@click.option(
    "--env",
    metavar="NAME",
    multiple=True,
    help="Let containers take this variable of yours as a key of a secret or config map. May be given several times.",
)
@container_options
@view_options
def run_command(
    target: Target,
    inputs: RunInputs,
    name: str | None,
    output_dir: str | None,
    view: ViewOptions,
    given: dict[str, Any],
    **options: Any,
) -> None:
    """Run a pipeline locally: its stages as processes of the current environment, or in containers.

    Takes a compiled pipeline (*.yaml), a Python file that defines one (NAME selects one of several), or a TorchX
    component, whose arguments follow `--`: torchx-kfp run utils.echo -- --msg hello. Write the values of LIST and
    STRUCT parameters as JSON: -p 'points=[{"lr": 0.1}]'.

    After a failure, run it again: finished stages come from the cache.

    In a terminal, a live view shows the stages while they run. Otherwise, their output is printed.
    """
    from torchx_kfp.entrypoints.cli.display.summary import summarize
    from torchx_kfp.entrypoints.cli.display.views import view_of
    from torchx_kfp.execution.local.runner import dry_run, start

    folder = OUTPUT_DIR if output_dir is None else output_dir
    options |= given
    # None is the default.
    options["cache"] = False if options.pop("no_cache") else None
    options["fail_fast"] = options["fail_fast"] or None

    def usual(pipeline: Pipeline) -> str | None:
        parameter = pipeline.root.parameter_inputs[TRACKER_BASE]
        if parameter.default is None:
            return usual_base()
        # Containers only get folders named by the user, not by the pipeline.
        return None if options["docker"] else parameter.default or None

    prepared = inputs.prepare(
        target,
        usual=usual,
        examples="results, or the URL of a bucket",
        absolute=_absolute,  # a stage may change its directory
        directory=os.fspath(options["directory"] or os.curdir),
        without=[folder],
    )
    if inputs.dry_run:
        stages = dry_run(prepared, name=name or "", output_dir=folder, **options)
        show_dry_run(prepared, stages, as_json=view.as_json)
        return
    pipeline = prepared.pipeline
    shown, command = view_of(RunState(outline(pipeline)), view), CommandLine(this_call(), os.getcwd())
    summarize(
        lambda: start(
            prepared,
            name=name or "",
            output_dir=folder,
            say=print_message,
            watch=shown,
            command=command,
            **options,
        ),
        shown,
        command=command,
    )


def _absolute(base: str) -> str:
    """Return a tracker base, checked and absolute."""
    if base.startswith("memory:"):
        raise ArgumentError(
            f"The tracker base {base!r} is in the memory of one process, but each stage is a process. Use another base."
        )
    # The runner checks that it is writable.
    check_tracker_base(base)
    return absolute_base(base)
