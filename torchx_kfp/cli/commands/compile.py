"""``torchx-kfp compile``: write a pipeline function as YAML for KFP."""

from __future__ import annotations

import click

from torchx_kfp.cli.display.printing import print_message, print_text
from torchx_kfp.errors import PipelineFileError
from torchx_kfp.files import write_output


@click.command("compile")
@click.argument("target", metavar="FILE[:NAME]")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write the YAML.  [default: stdout]")
@click.option(
    "--strict", is_flag=True, help="Write nothing and exit with 2 if the pipeline fails or differs on KFP's backend."
)
def compile_command(target: str, output: str, strict: bool) -> None:
    """Compile the pipeline in a Python file to YAML.

    Upload the YAML in the KFP UI or with kfp.Client().create_run_from_pipeline_package, or run it on this machine with
    `torchx-kfp run`. NAME selects one of several pipelines in the file.

    Like `torchx-kfp check`, the command warns about everything that fails or differs on KFP's backend. For a large
    pipeline, it says how close a run comes to Argo's limits.
    """
    from torchx_kfp.cli.pipeline_files import load_pipeline_function
    from torchx_kfp.local.check import check_arguments, check_pipeline, defaults_of
    from torchx_kfp.pipeline.findings import about_backends, refuse
    from torchx_kfp.pipeline.load import compile_function
    from torchx_kfp.semantics.workflow import check_size, describe, measure

    pipeline = compile_function(load_pipeline_function(target), target)
    size = measure(pipeline.text)
    problems = [*check_pipeline(pipeline), *check_arguments(defaults_of(pipeline)), *check_size(size)]
    findings = about_backends(problems)
    if strict:
        refuse(pipeline.name, findings, "nothing was written")
    for remark in (*(f"Warning: {each.kind.value}: {each}" for each in findings), *describe(size)):
        print_message(remark)
    if output == "-":
        print_text(pipeline.text)
        return
    try:
        write_output(output, pipeline.text.encode())
    except OSError as error:
        raise PipelineFileError(
            f"{output!r} cannot be written: {error.strerror}. Name another file with -o."
        ) from error
    print_message(f"Compiled {target} to {output}.")
