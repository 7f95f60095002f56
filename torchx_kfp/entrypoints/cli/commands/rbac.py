"""``torchx-kfp rbac``: print the rights that distributed stages need on a cluster."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from torchx_kfp.entrypoints.cli.display.printing import print_text
from torchx_kfp.entrypoints.cli.flags import KnownName, engine_names

if TYPE_CHECKING:
    from torchx_kfp.authoring.engines import Engine


#: Matches a label of a name in Kubernetes.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)


class KubernetesName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """A name that Kubernetes accepts: a label, or several joined by dots if ``dotted``."""

    name = "name"

    def __init__(self, *, dotted: bool = False) -> None:
        self.dotted = dotted

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        parts = text.split(".") if self.dotted else [text]
        if len(text) > (253 if self.dotted else 63) or not all(map(_LABEL.fullmatch, parts)):
            self.fail(
                f"{value!r} cannot be a name in Kubernetes. Use lowercase letters, digits and '-'"
                f"{' in parts joined by dots' if self.dotted else ', at most 63'}.",
                param,
                ctx,
            )
        return text


@click.command("rbac")
@click.option(
    "--engine",
    metavar="NAME",
    type=KnownName(engine_names),
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
    from torchx_kfp.authoring.engines import ENGINES

    print_text(rights_text(ENGINES[engine], service_account, namespace))


def rights_text(engine: type[Engine], service_account: str, namespace: str) -> str:
    """Return the YAML of a Role with the launcher's rights, and of a RoleBinding that grants them.

    Args:
        engine: the engine of the stages.
        service_account: the service account with which the stages run.
        namespace: the namespace in which they run.
    """
    role = f"torchx-kfp-{engine.NAME}"
    remark = "# KFP's own service account, pipeline-runner, has all of these rights already.\n"
    # The launcher makes the object, finds that of an earlier attempt and becomes its owner, and deletes it. It creates
    # the object's companions, lists the replicas, and reads their logs.
    allowed = [
        (*engine.RESOURCE, ["create", "get", "patch", "delete"]),
        *((*companion, ["create"]) for companion in engine.COMPANIONS),
        ("", "pods", ["list"]),
        ("", "pods/log", ["get"]),
    ]
    rules = "".join(
        f"  - apiGroups: {json.dumps([group])}\n"
        f"    resources: {json.dumps([resource])}\n"
        f"    verbs: {json.dumps(verbs)}\n"
        for group, resource, verbs in allowed
    )
    return f"""\
{remark if engine.STOCK_RIGHTS else ""}apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {role}
  namespace: {json.dumps(namespace)}
rules:
{rules}---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {role}-{service_account}
  namespace: {json.dumps(namespace)}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {role}
subjects:
  - kind: ServiceAccount
    name: {json.dumps(service_account)}
    namespace: {json.dumps(namespace)}
"""
