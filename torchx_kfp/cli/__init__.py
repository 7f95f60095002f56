"""The command line: one thin module a command.

Results go to stdout, everything else to stderr. Exit codes: 0, 1 for a failure, 2 for a wrong call, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click

import torchx_kfp
from torchx_kfp.cli.cancel import cancel_command
from torchx_kfp.cli.compare import compare_command
from torchx_kfp.cli.compile import compile_command
from torchx_kfp.cli.gc import gc_command
from torchx_kfp.cli.import_torchx import import_command
from torchx_kfp.cli.lineage import lineage_command
from torchx_kfp.cli.local_runs import runs_command
from torchx_kfp.cli.logs import logs_command
from torchx_kfp.cli.report import report_command
from torchx_kfp.cli.results import results_command
from torchx_kfp.cli.run import run_command
from torchx_kfp.cli.show import show_command
from torchx_kfp.errors import TorchxKfpError

__all__ = ["main"]


class _Group(click.Group):
    """Shows torchx-kfp's errors as a message, and a traceback only when it is asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TorchxKfpError as error:
            if ctx.params.get("traceback"):
                traceback.print_exc()
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(torchx_kfp.__version__, prog_name="torchx-kfp")
@click.option("--traceback", is_flag=True, help="Show where in the code an error comes from.")
def cli(traceback: bool) -> None:
    """TorchX applications as stages of Kubeflow Pipelines v2."""
    del traceback  # read by the group


cli.add_command(compile_command)
cli.add_command(run_command)
cli.add_command(runs_command)
cli.add_command(logs_command)
cli.add_command(cancel_command)
cli.add_command(report_command)
cli.add_command(results_command)
cli.add_command(show_command)
cli.add_command(lineage_command)
cli.add_command(compare_command)
cli.add_command(gc_command)
cli.add_command(import_command)


def main() -> None:
    """The program ``torchx-kfp``."""
    sys.exit(cli(prog_name="torchx-kfp"))
