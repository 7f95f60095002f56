"""``torchx-kfp submit``: run a pipeline on a KFP host."""

from __future__ import annotations

import click

from torchx_kfp.cli.display.printing import print_json, print_message, print_text, this_command
from torchx_kfp.cli.flags import parameter_option, view_options
from torchx_kfp.cli.following import show
from torchx_kfp.cli.hosts import Flags, connect, host_options, host_words
from torchx_kfp.cli.tracker_base import tracker_base_of, tracker_base_option
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.errors import ArgumentError


@click.command("submit", short_help="Run a pipeline on a KFP host.")
@click.argument("target", metavar="FILE[:NAME]|YAML")
@parameter_option
@tracker_base_option("URL")
@click.option("--name", metavar="NAME", default="", help="The run's name in KFP's UI.  [default: pipeline and time]")
@click.option("--experiment", metavar="NAME", default="", help="The run's experiment; created if there is none.")
@click.option("--service-account", metavar="NAME", default="", help="The Kubernetes service account of the stages.")
@click.option("--pipeline-root", metavar="URL", default="", help="Where KFP stores the artifacts of the run.")
@click.option("--no-cache", is_flag=True, help="Run every stage, even if an earlier run has its outputs.")
@click.option("--watch", is_flag=True, help="Show the run until its end; the exit code is that of the run.")
@view_options
@host_options
def submit_command(
    target: str,
    words: tuple[str, ...],
    tracker_base: str | None,
    no_cache: bool,
    watch: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    flags: Flags,
    **submission: str,
) -> None:
    """Run a pipeline on a KFP host, and print the id of the run.

    Takes a compiled pipeline (*.yaml) or a Python file that defines one; NAME selects one of several. Nothing is
    submitted if the pipeline would fail on KFP (see `torchx-kfp check`), or if its pods cannot reach the tracker base.

    \b
    torchx-kfp submit pipeline.py --host https://kfp.example.com \\
        --tracker-base s3://bucket/results -p lr=0.1 --watch

    The host can also be set up once: in TORCHX_KFP_HOST or in the file ~/.config/torchx-kfp/config.ini.
    """
    from torchx_kfp.backend.checks import bases_of, check_submission, refuse_submission
    from torchx_kfp.backend.run import HostRun
    from torchx_kfp.backend.submission import Submission
    from torchx_kfp.cli.pipeline_files import load_target, split_words
    from torchx_kfp.pipeline.arguments import complete_arguments, parse_arguments
    from torchx_kfp.semantics.workflow import check_size, describe, measure

    if quiet and verbose:
        raise ArgumentError("--quiet and --verbose contradict each other. Give only one of them.")
    pipeline = load_target(target)
    arguments = parse_arguments(pipeline, split_words(words))
    host = connect(flags)
    if tracker_base is None and TRACKER_BASE in pipeline.root.inputs and TRACKER_BASE not in arguments:
        tracker_base = host.connection.settings.tracker_base or None
    tracker_base_of(pipeline, arguments, tracker_base, "s3://bucket/results, or another URL that the pods can write to")
    if tracker_base is not None:
        arguments[TRACKER_BASE] = tracker_base
    values = complete_arguments(pipeline, arguments)
    size = measure(pipeline.text)
    findings = [*check_submission(pipeline, values), *check_size(size)]
    refuse_submission(pipeline, findings)
    for text in (*(f"Warning: {each.kind.value}: {each}" for each in findings), *describe(size)):
        print_message(text)
    run_id = host.submit(pipeline, arguments, Submission(**submission, cache=not no_cache))
    link = host.connection.link(run_id)
    if not watch:
        if as_json:
            print_json({"run_id": run_id, "link": link})
        else:
            print_text(run_id)
            if not quiet:
                print_message(f"{link}\nTo watch it: {this_command('watch', run_id, *host_words(flags))}".strip())
        return
    if not as_json:
        print_text(run_id)
    run = HostRun(host.connection, run_id, named=bases_of(pipeline, values))
    show(run, host_words(flags), quiet=quiet, verbose=verbose, as_json=as_json)
