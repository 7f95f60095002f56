"""``torchx-kfp compile``: write a run as YAML that KFP's own tools start."""

from __future__ import annotations

from pathlib import Path

import click

from torchx_kfp.entrypoints.cli.commands.submit import prepare_submission
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.flags import Target, file_options, target_argument
from torchx_kfp.entrypoints.cli.run_inputs import RunInputs, input_options
from torchx_kfp.errors import PipelineError
from torchx_kfp.execution.host.settings import Submission, read_settings
from torchx_kfp.execution.pipeline.load import SUFFIXES


@click.command("compile")
@target_argument
@click.option("-o", "--output", metavar="FILE", default="-", help="The YAML file.  [default: stdout]")
@input_options("URL", starts=False)
@file_options
def compile_command(target: Target, output: str, inputs: RunInputs, submission: Submission) -> None:
    """Write a pipeline as YAML, as `torchx-kfp submit` would send it.

    `kfp run create`, `kfp recurring-run create` and KFP's UI start it without arguments: the given ones become defaults
    of its parameters. Stages get the storage settings, and the code of --workspace is stored.

    \b
    torchx-kfp compile pipeline.py -p lr=0.1 --tracker-base s3://bucket/results \\
        --workspace . -o pipeline.yaml
    kfp run create --experiment-name nightly --package-file pipeline.yaml

    Like `torchx-kfp check`, the command warns about everything that fails or differs on KFP. For a large pipeline, it
    reports how close a run comes to Argo's limits. For an exit code, use `torchx-kfp check --strict`.
    """
    from torchx_kfp.execution.host.submission import as_file
    from torchx_kfp.execution.pipeline.values import missing_arguments

    if output != "-" and Path(output).suffix not in SUFFIXES:
        raise PipelineError(f"{output!r} is not the name of a YAML file. Name one with -o: {output}.yaml.")
    settings = read_settings()
    for sentence in settings.warnings:
        print_message(sentence)
    prepared = prepare_submission(settings, target, inputs)
    prepared.upload(print_message)
    text = as_file(prepared, settings, submission)
    if missing := missing_arguments(prepared.pipeline, prepared.arguments):
        print_message(f"Its runs need values for {', '.join(missing)}. To set defaults: -p NAME=VALUE.")
    if output == "-":
        print_text(text)
        return
    try:
        with open(output, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise PipelineError(f"{output!r} cannot be written: {error.strerror}. Name another file with -o.") from error
    print_message(f"Compiled {target.word} to {output}.")
