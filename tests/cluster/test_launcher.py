"""The launcher of a distributed stage against a real API server, Job controller, garbage collector and RBAC."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef, BindMount, Resource, RetryPolicy, Role

from components.ddp import component as ddp
from tests.authoring.apps import HOSTILE, PLAIN
from tests.cluster.api import Object
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import secret
from tests.cluster.namespaces import Namespace
from tests.cluster.stages import TRAIN, Stage, python, replicas, waiting
from tests.cluster.waiting import until
from tests.pipelines.regenerate import REPOSITORY
from torchx_kfp import engines
from torchx_kfp.tracking import FsspecResultTracker


def jobs(namespace: Namespace) -> list[Object]:
    return namespace.list("batch/v1/jobs")


def test_a_stage_that_is_not_tracked(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    program = "import os; print(sorted(name for name in os.environ if name.startswith('TORCHX_')))"
    attempt = Stage(namespace, kubelet, tmp_path, python(program), tracked=False, engine="job").start()
    assert attempt.ended() == 0
    assert "trainer/1 | ['TORCHX_NUM_REPLICAS', 'TORCHX_RANK0_HOST', 'TORCHX_REPLICA_ID']" in attempt.log


def test_every_word_arrives_byte_for_byte(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    words = [*HOSTILE, *PLAIN]
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['WORDS'], os.environ['ME']]))"
    env = {"WORDS": "\n".join(words), "ME": "I am ${replica_id}, $(HOME)"}
    app = python(program, arguments=[*words, "x${replica_id}y$$(HOME)"], env=env)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    assert attempt.ended() == 0, attempt.log
    for index in "01":
        (line,) = [line for line in attempt.log.splitlines() if line.startswith(f"trainer/{index} | [")]
        expected = [[*words, f"x{index}y$$(HOME)"], env["WORDS"], f"I am {index}, $(HOME)"]
        assert json.loads(line.partition(" | ")[2]) == expected


def test_the_number_of_replicas_is_known_when_it_runs(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app = python("import os; print('n =', os.environ['TORCHX_NUM_REPLICAS'])", replicas=4)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job", replicas=3).start()
    assert attempt.ended() == 0
    assert attempt.log.count("n = 3") == 3


def test_secrets_resources_and_settings_of_the_task(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    namespace.create(secret("s3", key="hidden"))
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


def test_a_program_that_does_not_exist(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    role = Role("trainer", image="any", entrypoint="no-such-program", num_replicas=2)
    attempt = Stage(namespace, kubelet, tmp_path, AppDef("train", [role]), engine="job").start()
    assert attempt.ended() in (127, 128), "of the shell of replica 0, or of the container of replica 1"
    assert "no-such-program" in attempt.log


def test_iterations_of_a_loop_have_their_own_objects(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app, go = waiting(tmp_path, replicas=1)
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job")
    nodes = [f"run-x.root.for-loop-2.iteration-iterations({n}:{n}).iteration-item.train.executor({{}})" for n in "01"]
    attempts = [stage.start(node=node) for node in nodes]
    until(lambda: len(jobs(namespace)) == 2)
    go.touch()
    assert [attempt.ended() for attempt in attempts] == [0, 0]


def test_a_node_is_lost(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    attempt.says("trainer/1 | waits")
    lost = next(name for pod in replicas(namespace) if "-1-" in (name := pod["metadata"]["name"]))
    kubelet.lose_pod(lost)
    kubelet.fail_lost(lost)
    attempt.says(
        f"trainer/1 failed with exit code 1 (DeletionByPodGC: PodGC: node no longer exists); it was the pod {lost}"
    )
    namespace.api.delete(namespace.path("pods", lost), gracePeriodSeconds=0)
    assert attempt.ended() == 1
    until(lambda: not jobs(namespace) and not replicas(namespace))


def test_what_keeps_replicas_waiting_is_said_once(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    kubelet.hold("ImagePullBackOff", 'Back-off pulling image "missing:1"', image="missing:1")
    role = Role("trainer", image="missing:1", entrypoint="true", num_replicas=2)
    engine = engines.Job(launcher_image="any")
    attempt = Stage(namespace, kubelet, tmp_path, AppDef("train", [role]), engine=engine).start()
    text = 'trainer/0 waits: ImagePullBackOff: Back-off pulling image "missing:1"'
    attempt.says(text)
    time.sleep(1.5)
    assert attempt.log.count(text) == 1
    kubelet.release("missing:1")
    assert attempt.ended() == 0


def test_a_quota_for_pods(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    namespace.create(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    )
    until(lambda: namespace.list("resourcequotas")[0].get("status", {}).get("hard"))
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    attempt.says("it has no pods yet")
    attempt.says("kubectl describe jobs.batch train-")


def test_a_quota_for_jobs(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    quota = {"hard": {"count/jobs.batch": "0"}}
    namespace.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": quota})
    until(lambda: namespace.list("resourcequotas")[0].get("status", {}).get("hard"))
    attempt = Stage(namespace, kubelet, tmp_path, python(TRAIN), engine="job").start()
    assert attempt.ended() == 1
    assert "exceeded quota: none" in attempt.log
    assert "rbac" not in attempt.log, "a Role would not help"


def test_a_right_is_missing(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    attempt = Stage(namespace, kubelet, tmp_path, python(TRAIN), engine="jobset").start()
    assert attempt.ended() == 1
    assert "cannot get resource" in attempt.log
    account = f"--namespace {namespace.name} --service-account pipeline-runner"
    assert f"torchx-kfp rbac --engine jobset {account} | kubectl apply -f -" in attempt.log
    assert attempt.log.count("jobsets.jobset.x-k8s.io") == 1


def test_a_manifest_that_the_cluster_rejects(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app = python(TRAIN, metadata={"kubernetes": {"spec": {"restartPolicy": "Always"}}})
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    assert attempt.ended() == 1
    assert "422" in attempt.log
    assert "spec.template.spec.restartPolicy" in attempt.log


def test_somebody_else_deletes_it(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    attempt.says("trainer/0 | waits")
    name = jobs(namespace)[0]["metadata"]["name"]
    namespace.api.delete(namespace.path("batch/v1/jobs", name), {"propagationPolicy": "Background"})
    assert attempt.ended() == 1
    assert f"{name} was deleted, but not by this stage" in attempt.log


def test_replicas_that_fail_are_started_again(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    program = """
import os, sys
me = sys.argv[1] + os.environ["TORCHX_REPLICA_ID"]
print("tries")
if not os.path.exists(me):
    open(me, "w").close()
    sys.exit(3)
