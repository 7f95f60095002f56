"""``torchx-kfp compile``: a pipeline function as YAML that KFP takes."""

from __future__ import annotations

from pathlib import Path

import click

from torchx_kfp.cli.output import print_message, print_text
from torchx_kfp.errors import PipelineFileError


@click.command("compile")
@click.argument("target", metavar="FILE[:NAME]")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write the YAML.  [default: stdout]")
def compile_command(target: str, output: str) -> None:
    """Compile the pipeline in a Python file to YAML.

    Upload the YAML in the KFP UI, with kfp.Client().create_run_from_pipeline_package, or run it on this machine with
    `torchx-kfp run`. NAME chooses among several pipelines of the file. A line says how near a large
    pipeline comes to the 1 MiB that Argo takes for a run.
    """
    text = compile_pipeline(target)
    if output == "-":
        print_text(text)
        _say_size(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineFileError(
            f"{output!r} cannot be written: {error.strerror}. Name another file with -o."
        ) from error
    print_message(f"Compiled {target} to {output}.")
    _say_size(text)


def _say_size(text: str) -> None:
    from torchx_kfp.workflow import describe, measure

    for remark in describe(measure(text)):
        print_message(remark)


def compile_pipeline(target: str) -> str:
    """The YAML of the pipeline that ``FILE[:NAME]`` names."""
    from torchx_kfp.cli.pipelines import load_pipeline_function
    from torchx_kfp.local.load import compile_text

    return compile_text(load_pipeline_function(target), target)
