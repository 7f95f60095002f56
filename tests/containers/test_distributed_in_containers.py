"""Distributed stages in containers: all replicas in one."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import signal
import subprocess
from pathlib import Path

import docker
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.containers.images import HOST_IMAGE, host_mounts
from tests.containers.test_local_docker import containers_of, start
from torchx_kfp import local, task_from_app
from torchx_kfp.local import Watch

MOUNTS = [f"{source}:{target}:ro" for source, target in host_mounts().items()]

#: The replicas meet at a port of their container, where no other one listens.
MEET = """
import os, socket, sys
from torchx_kfp.tracking import current_run
index, count = int(os.environ["TORCHX_REPLICA_ID"]), int(os.environ["TORCHX_NUM_REPLICAS"])
address = os.environ["TORCHX_RANK0_HOST"], 29500
if index == 0:
    with socket.create_server(address) as server:
        met = [server.accept()[0].recv(9).decode() for _ in range(count - 1)]
    current_run().put(met=",".join(sorted(met)), count=count)
else:
    while True:
        try:
            with socket.create_connection(address) as connection:
                connection.sendall(b"%d" % index)
            break
        except ConnectionRefusedError:
            pass
print(index, "has met the others of", count, *sys.argv[1:])
"""


def test_all_replicas_in_one_container(docker_client: docker.DockerClient, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(tracker_base: str):
        role = Role("worker", HOST_IMAGE, entrypoint="python", args=["-c", MEET], num_replicas=3)
        options = {"tracker_base": tracker_base, "results": {"met": str}, "engine": "job"}
        # Each of them has the port to itself.
        for name in ("a", "b"):
            task_from_app(AppDef("meet", roles=[role]), name=name, **options)
        script = "[ $TORCHX_REPLICA_ID = 1 ] && exit 3; exec sleep 300"
        failing = Role("worker", HOST_IMAGE, entrypoint="sh", args=["-c", script], num_replicas=2)
        task_from_app(AppDef("fail", roles=[failing]), name="fail", engine="job")
        # A launcher without a program around it is the first process of its container.
        task_from_app(AppDef("kill", roles=[killing()]), name="kill", engine="job")

    result = local.run(
        pipeline,
        {"tracker_base": str(tmp_path / "results")},
        output_dir=tmp_path / "runs",
        docker=True,
        mounts=MOUNTS,
        watch=Watch(),
        grace=1,
    )
    assert {stage.name: (stage.exit_code, stage.replicas) for stage in result.stages} == {
        "a": (0, 3),
        "b": (0, 3),
        "fail": (3, 2),
        "kill": (-signal.SIGKILL, 2),
    }
    assert [result[name].outputs["met"] for name in ("a", "b")] == ["1,2", "1,2"]
    assert containers_of(docker_client, result.run_id) == []


def killing() -> Role:
    script = "[ $TORCHX_REPLICA_ID = 1 ] && kill -9 $$$$; exec sleep 300"  # TorchX turns $$ into $
    return Role("worker", HOST_IMAGE, entrypoint="sh", args=["-c", script], num_replicas=2)


def test_replicas_in_a_container_get_the_signal(docker_client: docker.DockerClient, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline():
        script = "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.1; done"
        role = Role("worker", HOST_IMAGE, entrypoint="sh", args=["-c", script], num_replicas=2)
        task_from_app(AppDef("wait", roles=[role]), name="wait", engine="job")

    runner = start(pipeline, tmp_path, *(f"--mount={mount}" for mount in MOUNTS), stdout=subprocess.DEVNULL)
    assert runner.stderr is not None
    seen = 0
    while seen < 2:
        line = runner.stderr.readline()
        assert line
        seen += " | ready" in line
    runner.send_signal(signal.SIGTERM)
    _, stderr = runner.communicate(timeout=120)
    assert runner.returncode == 128 + signal.SIGTERM
    assert stderr.count(" | bye") == 2
