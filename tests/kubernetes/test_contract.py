"""The contract of a distributed stage with Job and JobSet: all behaviours, and what attempts do with their object.

They have their real controllers. The launcher, which knows no engine, has the rights that ``torchx-kfp rbac`` prints,
and no others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef

from tests.contract.carried.behaviours import BEHAVIOURS, ROWS, TRAIN, python
from tests.kubernetes.api import Object
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.stages import COLLECTIONS, RUN, Stage, give_rights, replicas
from tests.kubernetes.waiting import until
from torchx_kfp.tracking import FsspecResultTracker

#: A service account that may do nothing else.
ACCOUNT = "launcher"


@dataclass
class Cluster:
    """A namespace with an engine, and a launcher's rights."""

    engine: str
    namespace: Namespace
    kubelet: Kubelet
    folder: Path

    def stage(self, app: AppDef, **options: Any) -> Stage:
        made = Stage(self.namespace, self.kubelet, self.folder, app, **{"engine": self.engine, **options})
        made.account = ACCOUNT
        return made

    @property
    def objects(self) -> list[Object]:
        return self.namespace.list(COLLECTIONS[self.engine])

    @property
    def replicas(self) -> list[Object]:
        return replicas(self.namespace)


@pytest.fixture(params=list(COLLECTIONS))
def cluster_with(request: pytest.FixtureRequest, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> Cluster:
    if request.param != "job":
        request.getfixturevalue("controllers")
    give_rights(namespace, request.param, ACCOUNT)
    return Cluster(request.param, namespace, kubelet, tmp_path)


@pytest.mark.parametrize(("name", "cluster_with"), ROWS, indirect=["cluster_with"])
def test_a_stage_does_the_same_on_a_cluster_as_here(name: str, cluster_with: Cluster) -> None:
    row, engine = BEHAVIOURS[name], cluster_with.engine
    stage = cluster_with.stage(row.app(cluster_with.folder), **row.options_with(engine))
    attempt = stage.start()
    code = attempt.ended()
    found = re.search(r"torchx-kfp: created (Job|JobSet|TrainJob) (\S+)/(\S+)\n", attempt.log)
    assert found, attempt.log
    name = found[3]
    assert found[2] == cluster_with.namespace.name
    server = {"job": f"{name}-0", "jobset": f"{name}-trainer-0-0", "trainjob": f"{name}-node-0-0"}[engine]
    row.check(code, attempt.log, attempt.outputs, rank0=f"{server}.{name}", server=server)
    if row.records is not None:
        assert FsspecResultTracker(str(stage.base))[attempt.run_id] == row.records
    if code:
        assert f", node {cluster_with.kubelet.node}) failed first, with exit code {code}" in attempt.log
        until(lambda: not cluster_with.objects and not cluster_with.replicas)
    else:
        assert attempt.log.splitlines()[-1] == f"torchx-kfp: {name} succeeded"
        until(lambda: not any(pod["status"]["phase"] == "Running" for pod in cluster_with.replicas))


def test_an_object_and_its_service_belong_to_the_run(cluster_with: Cluster) -> None:
    stage = cluster_with.stage(python(TRAIN))
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert re.fullmatch(f"{RUN}/train/{attempt.name}_[0-9a-f]{{8}}", attempt.run_id)
    (made,) = cluster_with.objects
    ttl = None if cluster_with.engine == "trainjob" else 24 * 60 * 60
    assert made["spec"].get("ttlSecondsAfterFinished") == ttl, "it is kept for a while, or as long as its Workflow"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Workflow", stage.workflow)
    (service,) = cluster_with.namespace.list("services")
    of_engine = {"job": owner, "jobset": made["metadata"]}.get(cluster_with.engine)
    if of_engine is None:
        (jobset,) = cluster_with.namespace.list(COLLECTIONS["jobset"])
        assert [one["uid"] for one in jobset["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
        of_engine = jobset["metadata"]
    assert [one["uid"] for one in service["metadata"]["ownerReferences"]] == [of_engine["uid"]]
    assert {pod["spec"]["serviceAccountName"] for pod in cluster_with.replicas} == {ACCOUNT}
