"""The contract of a distributed stage with Job and JobSet: all behaviours, and what attempts do with their object.

They have their real controllers. The launcher, which knows no engine, has the rights that ``torchx-kfp rbac`` prints,
and no others.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef

from tests.contract.carried.behaviours import BEHAVIOURS, FAIL, ROWS, TRAIN, python
from tests.kubernetes.api import Object
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.stages import COLLECTIONS, RUN, Stage, give_rights, replicas, waiting
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
    def failed(self) -> bool:
        """Whether the engine says that the object has failed."""
        status = self.objects[0].get("status", {})
        conditions = [one["type"] for one in status.get("conditions", ()) if one.get("status") == "True"]
        return "Failed" in (*conditions, status.get("terminalState"))

    @property
    def replicas(self) -> list[Object]:
        return replicas(self.namespace)


@pytest.fixture(params=["job", "jobset"])
def cluster_with(request: pytest.FixtureRequest, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> Cluster:
    if request.param == "jobset":
        request.getfixturevalue("jobset_controller")
    give_rights(namespace, request.param, ACCOUNT)
    return Cluster(request.param, namespace, kubelet, tmp_path)


@pytest.mark.parametrize(("name", "cluster_with"), ROWS, indirect=["cluster_with"])
def test_a_stage_does_the_same_on_a_cluster_as_here(name: str, cluster_with: Cluster) -> None:
    row, engine = BEHAVIOURS[name], cluster_with.engine
    stage = cluster_with.stage(row.app(cluster_with.folder), **row.options_with(engine))
    attempt = stage.start()
    code = attempt.ended()
    found = re.search(r"torchx-kfp: created (Job|JobSet) (\S+)/(\S+)\n", attempt.log)
    assert found, attempt.log
    name = found[3]
    assert found[2] == cluster_with.namespace.name
    server = f"{name}-0" if engine == "job" else f"{name}-trainer-0-0"
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
    assert made["spec"]["ttlSecondsAfterFinished"] == 24 * 60 * 60, "it is kept for a while"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Workflow", stage.workflow)
    (service,) = cluster_with.namespace.list("services")
    of_engine = made["metadata"]["uid"] if cluster_with.engine != "job" else owner["uid"]
    assert [one["uid"] for one in service["metadata"]["ownerReferences"]] == [of_engine]
    assert {pod["spec"]["serviceAccountName"] for pod in cluster_with.replicas} == {ACCOUNT}


def test_sigterm_deletes_the_object_at_once(cluster_with: Cluster) -> None:
    app, _ = waiting(cluster_with.folder)
    attempt = cluster_with.stage(app, results={"loss": float}).start()
    attempt.says("trainer/0 | waits")
    cluster_with.namespace.api.delete(cluster_with.namespace.path("pods", attempt.name))
    attempt.says("ended by signal 15")
    until(lambda: not cluster_with.objects and not cluster_with.replicas)


def test_the_object_ends_with_the_run(cluster_with: Cluster) -> None:
    """The second line of defense: nobody sends a DELETE, but the garbage collector finds that the owner is gone."""
    app, _ = waiting(cluster_with.folder)
    stage = cluster_with.stage(app)
    attempt = stage.start()
    attempt.says("trainer/1 | waits")
    cluster_with.kubelet.kill(attempt.name)
    assert attempt.ended() == 137
    assert len(cluster_with.objects) == 1, "it may be adopted"
    workflows = cluster_with.namespace.path("argoproj.io/v1alpha1/workflows", stage.workflow)
    cluster_with.namespace.api.delete(workflows, {"propagationPolicy": "Background"})
    until(
        lambda: not cluster_with.objects and not cluster_with.replicas and not cluster_with.namespace.list("services")
    )


def test_a_retry_adopts_what_runs(cluster_with: Cluster) -> None:
    app, go = waiting(cluster_with.folder)
    stage = cluster_with.stage(app, results={"loss": float})
    first = stage.start()
    first.says("trainer/0 | waits")
    (made,) = cluster_with.objects
    if cluster_with.engine == "job":
        cluster_with.kubelet.kill(first.name)
    else:  # its node is lost: not even the pod is left
        cluster_with.namespace.api.delete(cluster_with.namespace.path("pods", first.name), gracePeriodSeconds=0)
        time.sleep(1)
    second = stage.start()
    second.says("of an earlier attempt")
    assert all(pod["metadata"].get("deletionTimestamp") is None for pod in cluster_with.replicas)
    go.touch()
    assert second.ended() == 0, second.log
    assert second.run_id == first.run_id, "stages that read it find what the replicas have recorded"
    assert second.outputs["loss"] == "0.5"
    (same,) = cluster_with.objects
    assert same["metadata"]["uid"] == made["metadata"]["uid"]
    assert same["metadata"]["annotations"]["torchx-kfp/launcher"].startswith(f"{second.name}_")


def test_a_retry_adopts_what_has_succeeded(cluster_with: Cluster) -> None:
    app, go = waiting(cluster_with.folder)
    stage = cluster_with.stage(app, results={"loss": float})
    first = stage.start()
    first.says("trainer/0 | waits")
    cluster_with.kubelet.kill(first.name)
    go.touch()
    until(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in cluster_with.replicas))
    second = stage.start()
    assert second.ended() == 0
    assert (second.run_id, second.outputs["loss"]) == (first.run_id, "0.5")
    assert "trainer/0 | waits" in second.log, "its log is whole"
    assert len(cluster_with.replicas) == 2


def test_a_retry_replaces_what_has_failed(cluster_with: Cluster) -> None:
    stage = cluster_with.stage(python(FAIL), results={"loss": float})
    first = stage.start()
    until(lambda: cluster_with.objects)
    cluster_with.kubelet.kill(first.name)
    (made,) = cluster_with.objects
    until(lambda: cluster_with.failed)
    second = stage.start()
    assert second.ended() == 7, second.log
    assert "of an earlier attempt has failed" in second.log
    assert second.run_id != first.run_id
    assert made["metadata"]["uid"] not in [one["metadata"]["uid"] for one in cluster_with.objects]
