"""The manifest for a cluster that ``torchx-kfp rbac`` prints; its texts are in ``tests/transcripts``."""

import itertools
from pathlib import Path

import pytest

from tests.documents import documents
from tests.entrypoints.cli.conftest import Call

pytestmark = pytest.mark.lowest

STOCK = Path(__file__).resolve().parents[2] / "kubernetes" / "pipeline-runner-role.yaml"
#: The engines, and what KFP's own service account lacks for each.
LACKING = {
    "job": [],
    "jobset": [("jobset.x-k8s.io", "jobsets")],
    "trainjob": [("trainer.kubeflow.org", "trainjobs")],
}
#: Of ``manifests/overlays/kubeflow-platform/kubeflow-trainer-roles.yaml`` in Trainer 2.2.1: the ClusterRole that
#: ``default-editor`` has in its namespace, as a part of ``kubeflow-edit``.
TRAINER_EDIT = {
    *itertools.product(["trainer.kubeflow.org"], ["trainjobs"], ["create", "patch", "get", "list", "watch", "delete"]),
    *itertools.product([""], ["pods", "pods/log", "events"], ["get", "list", "watch"]),
}


def rights(text: str) -> set[tuple[str, str, str]]:
    """Return what a Role allows, as (group, resource, verb)."""
    found = set()
    for rule in documents(text)[0]["rules"]:
        found |= {*itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}
    return found


@pytest.mark.parametrize("engine", LACKING)
def test_what_kfps_own_service_account_may(call: Call, engine: str) -> None:
    text = call("rbac", "--engine", engine).stdout
    stock = rights(STOCK.read_text())
    lacking = {right[:2] for right in rights(text) if not {right, (*right[:2], "*")} & stock}
    assert lacking == {*LACKING[engine]}
    assert text.startswith("# KFP's own service account, pipeline-runner, has all") == (not lacking)


def test_what_accounts_of_kubeflows_namespaces_may(call: Call) -> None:
    assert rights(call("rbac", "--engine", "trainjob").stdout) <= TRAINER_EDIT
