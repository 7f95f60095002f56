"""``torchx-kfp compile``: write a pipeline function as YAML for KFP."""

from __future__ import annotations

import click

from torchx_kfp.common.text import listed
from torchx_kfp.contract.folders import find_folders
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.flags import Target, target_argument
from torchx_kfp.errors import ArgumentError, PipelineFileError


@click.command("compile")
@target_argument("FILE[:NAME]|COMPONENT")
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write the YAML.  [default: stdout]")
def compile_command(target: Target, output: str) -> None:
    """Compile the pipeline in a Python file to YAML.

    A TorchX component becomes a pipeline of one stage; its arguments follow `--`.

    Upload the YAML in the KFP UI or with kfp.Client().create_run_from_pipeline_package, or run it on this machine with
    `torchx-kfp run`. NAME selects one of several pipelines in the file.

    Like `torchx-kfp check`, the command warns about everything that fails or differs on KFP's backend. For a large
    pipeline, it says how close a run comes to Argo's limits. For an exit code, use `torchx-kfp check --strict`.
    """
    from torchx_kfp.entrypoints.cli.pipeline_files import find_own_functions, load_target
    from torchx_kfp.execution.local.preflight import check_pipeline
    from torchx_kfp.execution.model.findings import about_backends
    from torchx_kfp.execution.model.workflow import check_size, describe, measure
    from torchx_kfp.execution.pipeline.values import defaults_of

    pipeline, found = load_target(target, compiled=False)
    if folders := find_folders(pipeline.text):  # whoever runs the file lacks the folder
        raise ArgumentError(
            f"The pipeline {pipeline.name!r} has the workspace {listed(next(iter(folders.values())))}, a folder of a "
            "machine, which only `torchx-kfp submit` stores. Use the parameter workspace (--workspace) in its place."
        )
    size, problems = measure(pipeline), check_pipeline(pipeline, defaults_of(pipeline))
    findings = about_backends([*found, *problems, *find_own_functions(pipeline), *check_size(size)])
    for remark in (*(f"Warning: {each.kind.value}: {each}" for each in findings), *describe(size)):
        print_message(remark)
    if output == "-":
        print_text(pipeline.text)
        return
    try:
        with open(output, "wb") as file:
            file.write(pipeline.text.encode())
    except OSError as error:
        raise PipelineFileError(
            f"{output!r} cannot be written: {error.strerror}. Name another file with -o."
        ) from error
    print_message(f"Compiled {target.word} to {output}.")
