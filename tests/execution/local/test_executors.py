"""What containers get: the stages that are chosen, mounts, bases and limits."""

import re

import pytest
from kfp import dsl, kubernetes

from tests.execution.local.test_bases import one
from tests.execution.local.test_containers import no_command
from tests.facts import says
from torchx_kfp.errors import TrackerError
from torchx_kfp.execution.local.executors.mounts import (
    Mount,
    parse_mount,
    tracker_bases,
    unseen_artifact,
)
from torchx_kfp.execution.local.given_keys import GivenKeys
from torchx_kfp.execution.local.gpus import Gpu, Gpus
from torchx_kfp.execution.local.preflight import check_bases, find_not_applied
from torchx_kfp.execution.local.run_options import RunOptions
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.placeholders import Limits, parse_quantity, read_limits
from torchx_kfp.execution.pipeline.spec import ArtifactType
from torchx_kfp.execution.pipeline.walk import known_stages
from torchx_kfp.local import load_pipeline
from torchx_kfp.tracking.record_tracker import RecordTracker


def test_a_mount_has_a_folder_a_place_and_a_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    here = str(tmp_path)
    assert parse_mount(here) == Mount(here, here)
    assert parse_mount(".:ro") == Mount(here, here, read_only=True)
    assert parse_mount("~:/data/:rw") == Mount(here, "/data")


def test_a_stage_that_takes_a_file_of_this_machine_needs_a_mount_that_shows_it(tmp_path):
    def unseen(uri, *mounts, **facts):
        return unseen_artifact({"data": Artifact("data", ArtifactType("system.Dataset"), uri, **facts)}, mounts)

    here = Mount(str(tmp_path), str(tmp_path), read_only=True)
    for uri, facts in ((f"{tmp_path}/a", {}), (f"file://{tmp_path}/x/../a", {}), ("s3://b/a", {"custom_path": "/x"})):
        assert unseen(uri, **facts).uri == uri
    assert unseen("s3://bucket/a") is unseen(f"{tmp_path}/a", here) is None
    assert unseen(f"{tmp_path}/a", Mount(str(tmp_path), "/elsewhere"))


def test_tracker_bases_of_this_machine(tmp_path):
    command = ["env", f"TORCHX_TRACKER_BASE={tmp_path}/a/", "sh"]
    inputs = {"tracker_base": f"file://{tmp_path}/b%20c", "pipelinechannel--tracker_base": "s3://bucket", "x": "/etc"}
    assert tracker_bases(command, inputs) == [f"{tmp_path}/a", f"{tmp_path}/b%20c"]
    # The tracker takes a URL of a file as it is, too.
    assert str(RecordTracker(f"file://{tmp_path}/b%20c", patience=0).folder) == f"{tmp_path}/b%20c"
    with pytest.raises(
        ValueError, match=says("records results at 'results'", "another folder in a container", "absolute path", "Give")
    ):
        tracker_bases([], {"tracker_base": "results"})


QUANTITIES = {"500m": 0.5, "2": 2, "1.5Gi": 1.5 * 2**30, "64M": 64e6, "1k": 1e3, "1e3": 1e3, "2E": 2e18, "1Ei": 2**60}


def test_quantities_of_kubernetes_are_numbers():
    assert {text: parse_quantity(text) for text in QUANTITIES} == QUANTITIES
    for text in ("", "many", "1.2.3", "-1", "1K", "5 GB", "mi"):
        with pytest.raises(ValueError, match=says("is not a quantity", "500m", "1.5Gi")):
            parse_quantity(text)


def test_limits_of_all_forms():
    assert read_limits({"cpuLimit": 1.5, "memoryLimit": 0.5}, {}) == Limits(1.5, 500_000_000)
    both = {"cpuLimit": 1.0, "resourceCpuLimit": "{{$.inputs.parameters['c']}}", "resourceMemoryLimit": "1Gi"}
    assert read_limits(both, {"c": "250m"}) == Limits(0.25, 2**30)
    accelerator = {"accelerator": {"type": "nvidia.com/gpu", "count": "2", "resourceCount": "1"}}
    assert read_limits(accelerator, {}) == Limits(gpus=1)
    other = {"accelerator": {"resourceType": "vpc.amazonaws.com/efa", "resourceCount": "1"}}
    assert read_limits(other, {}) == Limits()
    assert read_limits({"cpuRequest": 2.0, "resourceMemoryRequest": "1G"}, {}) == Limits()


def test_what_processes_cannot_have_containers_can(tmp_path):
    @dsl.pipeline
    def pipeline():
        task = no_command().set_cpu_limit("1").set_accelerator_limit(1).set_accelerator_type("nvidia.com/gpu")
        kubernetes.empty_dir_mount(task, "scratch", "/no/such/folder")
        kubernetes.mount_pvc(task, "claim", "/no/such/data")
        kubernetes.set_image_pull_policy(task, "Always")

    loaded = load_pipeline(pipeline)
    mount = "the volume claim 'claim' (give --mount FOLDER:/no/such/data)"
    inside = GivenKeys(in_containers=True)
    none = Gpus(lacks="the container engine has none")
    lacks = "limits of GPUs (the container engine has none)"
    assert find_not_applied(loaded, given=inside, gpus=none) == (lacks, mount)
    mounts = (parse_mount(f"{tmp_path}:/no/such/data"),)
    assert find_not_applied(loaded, given=inside, mounts=mounts, gpus=none) == (lacks,)
    assert find_not_applied(loaded, given=inside, mounts=mounts, gpus=Gpus([Gpu("0", "0")])) == ()
    assert find_not_applied(loaded) == (
        "an empty directory 'scratch' (make the directory /no/such/folder, or use --docker)",
        "cpu and memory limits",
        "image pull policies",
        "limits of GPUs (there are no GPUs)",
        "the volume claim 'claim' (make the directory /no/such/data, or use --docker)",
    )


def test_an_s3_server_of_this_machine_is_not_that_of_a_container():
    there, other, here = (f"http://{name}:9000" for name in ("seaweedfs.kubeflow", "store", "localhost"))

    @dsl.pipeline
    def pipeline():
        no_command().set_env_variable("AWS_ENDPOINT_URL", there)

    loaded = load_pipeline(pipeline)

    def said(own, **options):
        return find_not_applied(loaded, environ={"AWS_ENDPOINT_URL": own}, **options)

    inside = {"given": GivenKeys(in_containers=True)}
    assert said(there) == said(there, **inside) == ()
    used = f"AWS_ENDPOINT_URL={there} (your own AWS_ENDPOINT_URL is used)"
    assert said(here) == said(other) == said(other, **inside) == (used,)
    [instead] = said(here, **inside)
    assert re.search(says(f"your own AWS_ENDPOINT_URL={here}", "in a container", there), instead)


def test_a_base_in_a_containers_mount_is_another_folder_here(tmp_path):
    stages = list(known_stages(load_pipeline(one), {"tracker_base": "/proc/x/below"}))
    check_bases(stages, RunOptions(docker=True, mounts=(Mount(str(tmp_path), "/proc/x"),)))
    other = (Mount(str(tmp_path), "/proc/xy"), Mount("/proc", "/proc"))
    with pytest.raises(TrackerError, match="No result"):
        check_bases(stages, RunOptions(docker=True, mounts=other))
