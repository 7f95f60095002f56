"""The rights that the launcher of a distributed stage needs, as a Role and a RoleBinding of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from torchx_kfp.engines.engine import Engine


@dataclass(frozen=True)
class Rule:
    """A rule of a Role: the group of an API, a resource of it, and what may be done with it."""

    group: str
    resource: str
    verbs: Sequence[str]


def launcher_rules(engine: type[Engine]) -> tuple[Rule, ...]:
    """Return what the launcher does in its namespace: its requests, and nothing else.

    It makes the object, finds that of an earlier attempt and becomes its owner, and deletes it. It creates what the
    object owns, lists the replicas, and reads their logs.
    """
    group, resource = engine.RESOURCE
    return (
        Rule(group, resource, ("create", "get", "patch", "delete")),
        *(Rule(group, resource, ("create", "get", "patch")) for group, resource in engine.COMPANIONS),
        Rule("", "pods", ("list",)),
        Rule("", "pods/log", ("get",)),
    )


def rights_text(engine: type[Engine], service_account: str, namespace: str) -> str:
    """Return the YAML of a Role with the launcher's rights, and of a RoleBinding that grants them.

    Args:
        engine: the engine of the stages.
        service_account: the service account with which the stages run.
        namespace: the namespace in which they run.
    """
    role = f"torchx-kfp-{engine.NAME}"
    rules = "".join(
        f"  - apiGroups: {json.dumps([rule.group])}\n"
        f"    resources: {json.dumps([rule.resource])}\n"
        f"    verbs: {json.dumps(list(rule.verbs))}\n"
        for rule in launcher_rules(engine)
    )
    return f"""\
{_remark(engine)}apiVersion: rbac.authorization.k8s.io/v1
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


def _remark(engine: type[Engine]) -> str:
    if not engine.STOCK_RIGHTS:
        return ""
    return "# KFP's own service account, pipeline-runner, has all of these rights already.\n"
