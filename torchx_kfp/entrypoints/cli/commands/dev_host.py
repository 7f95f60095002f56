"""``torchx-kfp dev-host``: a local KFP host for trying commands without a cluster."""

from __future__ import annotations

import click

from torchx_kfp.common.extras import is_installed
from torchx_kfp.errors import MissingExtraError

_PACKAGE = "torchx_kfp_dev_host"
_INSTALL = (
    'pip install "torchx-kfp-dev-host @ git+https://github.com/torchx-kfp/torchx-kfp'
    '#subdirectory=packages/torchx-kfp-dev-host"'
)


@click.command("dev-host")
@click.option("--port", type=click.IntRange(0, 65535), default=8890, show_default=True, help="The port; 0: a free one.")
@click.option(
    "--directory",
    metavar="DIR",
    default=".torchx_kfp/dev-host",
    show_default=True,
    help="The folder for its runs, their results and its settings.",
)
def dev_host_command(port: int, directory: str) -> None:
    """Try commands without a cluster: a local KFP host whose runs are local runs.

    It is not KFP, but has the part of KFP's API that torchx-kfp, `torchx run -s kfp` and kfp.Client use for runs and
    experiments. There are no pods and images: stages are processes in the current directory. It has no UI and no
    recurring runs, and forgets its runs at its end, except for their folders. It requires the token in its folder and
    is only reachable from this machine.

    \b
    torchx-kfp dev-host

    It prints the variables for other terminals. Ctrl-C ends it and its runs.
    """
    if not is_installed(_PACKAGE):
        raise MissingExtraError(f"The command torchx-kfp dev-host needs another package. Install it with: {_INSTALL}")
    from torchx_kfp_dev_host.serve import serve

    serve(port, directory)
