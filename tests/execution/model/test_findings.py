"""Findings of a check about what works here, each with a pipeline that has nothing else."""

from collections.abc import Callable
from typing import Any, Optional

import pytest
from kfp import dsl, kubernetes

from tests.cases.parts import component, echo
from torchx_kfp.execution.local.preflight import check_pipeline
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.values import defaults_of


def findings_of(function: Callable[..., Any], arguments: dict[str, Any] | None = None) -> list[tuple[Kind, str]]:
    pipeline = load_pipeline(dsl.pipeline(function, name="checked"))
    return [(each.kind, str(each)) for each in check_pipeline(pipeline, {**defaults_of(pipeline), **(arguments or {})})]


def box(image: str = "python:3.11") -> Any:
    @dsl.container_component
    def box():
        return dsl.ContainerSpec(image=image, command=["true"])

    return box()


IMAGES = ["My Image:latest", "registry.example.com/Team/App:1", "repo/app:", "https://example.com/app:1", "a b", "a//b"]
GOOD_IMAGES = [
    *("x", "python:3.11", "REGISTRY.example.com:5000/team/app_1/b--c:V1.0_x", "localhost/app", "[::1]:5000/app"),
    f"ghcr.io/team/app@sha256:{'0' * 64}",
]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_that_kubernetes_refuses(image: str) -> None:
    said = f"task 'box' has the image {image!r}, which Kubernetes rejects, so its pod never starts. Write it as "
    [(kind, text)] = findings_of(lambda: box(image) and None)
    assert kind is Kind.WORKS_LOCALLY
    assert text.startswith(said)


@pytest.mark.parametrize("image", GOOD_IMAGES)
def test_an_image_that_kubernetes_takes(image: str) -> None:
    assert findings_of(lambda: box(image) and None) == []


