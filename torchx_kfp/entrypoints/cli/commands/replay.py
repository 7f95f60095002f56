"""``torchx-kfp replay``: run one stage of a run locally, with its original inputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from torchx_kfp.entrypoints.cli.display.printing import print_message
from torchx_kfp.entrypoints.cli.flags import container_options
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.errors import ArgumentError


@click.command("replay")
@click.argument("run", metavar="RUN[/STAGE]")
@click.option("--workspace", metavar="DIR", help="Run the code in this folder instead of the run's.")
@click.option("--docker", is_flag=True, help="Run it in its image, with Docker or Podman.")
@click.option("--shell", is_flag=True, help="Open a shell with everything set up, instead of the application.")
@click.option(
    "--tracker-base",
    metavar="DIR|URL",
    default="",
    help="Where to record, and to read records of other stages.  [default: the run's]",
)
@click.option(
    "--env",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Set a variable of the stage, by default to your value. May be given several times.",
)
@container_options
@finds_runs()
def replay_command(run: str, lookup: Lookup, given: dict[str, Any], **options: Any) -> None:
    """Run one stage of RUN locally, with its original arguments, variables, inputs, code, and the results that
    it reads.

    STAGE is the name of a stage in `torchx-kfp watch`: inner/train[2]. The default is the only failed one. The stage
    may also have succeeded, or be running; its run is not changed.

    It runs attached to the terminal, so breakpoint() works, and the exit code is the application's. It records under
    its own execution id, and its results are compared with the original ones: loss 0.31 (was 0.29).

    \b
    torchx-kfp replay latest
    torchx-kfp replay 'latest/train[2]' --workspace . --shell
    """
    from torchx_kfp.execution.local.replay import replay
    from torchx_kfp.execution.runs.history import RunReader

    source, stage = lookup.find_part(run, changes="replay")
    result = replay(
        source,
        stage or None,
        docker=options["docker"],
        mounts=given["mounts"],
        copy_from=given["copy_from"],
        workspace=os.path.expanduser(options["workspace"] or ""),
        tracker_base=options["tracker_base"],
        shell=options["shell"],
        env=_variables(options["env"]),
        # A local run keeps its replays.
        output_dir=None if isinstance(source, RunReader) else lookup.output_dir,
        secrets=given["secrets"],
        config_maps=given["config_maps"],
        say=print_message,
    )
    if not options["shell"] or result.compare():
        print_message(str(result))
    sys.exit(result.exit_code)


def _variables(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (not equals and name not in os.environ):
            raise ArgumentError(f"--env {word!r}: the variable is not set. Give its value: --env NAME=VALUE.")
        found[name] = value if equals else os.environ[name]
    return found
