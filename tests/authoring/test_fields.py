"""Every field of AppDef, Role and Resource is mapped, rejected or ignored on purpose."""

import dataclasses
from typing import Any

import pytest
from torchx.schedulers import kubernetes_scheduler
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount
from torchx.specs.named_resources_aws import NAMED_RESOURCES

from tests.authoring.apps import compile_pipeline, load, make_app
from tests.facts import says
from torchx_kfp import component_from_app, task_from_app
from torchx_kfp.authoring.fields import FIELDS
from torchx_kfp.authoring.options import StageSettings, read_settings
from torchx_kfp.authoring.plan import plan_stage
from torchx_kfp.errors import AppDefError, ChannelError

pytestmark = pytest.mark.versions


def compile_app(app: AppDef, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the stage's task, executor and settings for Kubernetes."""

    def pipeline() -> None:
        task_from_app(app, **options)

    spec, platform = load(compile_pipeline(pipeline))
    (task,) = spec["root"]["dag"]["tasks"].values()
    (executor,) = spec["deploymentSpec"]["executors"].values()
    (kubernetes,) = platform.values() or [{}]
    return task, executor["container"], kubernetes


@pytest.mark.parametrize("kind", [AppDef, Role, Resource], ids=lambda kind: kind.__name__)
def test_every_field_of_the_installed_torchx_is_accounted_for(kind: type) -> None:
    known = FIELDS[kind.__name__]
    assert {field.name for field in dataclasses.fields(kind)} <= set(known)
    assert all(reason.startswith(("mapped", "rejected", "ignored")) for reason in known.values())
    # The reason for ignoring or rejecting a field is given.
    assert all(": " in reason for reason in known.values() if not reason.startswith("mapped"))


def test_resources_become_requests_and_limits() -> None:
    _, container, _ = compile_app(make_app(resource=Resource(cpu=2, gpu=3, memMB=3000)))
    resources = container["resources"]
    assert resources["resourceCpuLimit"] == resources["resourceCpuRequest"] == "2000m"
    assert resources["cpuLimit"] == 2.0
    # These are decimal megabytes, as TorchX's Kubernetes scheduler writes them.
    assert resources["resourceMemoryLimit"] == resources["resourceMemoryRequest"] == "3000M"
    assert resources["memoryLimit"] == 3.0
    accelerator = resources["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "3")


def test_half_a_core() -> None:
    _, container, _ = compile_app(make_app(resource=Resource(cpu=0.5, gpu=0, memMB=-1)))
    assert container["resources"] == {
        "cpuLimit": 0.5,
        "cpuRequest": 0.5,
        "resourceCpuLimit": "500m",
        "resourceCpuRequest": "500m",
    }


def test_no_resources_ask_for_nothing() -> None:
    assert "resources" not in compile_app(make_app())[1]


def test_one_device_type_becomes_the_accelerator() -> None:
    efa = Resource(cpu=1, gpu=0, memMB=100, devices={"vpc.amazonaws.com/efa": 2})
    accelerator = compile_app(make_app(resource=efa))[1]["resources"]["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("vpc.amazonaws.com/efa", "2")


def test_the_instance_type_becomes_a_node_selector() -> None:
    capable = Resource(cpu=1, gpu=0, memMB=100, capabilities={"node.kubernetes.io/instance-type": "p3.2xlarge"})
    kubernetes = compile_app(make_app(resource=capable))[2]
    assert kubernetes["nodeSelector"] == {"labels": {"node.kubernetes.io/instance-type": "p3.2xlarge"}}


def test_every_named_resource_of_torchx_becomes_a_stage() -> None:
    for name, make in NAMED_RESOURCES.items():
        resource = make()
        if len(resource.devices) + (resource.gpu > 0) > 1:
            # The machine has accelerators and network devices.
            with pytest.raises(AppDefError, match="types of accelerators"):
                plan_stage(make_app(resource=resource))
        else:
            assert plan_stage(make_app(resource=resource)).resources.memory, name


def test_volume_mounts_become_claims() -> None:
    kubernetes = compile_app(make_app(mounts=[VolumeMount("data", "/data"), VolumeMount("models", "/models")]))[2]
    assert [(mount["constant"], mount["mountPath"]) for mount in kubernetes["pvcMount"]] == [
        ("data", "/data"),
        ("models", "/models"),
    ]


@pytest.mark.parametrize("memory", [1, 32, 63])
def test_less_memory_than_kfps_launcher_needs_is_said(memory: int) -> None:
    app = make_app(resource=Resource(cpu=1, gpu=0, memMB=memory))
    fact = rf"memMB of role 'trainer' is {memory}, .*KFP's launcher .*64 MB.*OOMKilled.*Add 64 .*memMB at -1"
    with pytest.warns(UserWarning, match=fact) as caught:
        component_from_app(app)
    assert [warning.filename for warning in caught] == [__file__]


def test_enough_memory_for_kfps_launcher() -> None:
    for memory in (-1, 0, 64, 4000):
        component_from_app(make_app(resource=Resource(cpu=1, gpu=0, memMB=memory)))


def test_a_function_is_not_an_appdef() -> None:
    with pytest.raises(AppDefError, match=says("'make_app'", "make_app(...)", "component_from_function(make_app)")):
        component_from_app(make_app)  # type: ignore[arg-type]


def test_labels_are_those_of_torchx_kubernetes_scheduler() -> None:
    app = make_app("my-app", role="trainer")
    labels = compile_app(app, labels=True)[2]["podMetadata"]["labels"]
    assert labels == kubernetes_scheduler.pod_labels(app, 0, app.roles[0], 0, "my-app")
    assert labels["app.kubernetes.io/managed-by"] == "torchx.pytorch.org"


def test_pods_have_torchx_labels_where_they_are_asked_for() -> None:
    assert compile_app(make_app())[2] == {}
    assert list(compile_app(make_app(), tracker_base="/tmp/r")[2]) == ["fieldPathAsEnv"]


def test_labels_are_valid_for_any_name() -> None:
    labels = plan_stage(make_app("dé " + "x" * 80, role="r/1"), StageSettings(labels=True)).labels
    assert labels["torchx.pytorch.org/app-name"] == "d..xxx".ljust(63, "x")
    assert labels["torchx.pytorch.org/role-name"] == "r.1"


def test_settings_are_in_the_form_that_kfp_kubernetes_writes() -> None:
    """The pod's settings are written as one message; KFP's own functions write the same."""
    from kfp import kubernetes

    app = make_app(mounts=[VolumeMount("data", "/data")])
    plan = plan_stage(app, StageSettings(tracker_base=("/tmp/results",), labels=True))
    made: list[dict[str, Any]] = []

    def pipeline() -> None:
        task = component_from_app(app, tracked=True, labels=True)(tracker_base="/tmp/r")
        made.append(task.platform_config["kubernetes"])
        task.platform_config = {}
        for name, value in plan.labels.items():
            kubernetes.add_pod_label(task, name, value)
        for name, path in plan.field_paths.items():
            kubernetes.use_field_path_as_env(task, name, path)
        kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")
        made.append(task.platform_config["kubernetes"])

    compile_pipeline(pipeline)
    assert made[0] == made[1]


@pytest.mark.skipif(
    not hasattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH"), reason="this torchx has no variables of fields"
)
def test_a_variable_that_names_a_field_of_the_pod() -> None:
    app = make_app(env={"NODE": "[FIELD_PATH]spec.nodeName", "A": "b", "L": "[FIELD_PATH]metadata.labels['${app_id}']"})
    _, container, kubernetes = compile_app(app)
    assert kubernetes["fieldPathAsEnv"] == [
        {"name": "NODE", "fieldPath": "spec.nodeName"},
        {"name": "L", "fieldPath": "metadata.labels['train']"},
    ]
    assert container["command"] == ["env", "A=b", "echo"]

    def pipeline(label: str) -> None:
        task_from_app(make_app(env={"L": f"[FIELD_PATH]metadata.labels['{label}']"}))

    with pytest.raises(ChannelError, match=says("env['L']", "'trainer'")):
        compile_pipeline(pipeline)
    with pytest.raises(AppDefError, match=says("'A=B'", "variable", "'trainer'")):
        plan_stage(make_app(env={"A=B": "[FIELD_PATH]spec.nodeName"}))


def test_overrides_are_resolved() -> None:
    role = make_app().roles[0]
    if not hasattr(role, "overrides"):
        pytest.skip("this torchx has no overrides")
    role.overrides = {"image": lambda: "built:1"}
    assert plan_stage(AppDef("train", [role])).image == "built:1"


def test_the_app_is_not_changed() -> None:
    app = make_app(args=["${app_id}"], env={"A": "${replica_id}"}, resource=Resource(1, 1, 100))
    before = repr(app)
    plan_stage(app, StageSettings(tracker_base=("/tmp",)))
    assert repr(app) == before


def resource_app(**fields: Any) -> AppDef:
    return make_app(resource=Resource(**{"cpu": 1, "gpu": 0, "memMB": 100, **fields}))


REFUSED = {
    "not an AppDef": (lambda: "train", says("'train'", "(str)", "component", "function")),
    "no role": (lambda: AppDef("train"), says("'train'", "no roles", "AppDef(name=..., roles=[Role(...)])")),
    "two roles": (
        lambda: AppDef("train", [Role("a", "i", entrypoint="e"), Role("b", "i", entrypoint="e")]),
        says(
            "'train'", "2 roles ('a', 'b')", "engine='jobset'", "JobSet controller", "engine='volcano'", "for each role"
        ),
    ),
    "replicas": (
        lambda: make_app(num_replicas=4),
        says("num_replicas=4", "engine='job' needs nothing", "engine='jobset'", "'1xN'", "'trainer'", "'train'"),
    ),
    "no replicas": (lambda: make_app(num_replicas=0), r"has num_replicas=0"),
    "min_replicas": (lambda: make_app(min_replicas=2), r"has min_replicas=2"),
    "no app name": (lambda: make_app(""), says("AppDef.name", "''")),
    "no role name": (lambda: make_app(role=""), says("''", "'train'", "role")),
    "no entrypoint": (lambda: AppDef("train", [Role("r", "image")]), says("Role.entrypoint", "'r'", "'train'")),
    "empty entrypoint": (lambda: make_app(entrypoint=""), r"has no entrypoint"),
    "option as entrypoint": (lambda: make_app(entrypoint="-m"), says("'-m'", "Role.args", "'trainer'", "'train'")),
    "no image": (lambda: make_app(image=""), says("Role.image", "'trainer'", "'train'")),
    "image with a template": (
        lambda: make_app(image="a:{{b}}"),
        says("'a:{{b}}'", "image", "'trainer'", "'train'"),
    ),
    "bind mount": (
        lambda: make_app(mounts=[BindMount("/a", "/b")]),
        says(
            "BindMount(src_path='/a'", "VolumeMount", "PersistentVolumeClaim", "engine='job'", "'trainer'", "dst_path="
        ),
    ),
    "device mount": (
        lambda: make_app(mounts=[DeviceMount("/dev/fuse", "/dev/fuse")]),
        says("DeviceMount(", "engine='job'", "'trainer'"),
    ),
    "read-only volume": (
        lambda: make_app(mounts=[VolumeMount("a", "/b", read_only=True)]),
        says("read_only=False", "ReadOnlyMany", "engine='job'", "'trainer'", "VolumeMount"),
    ),
    "pod overlay": (
        lambda: make_app(metadata={"kubernetes": {"spec": {}}}),
        says("'kubernetes'", "kfp.kubernetes", "task_from_app", "engine='job'", "'trainer'", "'train'"),
    ),
    "negative retries": (lambda: make_app(max_retries=-1), says("max_retries", "'trainer'", "-1")),
    "half a retry": (lambda: make_app(max_retries=1.5), says("max_retries", "1.5", "'trainer'")),
    "text as retries": (lambda: make_app(max_retries="2"), says("'2'", "(str)", "max_retries", "'trainer'")),
    "text as cpu": (lambda: resource_app(cpu="2"), says("resource.cpu", "'trainer'", "'2'", "(str)")),
    "truth as memory": (lambda: resource_app(memMB=True), says("resource.memMB", "'trainer'", "True")),
    "endless cpu": (
        lambda: resource_app(cpu=float("inf")),
        says("resource.cpu", "'trainer'", "inf", "(float)"),
    ),
    "no number of retries": (
        lambda: make_app(max_retries=float("nan")),
        says("nan", "(float)", "max_retries", "'trainer'"),
    ),
    "text as args": (lambda: make_app(args="abc"), says("'abc'", "(str)", "role", "list", "'trainer'", "'train'")),
    "no args": (lambda: make_app(args=None), says("(NoneType)", "role", "list", "'trainer'", "'train'")),
    "pairs as env": (lambda: make_app(env=[("a", "b")]), says("(list)", "role", "dict", "'trainer'", "'train'", "'a'")),
    "number as a variable": (lambda: make_app(env={5: "x"}), says("(int)", "role", "dict", "'trainer'", "'train'")),
    "text as a mount": (lambda: make_app(mounts=["x"]), says("'x'", "(str)", "role", "list", "'trainer'", "'train'")),
    "no metadata": (lambda: make_app(metadata=None), says("None", "metadata", "role", "'trainer'", "'train'")),
    "no resource": (lambda: make_app(resource=None), says("torchx.specs.Resource", "role", "'trainer'", "'train'")),
    "no capabilities": (lambda: resource_app(capabilities=None), says("capabilities", "dict", "'trainer'", "'train'")),
    "a role as roles": (
        lambda: AppDef("train", Role("r", "image")),
        says("'train'", "roles", "list", "name=", "'r'", "image="),
    ),
    "text as a role": (
        lambda: AppDef("train", ["x"]),
        says("'train'", "'x'", "(str)", "roles", "list"),
    ),
    "part of a gpu": (
        lambda: resource_app(gpu=0.5),
        says("0.5", "nvidia.com/gpu", "'trainer'"),
    ),
    "gpu and device": (
        lambda: resource_app(gpu=1, devices={"vpc.amazonaws.com/efa": 1}),
        says("nvidia.com/gpu", "vpc.amazonaws.com/efa", "engine='job'", "'trainer'", "Ask"),
    ),
    "two devices": (
        lambda: resource_app(devices={"a/b": 1, "c/d": 1}),
        says("2 types", "(a/b, c/d)", "engine='job'"),
    ),
    "capability": (
        lambda: resource_app(capabilities={"gpu_type": "a100"}),
        says(
            "'gpu_type'",
            "'a100'",
            "kfp.kubernetes.add_node_selector",
            "resource.capabilities",
            "'trainer'",
            "'node.kubernetes.io/instance-type'",
        ),
    ),
    "argument that is no string": (
        lambda: make_app(args=["--epochs", 3]),
        says("args[1]", "'trainer'", "(int)", "'3'"),
    ),
    "variable: no string": (
        lambda: make_app(env={"A": 1}),
        says("env['A']", "'trainer'", "(int)", "'1'"),
    ),
    "variable without a name": (lambda: make_app(env={"": "x"}), says("'trainer'", "''", "role")),
    "variable with =": (
        lambda: make_app(env={"A=B": "x"}),
        says("'A=B'", "variable", "'trainer'"),
    ),
    "variable like an option": (lambda: make_app(env={"-i": "x"}), r"has the name '-i'"),
    "entrypoint with = behind env": (
        lambda: make_app(entrypoint="./a=b", env={"A": "x"}),
        says("'='", "'./a=b'", "variable", "'trainer'", "`env`", "Call"),
    ),
    "NUL": (lambda: make_app(args=["a\0b"]), says("args[0]", "'trainer'", "NUL", "Remove")),
    "surrogate": (lambda: make_app(args=["\ud800"]), says("args[0]", "'trainer'", "Unicode")),
    "long argument": (
        lambda: make_app(args=["x" * 131072]),
        says("args[0]", "'trainer'", "131072", "131071", "Put"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, text = REFUSED[case]
    with pytest.raises(AppDefError, match=text):
        plan_stage(make())


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("base_image", "old:1", says("base_image='old:1'", "deprecated", "'trainer'", "'train'")),
    ],
)
def test_refused_where_this_torchx_has_the_field(field: str, value: Any, text: str) -> None:
    if field not in {known.name for known in dataclasses.fields(Role)}:
        pytest.skip(f"this torchx has no Role.{field}")
    with pytest.raises(AppDefError, match=text):
        plan_stage(make_app(**{field: value}))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda n: make_app(num_replicas=n),
            says("num_replicas", "'trainer'", "'train'"),
        ),
        (lambda n: make_app(max_retries=n), says("max_retries", "channel", "'trainer'", "'train'")),
        (lambda n: make_app(port_map={"http": n}), says("port_map", "channel", "'trainer'", "'train'")),
        (lambda n: make_app(mounts=[VolumeMount(f"{n}", "/x")]), says("mounts", "channel", "'trainer'", "'train'")),
        (lambda n: make_app(metadata={"a": [f"{n}"]}), says("metadata", "pipeline", "'trainer'", "'train'")),
        (lambda n: make_app(env={f"{n}": "x"}), says("env", "channel", "'trainer'", "'train'")),
        (
            lambda n: make_app(resource=Resource(cpu=n, gpu=0, memMB=100)),
            says("set_cpu_limit(channel)", "task_from_app", "set_memory_limit", "'trainer'"),
        ),
        (lambda n: make_app(f"train-{n}"), says("AppDef.name", "channel")),
        (lambda n: make_app(role=f"{n}"), says("role", "pipeline", "'train'")),
    ],
)
def test_channels_where_none_can_work(make: Any, text: str) -> None:
    def pipeline(n: int = 1) -> None:
        task_from_app(make(n))

    with pytest.raises(ChannelError, match=text):
        compile_pipeline(pipeline)


def test_the_name_of_a_stage_must_be_text() -> None:
    with pytest.raises(AppDefError, match=says("''", "stage")):
        plan_stage(make_app(), read_settings({"name": ""}, None, {}))
