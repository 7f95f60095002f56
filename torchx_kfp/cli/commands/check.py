"""``torchx-kfp check``: find problems that a pipeline has on this machine or on KFP's backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.printing import print_message, print_text
from torchx_kfp.cli.flags import parameter_option
from torchx_kfp.text import counted

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline


@click.command("check")
@click.argument("target", metavar="FILE[:NAME]|YAML")
@parameter_option
@click.option("--strict", is_flag=True, help="Exit with 2 if there is any finding.")
@click.option(
    "--show-workload",
    "shows_workload",
    is_flag=True,
    help="Print the objects that distributed stages create on the cluster, as YAML, and no findings.",
)
@click.pass_context
def check_command(ctx: click.Context, target: str, words: tuple[str, ...], strict: bool, shows_workload: bool) -> None:
    """Check a pipeline without running it.

    Takes a compiled pipeline (*.yaml) or a Python file that defines one. Prints everything that fails or differs on
    KFP's backend (as seen on KFP 2.17) or cannot run on this machine, each with a way out. Exits with 2 if
    `torchx-kfp run` would reject the pipeline.

    With --show-workload, prints what the stages with an engine create instead: a Job, JobSet or Volcano Job. What only
    a run knows is in angle brackets; -p gives values of parameters.
    """
    from torchx_kfp.cli.pipeline_files import load_target, split_words
    from torchx_kfp.local import parse_arguments
    from torchx_kfp.local.check import check_arguments, check_pipeline, check_replicas, defaults_of
    from torchx_kfp.pipeline.findings import REFUSED, Kind
    from torchx_kfp.semantics.workflow import check_size, measure

    pipeline = load_target(target)
    arguments = {**defaults_of(pipeline), **parse_arguments(pipeline, split_words(words))}
    if shows_workload:
        _show_workload(pipeline, arguments)
        return
    findings = [*check_pipeline(pipeline), *check_arguments(arguments), *check_replicas(pipeline, arguments)]
    findings += check_size(measure(pipeline.text))
    in_order = list(Kind)
    for finding in sorted(findings, key=lambda finding: in_order.index(finding.kind)):
        print_text(f"{finding.kind.value}: {finding}")
    print_message(f"{pipeline.name}: {counted(len(findings), 'finding')}.")
    if any(finding.kind in REFUSED for finding in findings) or (strict and findings):
        ctx.exit(2)


def _show_workload(pipeline: Pipeline, arguments: Mapping[str, Any]) -> None:
    from torchx_kfp.semantics.workloads import workloads

    shown = [str(workload) for workload in workloads(pipeline, arguments)]
    if shown:
        print_text("---\n".join(shown).removesuffix("\n"))
    else:
        print_message(f"{pipeline.name} has no distributed stage: give a stage an engine, such as engine='job'.")
