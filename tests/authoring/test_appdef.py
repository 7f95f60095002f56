"""Fields of AppDef, Role and Resource in the compiled pipeline; ``engines/test_fields`` compares tables of all."""

from typing import Any

import pytest
from kfp import kubernetes
from torchx.schedulers import kubernetes_scheduler
from torchx.specs import AppDef, Resource, VolumeMount

from tests.authoring.apps import compile_pipeline, load, make_app
from tests.refusals import check_refusal
from torchx_kfp import component_from_app, task_from_app
from torchx_kfp.errors import AppDefError

pytestmark = pytest.mark.versions


def compile_app(app: AppDef, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stage's container and settings for Kubernetes."""

    def pipeline() -> None:
        task_from_app(app, **options)

    spec, platform = load(compile_pipeline(pipeline))
    (executor,) = spec["deploymentSpec"]["executors"].values()
    (settings,) = platform.values() or [{}]
    return executor["container"], settings


EFA = "vpc.amazonaws.com/efa"
#: Memory is in decimal megabytes, as TorchX's Kubernetes scheduler writes it.
RESOURCES: list[tuple[Resource, dict[str, Any]]] = [
    (
        Resource(cpu=2, gpu=3, memMB=3000),
        {
            "cpuLimit": 2.0,
            "resourceCpuLimit": "2000m",
            "memoryLimit": 3.0,
            "resourceMemoryLimit": "3000M",
            "accelerator": ("nvidia.com/gpu", "3"),
        },
    ),
    (
        Resource(cpu=0.5, gpu=0, memMB=-1),
        {"cpuLimit": 0.5, "resourceCpuLimit": "500m"},
    ),
    (Resource(cpu=-1, gpu=0, memMB=-1, devices={EFA: 2}), {"accelerator": (EFA, "2")}),
    (Resource(cpu=-1, gpu=-1, memMB=-1), {}),
]


@pytest.mark.parametrize(("resource", "expected"), RESOURCES)
def test_resources_become_limits(resource: Resource, expected: dict[str, Any]) -> None:
    found = compile_app(make_app(resource=resource))[0].get("resources", {})
    if accelerator := found.get("accelerator"):
        found["accelerator"] = (accelerator["resourceType"], accelerator["resourceCount"])
    assert found == expected


def test_the_instance_type_becomes_a_node_selector() -> None:
    capable = Resource(cpu=1, gpu=0, memMB=100, capabilities={"node.kubernetes.io/instance-type": "p3.2xlarge"})
    settings = compile_app(make_app(resource=capable))[1]
    assert settings["nodeSelector"] == {"labels": {"node.kubernetes.io/instance-type": "p3.2xlarge"}}


def test_enough_memory_for_kfps_launcher() -> None:
    for memory in (-1, 0, 64, 4000):
        component_from_app(make_app(resource=Resource(cpu=1, gpu=0, memMB=memory)))


def test_a_pod_has_no_settings_that_the_app_does_not_ask_for() -> None:
    assert compile_app(make_app())[1] == {}
    assert list(compile_app(make_app(), tracker_base="/tmp/r")[1]) == ["fieldPathAsEnv"]


def test_settings_are_in_the_form_that_kfp_kubernetes_writes() -> None:
    """The pod's settings are written as one message; KFP's own functions write the same."""
    app = make_app(mounts=[VolumeMount("data", "/data"), VolumeMount("models", "/models")])
    made: list[dict[str, Any]] = []

    def pipeline() -> None:
        task = component_from_app(app, tracked=True)(tracker_base="/tmp/r")
        found = task.platform_config["kubernetes"]
        made.append(found)
        task.platform_config = {}
        for entry in found["fieldPathAsEnv"]:
            kubernetes.use_field_path_as_env(task, entry["name"], entry["fieldPath"])
        kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")
        kubernetes.mount_pvc(task, pvc_name="models", mount_path="/models")
        made.append(task.platform_config["kubernetes"])

    compile_pipeline(pipeline)
    assert made[0] == made[1]
    assert [entry["name"] for entry in made[0]["fieldPathAsEnv"]] == ["KFP_RUN_ID"]


@pytest.mark.skipif(
    not hasattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH"), reason="this torchx has no variables of fields"
)
def test_a_variable_that_names_a_field_of_the_pod() -> None:
    app = make_app(env={"NODE": "[FIELD_PATH]spec.nodeName", "A": "b", "L": "[FIELD_PATH]metadata.labels['${app_id}']"})
    container, settings = compile_app(app)
    assert settings["fieldPathAsEnv"] == [
        {"name": "NODE", "fieldPath": "spec.nodeName"},
        {"name": "L", "fieldPath": "metadata.labels['train']"},
    ]
    assert container["command"] == ["env", "A=b", "echo"]

    def pipeline(label: str) -> None:
        task_from_app(make_app(env={"L": f"[FIELD_PATH]metadata.labels['{label}']"}))

    check_refusal(AppDefError, lambda: compile_pipeline(pipeline), ["env['L']", "'trainer'"])
    app = make_app(env={"A=B": "[FIELD_PATH]spec.nodeName"})
    check_refusal(AppDefError, lambda: component_from_app(app), ["'A=B'", "variable", "'trainer'"])


def test_the_app_is_not_changed() -> None:
    app = make_app(args=["${app_id}"], env={"A": "${replica_id}"}, resource=Resource(1, 1, 100))
    before = repr(app)
    compile_app(app, tracker_base="/tmp")
    assert repr(app) == before
