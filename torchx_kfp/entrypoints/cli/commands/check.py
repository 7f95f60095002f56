"""``torchx-kfp check``: find problems of a pipeline, locally or on KFP."""

from __future__ import annotations

import click

from torchx_kfp.common.text import counted
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.flags import Target, parameter_option, target_argument


@click.command("check")
@target_argument
@parameter_option
@click.option("--kfp", metavar="VERSION", help="The version of KFP's backend: 2.14 to 2.17.  [default: 2.17]")
@click.option("--strict", is_flag=True, help="Exit with 2 if there is any finding.")
@click.pass_context
def check_command(ctx: click.Context, target: Target, words: tuple[str, ...], kfp: str | None, strict: bool) -> None:
    """Check a pipeline without running it.

    Takes a compiled pipeline (*.yaml), a Python file that defines one, or a TorchX component, whose arguments follow
    `--`. Prints everything that fails or differs on KFP or cannot run locally, each with a remedy. Exits with 2 if
    `torchx-kfp run` would reject the pipeline.
    """
    from torchx_kfp.entrypoints.cli.pipeline_files import find_own_functions, load_target, split_words
    from torchx_kfp.execution.local.preflight import check_gpus, check_pipeline, find_gpus, find_not_applied
    from torchx_kfp.execution.model.findings import REJECTED_LOCALLY, Kind
    from torchx_kfp.execution.model.versions import NEWEST, OLDEST, parse_version
    from torchx_kfp.execution.model.workflow import check_size, measure
    from torchx_kfp.execution.pipeline.values import defaults_of, missing_arguments, parse_arguments
    from torchx_kfp.execution.pipeline.walk import known_stages

    version = NEWEST if kfp is None else parse_version(kfp)
    if version is None or version < OLDEST:
        raise click.BadParameter(
            f"{kfp!r} is not a version of KFP from {OLDEST} on, such as {NEWEST}.", ctx, param_hint="--kfp"
        )
    pipeline, findings = load_target(target)
    arguments = {**defaults_of(pipeline), **parse_arguments(pipeline, split_words(words))}
    stages = list(known_stages(pipeline, arguments))
    gpus = find_gpus(stages)
    findings += [*check_pipeline(pipeline, arguments, version=version), *check_gpus(stages, gpus)]
    findings += [*find_own_functions(pipeline), *check_size(measure(pipeline))]
    in_order = list(Kind)
    for finding in sorted(findings, key=lambda finding: in_order.index(finding.kind)):
        print_text(f"{finding.kind.value}: {finding}")
    print_message(f"{pipeline.name}: {counted(len(findings), 'finding')}.")
    if kinds := find_not_applied(pipeline, arguments, gpus=gpus):
        print_message(f"A local run does not apply: {'; '.join(kinds)}.")
    # A run has a tracker base from --tracker-base, the settings, or a folder.
    if missing := missing_arguments(pipeline, {TRACKER_BASE: "", **arguments}):
        print_message(f"A run needs {' '.join(f'-p {name}=VALUE' for name in missing)}.")
    if any(finding.kind in REJECTED_LOCALLY for finding in findings) or (strict and findings):
        ctx.exit(2)
