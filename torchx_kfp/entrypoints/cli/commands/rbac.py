"""``torchx-kfp rbac``: print the permissions that distributed stages need on a cluster."""

from __future__ import annotations

import click

from torchx_kfp.entrypoints.cli.display.printing import print_text
from torchx_kfp.entrypoints.cli.flags import refuse_empty

_GROUP = "rbac.authorization.k8s.io"


@click.command("rbac")
@click.option(
    "--engine",
    type=click.Choice(["job", "jobset", "trainjob"]),
    required=True,
    help="The engine of the stages.",
)
@click.option(
    "--service-account",
    metavar="NAME",
    callback=refuse_empty,
    default="pipeline-runner",
    show_default=True,
    help="The service account with which the stages run.",
)
@click.option(
    "--namespace",
    metavar="NAME",
    callback=refuse_empty,
    default="kubeflow",
    show_default=True,
    help="The namespace in which they run.",
)
def rbac_command(engine: str, service_account: str, namespace: str) -> None:
    """Print the Role and the RoleBinding that stages with an engine need.

    The pod of such a stage creates, follows and deletes an object of the engine. An administrator grants these
    permissions once per namespace:

    \b
    torchx-kfp rbac --engine jobset | kubectl apply -f -

    KFP's own service account, pipeline-runner, has all permissions that engine=job needs, and lacks those for jobset
    and trainjob. In multi-user Kubeflow, runs belong to a profile: its namespace has the profile's name, and the
    service account is default-editor, which has the permissions for job and trainjob.

    \b
    torchx-kfp rbac --engine jobset --service-account default-editor --namespace PROFILE | kubectl apply -f -
    """
    import yaml

    from torchx_kfp.authoring.engines import ENGINES

    kind = ENGINES[engine]

    def manifest(of: str, name: str, **content: object) -> dict[str, object]:
        head = {"apiVersion": f"{_GROUP}/v1", "kind": of, "metadata": {"name": name, "namespace": namespace}}
        return {**head, **content}

    role = f"torchx-kfp-{kind.NAME}"
    # The launcher creates the object, or adopts that of an earlier attempt, and deletes it. It creates the object's
    # companions, lists the replicas, and reads their logs.
    allowed = [
        (kind.OBJECT[0].partition("/")[0], kind.OBJECT[2], ["create", "get", "patch", "delete"]),
        *((*companion, ["create"]) for companion in kind.COMPANIONS),
        ("", "pods", ["list"]),
        ("", "pods/log", ["get"]),
    ]
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": verbs} for group, resource, verbs in allowed]
    account = {"kind": "ServiceAccount", "name": service_account, "namespace": namespace}
    binding = {"roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": role}, "subjects": [account]}
    remark = "# KFP's own service account, pipeline-runner, has all of these permissions already.\n"
    manifests = [manifest("Role", role, rules=rules), manifest("RoleBinding", f"{role}-{service_account}", **binding)]
    text = yaml.safe_dump_all(manifests, sort_keys=False, default_flow_style=None)
    print_text(f"{remark if kind.STOCK_RIGHTS else ''}{text}")
