"""Distributed stages on clusters in use: lost nodes, queues, quotas, missing rights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from torchx.specs import BindMount, Resource, RetryPolicy

from components.ddp import component as ddp
from tests.contract.carried.behaviours import python
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.stages import COLLECTIONS, Stage, grant, replicas, waiting
from tests.kubernetes.waiting import until
from tests.pipelines.regenerate import REPOSITORY
from torchx_kfp.tracking import FsspecResultTracker

#: Runs until the file is there, and does not end at SIGTERM.
SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"saves a checkpoint\\n"))
print("waits")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(params=["job", "jobset", "trainjob"])
def engine(request: pytest.FixtureRequest, namespace: Namespace, kubelet: Kubelet) -> str:
    """The name of an engine that the namespace has, with the rights for it."""
    name = str(request.param)
    if name != "job":
        request.getfixturevalue("controllers")
        grant(namespace, name)
    return name


def delete_pod(namespace: Namespace, name: str) -> None:
    namespace.api.delete(namespace.path("pods", name), gracePeriodSeconds=0)


# What a stage needs of its cluster


def test_secrets_resources_and_settings_of_the_task(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    namespace.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": {"key": "hidden"}}
    )
    config = {
        "affinity": None,
        "env": [
            {"name": "EXTRA", "value": "1"},
            {"name": "KFP_RUN_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['pipeline/runid']"}}},
        ],
        "nodeSelector": {},
        "resources": {"limits": {"memory": "96M"}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/run/scratch"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    program = """
from os import environ, listdir, path
print(environ["KEY"], environ["EXTRA"], "KFP_RUN_ID" in environ, path.isdir("/run/scratch"), listdir("/run/data"))
"""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    app = python(
        program,
        resource=Resource(cpu=1, gpu=0, memMB=1000, devices={"example.com/nic": 1}),
        mounts=[BindMount(str(tmp_path / "data"), "/run/data", read_only=True)],
        port_map={"c10d": 29500},
    )
    stage = Stage(
        namespace, kubelet, tmp_path, app, engine="job", config=config, secrets={"s3": {"key": "KEY"}}, replicas=1
    )
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert "trainer/0 | hidden 1 False True ['file']" in attempt.log
    (pod,) = replicas(namespace)
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "96M", "example.com/nic": "1"},
        "limits": {"cpu": "1", "memory": "96M", "example.com/nic": "1"},
    }
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert container["ports"][0]["containerPort"] == 29500


def test_iterations_of_a_loop_have_their_own_objects(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app, go = waiting(tmp_path, replicas=1)
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job")
    nodes = [f"run-x.root.for-loop-2.iteration-iterations({n}:{n}).iteration-item.train.executor({{}})" for n in "01"]
    attempts = [stage.start(node=node) for node in nodes]
    until(lambda: len(namespace.list("batch/v1/jobs")) == 2)
    go.touch()
    assert [attempt.ended() for attempt in attempts] == [0, 0]


@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
def test_nodes_of_torchrun_meet_by_name(engine: str, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """A training of two nodes, as ``pipelines/ddp.py`` has it; its command line wins over a runtime's variables."""
    kubelet.working_folder = REPOSITORY
    # The pods share the network of this machine: with the usual port, they would join a torchrun of another test.
    app = ddp.train(epochs=3, checkpoints=str(tmp_path / "checkpoints"), rdzv_port=29510)
    stage = Stage(namespace, kubelet, tmp_path, app, engine=engine, results={"loss": float, "accuracy": float})
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert float(attempt.outputs["loss"]) < 2
    assert FsspecResultTracker(str(stage.base))[attempt.run_id]["world_size"] == 2


# Nodes


def test_a_replica_is_lost_with_its_node(engine: str, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """The others would wait for it in a collective operation."""
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine=engine).start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    lost = next(pod["metadata"]["name"] for pod in replicas(namespace) if "-1" in pod["metadata"]["name"][-8:])
    delete_pod(namespace, lost)
    assert attempt.ended() != 0
    assert lost in attempt.log


def test_a_replica_is_replaced_when_it_has_ended(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Two pods at the same time would have the same name."""
    kubelet.longest_grace = 4
    go = tmp_path / "go"
    app = python(SAVES, arguments=[str(go)], max_retries=3, retry_policy=RetryPolicy.REPLICA)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    lost = next(pod for pod in replicas(namespace) if "-1-" in pod["metadata"]["name"])
    namespace.api.delete(namespace.path("pods", lost["metadata"]["name"]))
    most = 0
    for _ in range(20):
        most = max(most, sum(pod["status"].get("phase") == "Running" for pod in replicas(namespace)))
        time.sleep(0.1)
    go.touch()
    attempt.ended()
    assert most == 2


# Attempts inside of an engine


def test_a_job_that_its_queue_preempts(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Kueue suspends and resumes it. What fails then is not the pod that was preempted."""
    program = """
import os, sys, time
me = sys.argv[1] + os.environ["TORCHX_REPLICA_ID"]
if not os.path.exists(me):
    open(me, "w").close()
    print("first")
    time.sleep(1000)
if os.environ["TORCHX_REPLICA_ID"] == "1":
    time.sleep(1)
    print("about to fail")
    sys.exit(7)
time.sleep(1000)
"""
    app = python(program, arguments=[str(tmp_path / "me")])
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | first")
    path = namespace.path("batch/v1/jobs", namespace.list("batch/v1/jobs")[0]["metadata"]["name"])
    namespace.api.patch(path, {"spec": {"suspend": True}})
    attempt.says("it is suspended")
    namespace.api.patch(path, {"spec": {"suspend": False}})
    assert attempt.ended() == 7, attempt.log
    assert "about to fail" in attempt.log.splitlines()[-1]


def test_replicas_that_end_well_because_the_object_is_deleted(
    engine: str, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    """They have not done their work, although their engine may say so."""
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("waits")
time.sleep(1000)
"""
    attempt = Stage(namespace, kubelet, tmp_path, python(program), engine=engine).start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    name = namespace.list(COLLECTIONS[engine])[0]["metadata"]["name"]
    namespace.api.delete(namespace.path(COLLECTIONS[engine], name), {"propagationPolicy": "Foreground"})
    assert attempt.ended() == 1, attempt.log
    assert f"{name} was deleted by something else" in attempt.log
