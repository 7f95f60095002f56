"""The contract of a distributed stage with every engine: the same tests for Job, JobSet and Volcano.

Job and JobSet have their real controllers; Volcano's is a double. The launcher has the rights that ``torchx-kfp rbac``
prints, and no others.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef, Role

from tests.cluster.api import Object
from tests.cluster.kubelet import Kubelet
from tests.cluster.namespaces import Namespace
from tests.cluster.stages import COLLECTIONS, FAIL, RUN, TRAIN, Stage, give_rights, python, replicas, waiting
from tests.cluster.waiting import until
from torchx_kfp import engines

#: A service account that may do nothing else.
ACCOUNT = "launcher"


@dataclass
class Cluster:
    """A namespace with an engine, and a launcher's rights."""

    engine: str
    namespace: Namespace
    kubelet: Kubelet
    folder: Path

    def stage(self, app: AppDef, engine: object = None, **options: Any) -> Stage:
        made = Stage(self.namespace, self.kubelet, self.folder, app, engine=engine or self.engine, **options)
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
        phase = status.get("state", {}).get("phase")
        return "Failed" in (*conditions, status.get("terminalState")) or phase in ("Failed", "Aborted")

    @property
    def replicas(self) -> list[Object]:
        return replicas(self.namespace)


@pytest.fixture(params=["job", "jobset", "volcano"])
def cluster_with(request: pytest.FixtureRequest, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> Cluster:
    if request.param != "job":
        request.getfixturevalue({"jobset": "jobset_controller", "volcano": "volcano"}[request.param])
    give_rights(namespace, request.param, ACCOUNT)
    return Cluster(request.param, namespace, kubelet, tmp_path)


def test_a_stage_of_two_replicas(cluster_with: Cluster) -> None:
    stage = cluster_with.stage(python(TRAIN), results={"loss": float})
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    (made,) = cluster_with.objects
    name = made["metadata"]["name"]
    host = {"job": name, "jobset": f"{name}-trainer-0", "volcano": f"{name}-trainer"}[cluster_with.engine]
    assert attempt.outputs["loss"] == "0.25"
    assert re.fullmatch(f"{RUN}/train/{attempt.name}_[0-9a-f]{{8}}", attempt.outputs["run_id"])
    lines = attempt.log.splitlines()
    assert "trainer/0 | replica 0 of 2 rank 0 is localhost" in lines
    assert f"trainer/1 | replica 1 of 2 rank 0 is {host}-0.{name}" in lines
    kind = "JobSet" if cluster_with.engine == "jobset" else "Job"
    assert f"torchx-kfp: created {kind} {cluster_with.namespace.name}/{name}" in lines
    assert lines[-1] == f"torchx-kfp: {name} succeeded"
    assert made["spec"]["ttlSecondsAfterFinished"] == 24 * 60 * 60, "it is kept for a while"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Workflow", stage.workflow)
    (service,) = cluster_with.namespace.list("services")
    assert service["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert {pod["spec"]["serviceAccountName"] for pod in cluster_with.replicas} == {ACCOUNT}


def test_replicas_meet_by_name(cluster_with: Cluster, unused_port: int) -> None:
    program = f"""
import os, socket, time
if os.environ["TORCHX_REPLICA_ID"] == "0":
    with socket.create_server(("", {unused_port})) as server:
        connection, _ = server.accept()
        print("met", connection.recv(100).decode())
        connection.close()
while os.environ["TORCHX_REPLICA_ID"] != "0":
    try:
        with socket.create_connection((os.environ["TORCHX_RANK0_HOST"], {unused_port})) as connection:
            connection.sendall(b"replica 1")
        break
    except OSError:
        time.sleep(0.05)
"""
    attempt = cluster_with.stage(python(program)).start()
    assert attempt.ended() == 0, attempt.log
    assert "trainer/0 | met replica 1" in attempt.log


def test_the_replica_that_fails_first_gives_the_exit_code(cluster_with: Cluster) -> None:
    stage = cluster_with.stage(python(FAIL), results={"loss": float})
    attempt = stage.start()
    assert attempt.ended() == 7, attempt.log
    (failed,) = [line for line in attempt.log.splitlines() if line.startswith("trainer/1 (pod")]
    assert "failed first, with exit code 7" in failed
    assert f"node {cluster_with.kubelet.node}" in failed
    assert attempt.log.splitlines()[-1] == "  trainer/1 | about to fail"
    assert "loss" not in attempt.outputs, "the results of a failed attempt are not published"
    until(lambda: not cluster_with.objects and not cluster_with.replicas)

    # The next attempt makes another object, which is another run.
    again = stage.start()
    assert again.ended() == 7
    assert again.run_id != attempt.run_id


def test_sigterm_deletes_the_object_at_once(cluster_with: Cluster) -> None:
    app, _ = waiting(cluster_with.folder)
    attempt = cluster_with.stage(app, results={"loss": float}).start()
    attempt.says("trainer/0 | waits")
    cluster_with.namespace.api.delete(cluster_with.namespace.path("pods", attempt.name))
    attempt.says("ended by signal 15")
    until(lambda: not cluster_with.objects and not cluster_with.replicas)
    assert not cluster_with.namespace.list("services")


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


# Several roles, and restarts by the engine

SERVE = """
import os, time
print("serves", os.environ["TORCHX_RANK0_HOST"])
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("cluster_with", ["jobset", "volcano"], indirect=True)
def test_a_role_that_never_ends(cluster_with: Cluster) -> None:
    # The server goes with the trainers: the launcher needs the time to read what it has printed.
    (trainer,) = python(f"{TRAIN}\nimport time; time.sleep(2)").roles
    server = Role("server", image="any", entrypoint="python", args=["-u", "-c", SERVE])
    engine = engines.ENGINES[cluster_with.engine](succeeds_with=["trainer"])
    stage = cluster_with.stage(AppDef("train", roles=[trainer, server]), engine, results={"loss": float})
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert attempt.outputs["loss"] == "0.25"
    name = cluster_with.objects[0]["metadata"]["name"]
    assert f"server/0 | serves {name}-trainer" in attempt.log
    until(lambda: not any(pod["status"]["phase"] == "Running" for pod in cluster_with.replicas))


@pytest.mark.parametrize("cluster_with", ["jobset", "volcano"], indirect=True)
def test_all_replicas_start_again(cluster_with: Cluster) -> None:
    program = """
import os, sys, time
me = sys.argv[1] + os.environ["TORCHX_REPLICA_ID"]
print("tries")
if not os.path.exists(me):
    open(me, "w").close()
    time.sleep(2 if os.environ["TORCHX_REPLICA_ID"] == "1" else 1000)
    sys.exit(3)
"""
    app = python(program, arguments=[str(cluster_with.folder / "me")], max_retries=1)
    attempt = cluster_with.stage(app).start()
    assert attempt.ended() == 0, attempt.log
    assert attempt.log.count("trainer/0 | tries") == attempt.log.count("trainer/1 | tries") == 2
