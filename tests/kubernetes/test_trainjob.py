"""What only a TrainJob has, with the controller and the webhooks of Kubeflow Trainer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torchx.specs import AppDef, BindMount, Resource, Role

from tests.contract.carried.behaviours import FAIL, TRAIN, python
from tests.kubernetes.api import Object
from tests.kubernetes.controllers import runtime
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.stages import COLLECTIONS, Stage, grant, replicas
from tests.kubernetes.waiting import until
from torchx_kfp.authoring.engines import TrainJob

pytestmark = pytest.mark.usefixtures("controllers")

#: Prints the variables that torchrun reads.
PET = """
import os
print("PET", *(os.environ.get(f"PET_{name}") for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR")))
"""

#: Counts the processes of all nodes.
GATHER = """
import torch
import torch.distributed as dist
from torchx_kfp.tracking import current_run
dist.init_process_group("gloo")
ranks = torch.ones(1)
dist.all_reduce(ranks)
if dist.get_rank() == 0:
    current_run().put(ranks=int(ranks))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _rights(namespace: Namespace) -> None:
    grant(namespace, "trainjob")


def stage(namespace: Namespace, kubelet: Kubelet, folder: Path, app: AppDef, **options: object) -> Stage:
    engine = options.pop("engine", TrainJob())
    return Stage(namespace, kubelet, folder, app, engine=engine, **options)


def only(namespace: Namespace) -> Object:
    (made,) = until(lambda: namespace.list(COLLECTIONS["trainjob"]))
    return dict(made)


def test_a_runtime_of_torch_sets_what_torchrun_reads(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """``dist.ddp`` gives torchrun all of these on its command line, which wins."""
    app = python(PET, resource=Resource(cpu=2, gpu=0, memMB=64))
    attempt = stage(namespace, kubelet, tmp_path, app).start()
    assert attempt.ended() == 0, attempt.log
    rank0 = re.search(r"TrainJob [^/]*/(\S+)", attempt.log)
    assert rank0
    for index in range(2):
        assert f"trainer/{index} | PET 2 {index} 2 {rank0[1]}-node-0-0.{rank0[1]}\n" in attempt.log


@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
def test_a_plain_script_has_the_nodes_of_its_runtime(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GATHER)
    # The pods share the network of this machine.
    words = ["--master-port", "29511", "--nproc-per-node", "1", str(script)]
    role = Role("trainer", image="any", entrypoint="torchrun", args=words, num_replicas=2)
    made = stage(namespace, kubelet, tmp_path, AppDef("plain", [role]), results={"ranks": int})
    attempt = made.start()
    assert attempt.ended() == 0, attempt.log
    assert attempt.outputs["ranks"] == "2"


def test_what_a_trainjob_has_no_field_for_patches_its_runtime(
    namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    overlay = {
        "metadata": {"annotations": {"team": "vision"}},
        "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "imagePullSecrets": [{"name": "registry"}]},
    }
    app = python(
        TRAIN,
        resource=Resource(cpu=1, gpu=0, memMB=64),
        mounts=[BindMount(str(tmp_path / "data"), "/mnt", read_only=True)],
        metadata={"kubernetes": overlay},
    )
    made = stage(namespace, kubelet, tmp_path, app)
    made.config = {"nodeSelector": {"pool": "a"}, "resources": {"limits": {"memory": "96M"}}}
    attempt = made.start()
    assert attempt.ended() == 0, attempt.log
    pods = replicas(namespace)
    assert len(pods) == 2
    for pod in pods:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert pod["metadata"]["annotations"]["team"] == "vision"
        assert pod["metadata"]["labels"]["torchx-kfp/role"] == "trainer"
        assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["nodeSelector"] == {"pool": "a"}
        assert spec["restartPolicy"] == "OnFailure", "as JobSet has it for a runtime that says nothing"
        assert (container["name"], container["image"]) == ("node", "any")
        assert container["resources"]["limits"] == {"cpu": "1", "memory": "96M"}
        assert {"/mnt", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_runtime_of_the_namespace(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    namespace.create({**runtime("own", {}), "kind": "TrainingRuntime"})
    engine = TrainJob(runtime="own", kind="TrainingRuntime", logs="none")
    # The controller may not know the runtime yet.
    attempt = stage(namespace, kubelet, tmp_path, python(FAIL, max_retries=1), engine=engine).start()
    assert attempt.ended() == 7, attempt.log
    assert attempt.log.count("created TrainJob") == 2
    until(lambda: not namespace.list(COLLECTIONS["trainjob"]))


def test_what_trainer_refuses_fails_the_stage(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    attempt = stage(namespace, kubelet, tmp_path, python(TRAIN), engine=TrainJob(runtime="torch")).start()
    assert attempt.ended() == 1
    assert 'ClusterTrainingRuntime.trainer.kubeflow.org "torch" not found' in attempt.log
    reserved = python(TRAIN, env={"PET_NNODES": "2"})
    attempt = stage(namespace, kubelet, tmp_path / "reserved", reserved, name="reserved").start()
    assert attempt.ended() == 1
    assert "must not have reserved envs" in attempt.log


def test_a_queue_holds_a_trainjob_back(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Kueue suspends what has its label, and goes on with it later: here, the test does."""
    engine = TrainJob(queue="gpus")
    made = stage(namespace, kubelet, tmp_path, python("import time; time.sleep(1000)"), engine=engine)
    attempt = made.start()
    attempt.says("2 of 2 replicas run")
    found = only(namespace)
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    path = namespace.path(COLLECTIONS["trainjob"], found["metadata"]["name"])
    namespace.api.patch(path, {"spec": {"suspend": True}})
    attempt.says("it is suspended: a queue has not admitted it yet")
    namespace.api.patch(path, {"spec": {"suspend": False}})
    until(lambda: attempt.log.count("2 of 2 replicas run") == 2)
    assert "failed first" not in attempt.log
