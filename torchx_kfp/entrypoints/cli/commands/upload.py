"""``torchx-kfp upload``: store a pipeline on a KFP host, for people who start runs in its UI."""

from __future__ import annotations

from dataclasses import replace

import click

from torchx_kfp.common.text import listed, printable
from torchx_kfp.entrypoints.cli.component import ComponentWords, component_options
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, this_command
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, refuse_empty
from torchx_kfp.entrypoints.cli.resolver import connect, host_words


@click.command("upload", short_help="Store a pipeline on a KFP host.")
@click.argument("target", metavar="FILE[:NAME]|YAML|COMPONENT")
@component_options
@click.option(
    "--name", metavar="NAME", callback=refuse_empty, help="The pipeline's name in KFP's UI.  [default: its own]"
)
@click.option(
    "--version", metavar="NAME", callback=refuse_empty, help="The name of the version.  [default: the date and time]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the names, ids and link as JSON.")
@host_options
def upload_command(
    target: str, component: ComponentWords, name: str | None, version: str | None, as_json: bool, flags: Flags
) -> None:
    """Store a version of a pipeline on a KFP host, where people find it in the UI, and print the id of the version.

    Takes what `torchx-kfp submit` takes. The first upload of a NAME makes the pipeline, each further one a version of
    it. The UI shows the pipeline's docstring, and asks for its parameters with their descriptions: those in the
    docstring's section "Args".

    \b
    torchx-kfp upload pipeline.py --name training --version 2
    torchx-kfp submit --pipeline training@2 -p lr=0.1

    Nothing is uploaded if the pipeline would fail on KFP, whatever its arguments are: see `torchx-kfp check`.
    """
    from torchx_kfp.entrypoints.cli.pipeline_files import load_target
    from torchx_kfp.entrypoints.cli.run_inputs import refuse_folders
    from torchx_kfp.execution.host.uploads import StoredPipelines, undescribed
    from torchx_kfp.execution.local.preflight import check_pipeline
    from torchx_kfp.execution.model.findings import Kind, about_backends, refuse
    from torchx_kfp.execution.model.workflow import check_size, measure

    pipeline = load_target(target, replace(component, tracker_base=None, has_workspace=False))
    refuse_folders(pipeline)
    findings = about_backends([*check_pipeline(pipeline), *check_size(measure(pipeline.text))])
    refuse(pipeline.name, [each for each in findings if each.kind is Kind.FAILS], "nothing was uploaded")
    for each in findings:
        print_message(f"Warning: {each.kind.value}: {each}")
    stored = StoredPipelines(connect(flags)).upload(pipeline, name or "", version or "")
    if as_json:
        print_json({**vars(stored)})
        return
    print_text(stored.version_id)
    print_message(f"{printable(stored.name)}, version {printable(stored.version)}: {stored.link}".rstrip(": "))
    if without := undescribed(pipeline):
        print_message(f"Without a description in the UI: {listed(without)}. Describe them in the docstring's Args.")
    words = ["--pipeline", f"{stored.name}@{stored.version}", *host_words(flags)]
    print_message(f"To run it: {this_command('submit', *words)}")