REFUSED: dict[str, Callable[[Any], Any]] = {
    "requests 4 of cpu and has the limit 2:": lambda task: task.set_cpu_request("4").set_cpu_limit("2"),
    "requests 8G of memory and has the limit 4000M:": lambda task: task.set_memory_request("8G").set_memory_limit(
        "4000M"
    ),
    "has the secret 'My_Secret',": lambda task: kubernetes.use_secret_as_env(task, "My_Secret", {"key": "X"}),
    "has the key 'a b' of the secret 's',": lambda task: kubernetes.use_secret_as_env(task, "s", {"a b": "X"}),
    "has the config map 'C',": lambda task: kubernetes.use_config_map_as_volume(task, "C", "/c"),
    "has the volume claim 'Data_Set',": lambda task: kubernetes.mount_pvc(task, pvc_name="Data_Set", mount_path="/d"),
    "has the image pull secret 'S_1',": lambda task: kubernetes.set_image_pull_secrets(task, ["S_1"]),
    "has the label 'team' with the value 'my team!',": lambda task: kubernetes.add_pod_label(task, "team", "my team!"),
    "has the label or annotation 'my team',": lambda task: kubernetes.add_pod_annotation(task, "my team", "x"),
    "has the label or annotation 'A/b',": lambda task: kubernetes.add_node_selector(task, "A/b", "x"),
    "has the variable 'X=',": lambda task: task.set_env_variable("X=", "x").set_caching_options(False),
    "has a toleration with the operator 'Equals',": lambda task: kubernetes.add_toleration(
        task,
        key="k",
        operator="Equals",  # type: ignore[arg-type]  # wrong
    ),
    "has a toleration with the effect 'No',": lambda task: kubernetes.add_toleration(
        task,
        key="k",
        effect="No",  # type: ignore[arg-type]  # wrong
    ),
    "has a toleration with the operator Exists and the value 'v',": lambda task: kubernetes.add_toleration(
        task, key="k", operator="Exists", value="v"
    ),
    "mounts 2 volumes at /data:": lambda task: kubernetes.mount_pvc(
        kubernetes.mount_pvc(task, pvc_name="a", mount_path="/data"), pvc_name="b", mount_path="/data"
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_pod_that_kubernetes_refuses(said: str) -> None:
    [(kind, text)] = findings_of(lambda: REFUSED[said](box()) and None)
    assert kind is Kind.WORKS_LOCALLY
    assert text.startswith(f"task 'box' {said}")


def test_a_pod_that_kubernetes_takes() -> None:
    def pipeline() -> None:
        task = box().set_cpu_request("500m").set_cpu_limit("1").set_memory_request("128M").set_memory_limit("1Gi")
        kubernetes.use_secret_as_env(task, "my.secret-1", {"a_key.1": "X"})
        kubernetes.add_pod_label(task, "example.com/team", "A_b.c")
        kubernetes.add_pod_label(task, "empty", "")
        kubernetes.add_pod_annotation(task, "Example.com/Owner", "x")  # case does not matter
        kubernetes.add_toleration(task, key="gpu", operator="Exists", effect="NoExecute")
        kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")

    assert findings_of(pipeline) == []


def test_a_request_whose_limit_is_a_channel() -> None:
    def pipeline(memory: str = "1G") -> None:
        box().set_memory_request("2G").set_memory_limit(memory)

    [(kind, text)] = findings_of(pipeline)
    assert kind is Kind.MAY_FAIL
    assert "Kubernetes rejects a limit below the request" in text


CHANGED: dict[str, tuple[Kind, Callable[..., Any]]] = {}


def finds(kind: Kind, said: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        CHANGED[said] = kind, function
        return function

    return decorate


@finds(
    Kind.FAILS,
    "'a' as text in a setting of its pod (volume claim), 'claim-{a}', where KFP does not fill it in. Give a constant, "
    "or a channel without text around it",
)
def a_channel_in_a_claim(a: str = "x") -> None:
    kubernetes.mount_pvc(box(), pvc_name=f"claim-{a}", mount_path="/d")


@finds(Kind.FAILS, "task 'box' contains the channel 'a' as text in a setting of its pod (secret), 'key-{a}'")
def a_channel_in_a_secret(a: str = "x") -> None:
    kubernetes.use_secret_as_env(box(), secret_name=f"key-{a}", secret_key_to_env={"k": "K"})


@finds(Kind.FAILS, "task 'box' contains the channel 'a' as text in a setting of its pod (node selectors), 'gpu-{a}'")
def a_channel_in_a_node_selector(a: str = "x") -> None:
    kubernetes.add_node_selector(box(), "pool", f"gpu-{a}")


@finds(Kind.FAILS, "task 'box' contains the channel 'a' as text in a setting of its pod (pod labels and annotations)")
def a_channel_in_an_annotation(a: str = "x") -> None:
    kubernetes.add_pod_annotation(box(), "team", f"{a}")


@finds(Kind.FAILS, "'a' as text in its display name, 'train {a}', where KFP does not fill it in. Give a constant")
def a_channel_in_a_display_name(a: str = "x") -> None:
    box().set_display_name(f"train {a}")


@finds(Kind.FAILS, "task 'condition-1' contains the channel 'a' as text in its condition, ")
def a_channel_in_text_of_a_condition(a: str = "x", b: str = "pre-x") -> None:
    with dsl.If(b == f"pre-{a}"):
        box()


@finds(Kind.CHANGED, "in which KFP's compiler did not escape the backslash")
def a_backslash_in_a_condition(a: str = "C:\\temp") -> None:
    with dsl.If(a == "C:\\temp"):
        box()


@finds(Kind.CHANGED, "task 'box' sets 'MODE' on the task, which KFP's cache ignores")
def a_variable_of_a_cached_task() -> None:
    box().set_env_variable("MODE", "a")


@finds(Kind.CHANGED, "task 'box' has {{$.pipeline_job_name}} in its variable RUN, where KFP does not fill it in")
def a_placeholder_in_a_variable() -> None:
    box().set_env_variable("RUN", dsl.PIPELINE_JOB_NAME_PLACEHOLDER).set_caching_options(False)


@finds(Kind.CHANGED, "has the integer 9007199254740992 in its value")
def a_default_above_2_to_53(n: int = 9007199254740993) -> None:
    pass_on(n=n)


@finds(Kind.CHANGED, "has the integer 9007199254740992 in its input 'd'")
def a_constant_above_2_to_53() -> None:
    keep(d={"id": [9007199254740993]})


@finds(Kind.CHANGED, "in its items, and KFP passes numbers as doubles")
def an_item_above_2_to_53() -> None:
    with dsl.ParallelFor([9007199254740993]) as n:
        pass_on(n=n)


@finds(Kind.FAILS, "has no value for its input 'n': the loop item {'m': 1} has no field 'n'")
def an_item_without_a_field() -> None:
    with dsl.ParallelFor([{"n": 1}, {"m": 1}]) as it:
        pass_on(n=it.n)


@finds(Kind.WORKS_LOCALLY, "imports 'data.csv', and KFP's importer knows gs://")
def an_importer_of_a_file() -> None:
    dsl.importer(artifact_uri="data.csv", artifact_class=dsl.Dataset)


@finds(Kind.MAY_FAIL, "task 'uses-yaml' imports 'yaml', which the image python:3.11 lacks")
def an_import_that_the_image_lacks() -> None:
    uses_yaml()


@finds(Kind.MAY_FAIL, "task 'uses-the-project' imports 'tests', which the image python:3.11 lacks")
def an_import_of_the_project() -> None:
    uses_the_project()


@dsl.container_component
def say(text: Optional[str] = None):  # noqa: UP045 (for the oldest kfp)
    return dsl.ContainerSpec(image="busybox", command=["echo", text])


@finds(Kind.MAY_FAIL, "task 'say' is not given the input 'text', which its command contains")
def an_unset_parameter_in_a_command(text: Optional[str] = None) -> None:  # noqa: UP045 (for the oldest kfp)
    say(text=text)


@finds(Kind.CHANGED, "task 'table' takes 'rows' as list[list[int]], and collects it from 2 nested loops")
def lists_in_lists_from_nested_loops() -> None:
    with dsl.ParallelFor([1, 2]) as x, dsl.ParallelFor([1, 2]):
        made = pass_on(n=x)
    table(rows=dsl.Collected(made.output))


@component
def pass_on(n: int) -> int:
    return n


@component
def keep(d: dict) -> str:  # type: ignore[type-arg]  # as users write it
    return str(d)


@component
def uses_yaml() -> str:
    import json

    import yaml

    try:
        import missing_and_optional  # noqa: F401 (importing it is the case)
    except ImportError:
        json.dumps(1)
    return yaml.safe_load(json.dumps(1))


@dsl.component(base_image="python:3.11", install_kfp_package=False, packages_to_install=["pyyaml", "pytest"])
def uses_the_project() -> str:
    import iniconfig  # noqa: F401  # pytest requires it
    import yaml  # noqa: F401 (importing it is the case)

    from tests.cases import parts

    return str(parts)


@component
def table(rows: list[list[int]]) -> int:
    return len(rows)


@pytest.mark.parametrize("said", CHANGED)
def test_what_differs_is_found(said: str) -> None:
    kind, function = CHANGED[said]
    [(found, text)] = findings_of(function)
    assert found is kind
    assert said in text


@pytest.mark.parametrize("macro", ["[[RunUUID]]", "day-[[ScheduledTime.2006-01-02]]"])
def test_macros_of_arguments(macro: str) -> None:
    def pipeline(text: str = "[[RunUUID]]") -> None:
        echo(text=text)

    assert findings_of(pipeline) == []
    [(kind, text)] = findings_of(pipeline, {"text": f"x {macro}"})
    assert kind is Kind.CHANGED
    assert "KFP 2.16 and newer replaces [[RunUUID]] and [[CurrentTime]] in arguments, and no other macros" in text
