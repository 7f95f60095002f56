"""Roles as a run's pipeline tells them: those of the AppDef again, if TorchX has submitted it."""

import dataclasses
from typing import Any

import pytest
from kfp import dsl
from torchx import specs

from tests.adapter.apps import HOSTILE
from torchx_kfp import task_from_app
from torchx_kfp.pipeline.load import load_pipeline, pipeline_from_text
from torchx_kfp.scheduler.application import make_request
from torchx_kfp.scheduler.options import Options, read_options
from torchx_kfp.scheduler.roles import roles_by_stage

pytestmark = pytest.mark.versions

BASE = "s3://bucket/results"


def app_of(**of_role: Any) -> specs.AppDef:
    role = specs.Role(
        "trainer",
        image="example.com/app:1",
        entrypoint="python",
        args=["-m", "app", "--rate", "0.1"],
        env={"LEVEL": "info", "EMPTY": ""},
        resource=specs.Resource(cpu=2, gpu=1, memMB=2048),
        max_retries=3,
    )
    return specs.AppDef("Train it", [dataclasses.replace(role, **of_role)])


def described(app: specs.AppDef, options: Options) -> list[specs.Role]:
    request = make_request(app, options)
    return [
        role
        for stage in roles_by_stage(pipeline_from_text(request.pipeline), request.arguments).values()
        for role in stage.roles
    ]


def told(role: specs.Role) -> dict[str, Any]:
    """Return the fields of a role that a pipeline tells."""
    names = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries")
    amounts = role.resource.cpu, role.resource.gpu, role.resource.memMB, role.resource.devices
    return {**{name: getattr(role, name) for name in names}, "resource": amounts}


@pytest.mark.parametrize("base", ["", BASE])
def test_a_role_comes_back(base: str) -> None:
    app = app_of()
    [role] = described(app, Options(tracker_base=base))
    assert told(role) == told(app.roles[0])


@pytest.mark.parametrize("base", ["", BASE])
def test_arguments_come_back_byte_for_byte(base: str) -> None:
    app = app_of(args=[*HOSTILE, "", "a b", "$(X) {{y}}"], env={"HOSTILE": "$(X) {{y}} $$ \\ \n"})
    [role] = described(app, Options(tracker_base=base))
    assert (role.args, role.env) == (app.roles[0].args, app.roles[0].env)


def test_no_limits_are_none() -> None:
    [role] = described(app_of(resource=specs.Resource(cpu=-1, gpu=-1, memMB=-1)), Options())
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (-1, -1, -1)


def test_half_a_cpu_and_other_devices() -> None:
    resource = specs.Resource(cpu=0.5, gpu=0, memMB=64, devices={"example.com/tpu": 2})  # type: ignore[arg-type] (TorchX takes any)
    [role] = described(app_of(resource=resource), Options())
    assert (role.resource.cpu, role.resource.memMB, role.resource.devices) == (0.5, 64, {"example.com/tpu": 2})


@pytest.mark.parametrize("base", ["", BASE])
def test_the_roles_of_a_distributed_stage_come_back(base: str) -> None:
    reader = dataclasses.replace(app_of().roles[0], name="reader", args=["--read", "$(X) {{y}}"], env={"A": "1"})
    app = app_of(num_replicas=3, args=["--rank", "${replica_id}"])
    app.roles.append(reader)
    options = dataclasses.replace(read_options({"engine": "jobset"}), tracker_base=base)
    roles = described(app, options)
    assert [(role.name, role.num_replicas, role.image) for role in roles] == [
        ("trainer", 3, "example.com/app:1"),
        ("reader", 1, "example.com/app:1"),
    ]
    assert roles[0].args == ["--rank", "${replica_id}"]
    assert roles[1].args == ["--read", "$(X) {{y}}"]
    assert roles[0].env == {"LEVEL": "info", "EMPTY": ""}
    assert roles[1].env["A"] == "1"
    assert (roles[0].resource.cpu, roles[0].resource.gpu, roles[0].resource.memMB) == (2, 1, 2048)


def test_a_run_that_torchx_has_not_submitted_has_a_role_for_each_stage() -> None:
    @dsl.container_component
    def show(text: str):  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="busybox", command=["echo"], args=[text, "--again", text])

    @dsl.pipeline(name="inner")
    def inner(word: str) -> None:
        show(text=word)

    @dsl.pipeline(name="other")
    def other(word: str = "default", more: str = "more") -> None:
        first = show(text=word)
        inner(word=more).after(first)
        with dsl.ParallelFor(["a", "b"]) as item:
            task_from_app(app_of(args=[item]))

    roles = {name: told(stage.roles[0]) for name, stage in roles_by_stage(load_pipeline(other), {"more": "m"}).items()}
    assert {name: (role["name"], role["entrypoint"]) for name, role in roles.items()} == {
        "show": ("show", "echo"),
        "inner/show": ("inner/show", "echo"),
        "train-it": ("train-it", "python"),
    }
    assert roles["show"]["args"] == ["default", "--again", "default"]
    assert roles["inner/show"]["args"] == ["m", "--again", "m"]
