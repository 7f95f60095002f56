"""``Stages``, the options that stages share."""

from typing import Any

import pytest
from torchx.specs import AppDef

from tests.authoring.apps import compile_pipeline, make_app
from torchx_kfp import (
    Stages,
    component_from_app,
    component_spec_from_app,
    publish_results,
    task_from_app,
)

SECRETS = {"s3": {"id": "AWS_ACCESS_KEY_ID"}}
SHARED: dict[str, Any] = {"secrets": SECRETS, "cache": False, "inline": False}


def test_a_stage_has_what_it_shares_and_what_is_its_own() -> None:
    def shared(tracker_base: str, uri: str) -> None:
        stages = Stages(tracker_base=tracker_base, trackers={"mlflow": uri}, **SHARED)
        first = stages.task(make_app("first"), results={"loss": float})
        stages.task(make_app("second"), reads=first, cache=True, secrets=None, name="last")
        stages.publish(first, {"loss": float}, image="python:3.12", name="also", inline=True)

    def written_out(tracker_base: str, uri: str) -> None:
        options: dict[str, Any] = {"tracker_base": tracker_base, "trackers": {"mlflow": uri}, **SHARED}
        first = task_from_app(make_app("first"), results={"loss": float}, **options)
        task_from_app(make_app("second"), reads=first, **{**options, "cache": True, "secrets": None}, name="last")
        publish_results(
            first, {"loss": float}, image="python:3.12", name="also", tracker_base=tracker_base, cache=False,
            secrets=SECRETS,
        )  # fmt: skip

    assert compile_pipeline(shared) == compile_pipeline(written_out)


def test_the_image_of_a_publisher_may_be_a_channel() -> None:
    def pipeline(tracker_base: str, image: str) -> None:
        publish_results(task_from_app(make_app(), tracker_base=tracker_base), {"loss": float}, image=image)

    assert "image: '{{$.inputs.parameters[''image'']}}'" in compile_pipeline(pipeline)


def test_a_functions_parameter_is_not_a_shared_option() -> None:
    def app(cache: str = "/cache") -> AppDef:
        return make_app(args=["--cache", cache])

    component = Stages(cache=False).component_from_function(app)
    assert set(component.component_spec.inputs) == {"cache"}
    (task,) = component.pipeline_spec.root.dag.tasks.values()
    assert not task.caching_options.enable_cache
    constant = Stages(cache=False).component_from_function(app, cache="/tmp")
    assert not constant.component_spec.inputs


def test_stages_do_not_change() -> None:
    secrets = {"s3": {"id": "AWS_ACCESS_KEY_ID"}}
    stages = Stages(secrets=secrets)
    secrets["s3"]["id"] = "OTHER"
    with pytest.raises(AttributeError, match="cache"):
        stages.cache = False
    others = stages.with_options(cache=False)
    assert (stages.secrets, stages.cache) == ({"s3": {"id": "AWS_ACCESS_KEY_ID"}}, True)
    assert (others.secrets, others.cache) == ({"s3": {"id": "AWS_ACCESS_KEY_ID"}}, False)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Stages(result=1),
        lambda: Stages().with_options(cach=1),
        lambda: Stages().task(make_app(), result={}),
        lambda: task_from_app(make_app(), may_fial=True),
        lambda: component_from_app(make_app(), names="a"),
        lambda: component_spec_from_app(make_app(), nam=""),
    ],
)
def test_unknown_options_are_errors(call: Any) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument '(result|cach|may_fial|names|nam)'"):
        call()


@pytest.mark.parametrize("wrong", [{"reads": "a/b/c"}, {"engine": "job"}, {"may_fail": False}], ids=str)
def test_options_of_applications_are_refused_for_a_task_that_publishes(wrong: dict[str, Any]) -> None:
    def pipeline() -> None:
        publish_results("a/b/c", {"x": float}, image="python:3.11", tracker_base="/tmp/r", **wrong)

    with pytest.raises(TypeError, match=f"publish.*unexpected keyword argument '{next(iter(wrong))}'"):
        compile_pipeline(pipeline)