"""
    app = python(program, arguments=[str(tmp_path / "me")], max_retries=2, retry_policy=RetryPolicy.REPLICA)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    assert attempt.ended() == 0, attempt.log
    assert attempt.log.count("| tries") == 4


def test_a_job_that_fails_is_made_again(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """The launcher makes another Job, whose run id is another one: nobody sees what the first one has recorded."""
    program = """
import os, sys
from torchx_kfp.tracking import current_run
again = os.environ["TORCHX_JOB_ID"].endswith("_2")
if os.environ["TORCHX_REPLICA_ID"] == "0":
    current_run().put({"loss": 0.5} if again else {"stale": 1})
sys.exit(0 if again else 3)
"""
    app = python(program, max_retries=1)
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job", results={"loss": float})
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert "torchx-kfp: attempt 2 of 2: the application ended with exit code 3" in attempt.log
    assert attempt.run_id.endswith("_2")
    assert FsspecResultTracker(str(stage.base))[attempt.run_id] == {"loss": 0.5}
    until(lambda: len(jobs(namespace)) == 1)


@pytest.mark.parametrize("logs", ["first", "none"])
def test_whose_output_the_log_has(namespace: Namespace, kubelet: Kubelet, tmp_path: Path, logs: Any) -> None:
    program = "import os, sys; print('hello'); sys.exit(int(os.environ['TORCHX_REPLICA_ID']) * 3)"
    attempt = Stage(namespace, kubelet, tmp_path, python(program), engine=engines.Job(logs=logs)).start()
    assert attempt.ended() == 3
    assert ("\ntrainer/0 | hello" in attempt.log) == (logs == "first")
    assert "\ntrainer/1 | hello" not in attempt.log
    assert attempt.log.endswith("  trainer/1 | hello\n"), "what failed is shown in any case"


def test_no_result_is_lost(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    stage = Stage(namespace, kubelet, tmp_path, python(TRAIN), engine="job", results={"loss": float})
    attempt = stage.start()
    assert attempt.ended() == 0
    assert FsspecResultTracker(str(stage.base))[attempt.run_id] == {"loss": 0.25}


@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
def test_nodes_of_torchrun_meet_by_name(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """A training of two nodes, as ``pipelines/ddp.py`` has it."""
    kubelet.working_folder = REPOSITORY
    app = ddp.train(epochs=3, checkpoints=str(tmp_path / "checkpoints"))
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job", results={"loss": float, "accuracy": float})
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    assert float(attempt.outputs["loss"]) < 2
    assert FsspecResultTracker(str(stage.base))[attempt.run_id]["world_size"] == 2
