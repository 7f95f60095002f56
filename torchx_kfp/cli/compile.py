"""``torchx-kfp compile``: a pipeline function as YAML that KFP takes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import yaml

from torchx_kfp.cli.output import print_text
from torchx_kfp.errors import PipelineFileError


@click.command("compile")
@click.argument("target", metavar="FILE[:NAME]")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write the YAML.  [default: stdout]")
def compile_command(target: str, output: str) -> None:
    """Compile the pipeline in a Python file to YAML.

    Upload the YAML in the KFP UI, with kfp.Client().create_run_from_pipeline_package, or run it on this machine with
    `torchx-kfp run`. NAME chooses among several pipelines of the file.
    """
    text = compile_pipeline(target)
    if output == "-":
        print_text(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineFileError(
            f"{output!r} cannot be written: {error.strerror}. Name another file with -o."
        ) from error
    click.echo(f"Compiled {target} to {output}.", err=True)


def compile_pipeline(target: str) -> str:
    """The YAML of the pipeline that ``FILE[:NAME]`` names."""
    from torchx_kfp.cli.pipelines import load_pipeline_function

    function = load_pipeline_function(target)
    from kfp import compiler  # takes more than a second: what is refused is refused before

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(function, str(path))
        text = path.read_text(encoding="utf-8")
    try:
        list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise PipelineFileError(
            f"KFP compiles {target} to a file that is not valid YAML. It writes parameters' defaults and descriptions "
            f"into comments, where a line break does harm: leave it out of them. ({error})"
        ) from None
    return text
