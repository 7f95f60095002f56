"""``torchx-kfp rbac``: print the rights that distributed stages need on a cluster."""

from __future__ import annotations

from collections.abc import Iterable

import click

from torchx_kfp.cli.display.printing import print_text
from torchx_kfp.cli.flags import KnownName, KubernetesName


def _engines() -> Iterable[str]:
    from torchx_kfp.engines import ENGINES

    return ENGINES


@click.command("rbac", short_help="Print the Role that distributed stages need.")
@click.option(
    "--engine",
    metavar="NAME",
    type=KnownName(_engines),
    required=True,
    help="The engine of the stages: job, jobset or volcano.",
)
@click.option(
    "--service-account",
    metavar="NAME",
    type=KubernetesName(dotted=True),
    default="pipeline-runner",
    show_default=True,
    help="The service account with which the stages run.",
)
@click.option(
    "--namespace",
    metavar="NAME",
    type=KubernetesName(),
    default="kubeflow",
    show_default=True,
    help="The namespace in which they run.",
)
def rbac_command(engine: str, service_account: str, namespace: str) -> None:
    """Print the Role and the RoleBinding that stages with an engine need.

    The pod of such a stage creates an object of the engine, follows it and deletes it. An administrator grants the
    rights for that once in each namespace:

    \b
    torchx-kfp rbac --engine jobset | kubectl apply -f -

    KFP's own service account, pipeline-runner, has all rights that engine=job needs, and lacks those for jobset and
    volcano. In multi-user Kubeflow, runs belong to a profile: its namespace has the profile's name, and the service
    account is default-editor.

    \b
    torchx-kfp rbac --engine jobset --service-account default-editor --namespace PROFILE | kubectl apply -f -
    """
    from torchx_kfp.engines import ENGINES
    from torchx_kfp.engines.rights import rights_text

    print_text(rights_text(ENGINES[engine], service_account, namespace))
