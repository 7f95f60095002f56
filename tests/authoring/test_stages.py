"""``Stages``, the options that stages share."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl
from torchx.components import utils
from torchx.specs import AppDef

from tests.authoring.apps import compile_pipeline, make_app
from tests.facts import says
from tests.modules import places
from torchx_kfp import (
    Stages,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    publish_results,
    task_from_app,
)
from torchx_kfp.authoring.options import ComponentOptions, PublisherOptions, SharedOptions, TaskOptions
from torchx_kfp.errors import AppDefError, ReadsError

SECRETS = {"s3": {"id": "AWS_ACCESS_KEY_ID"}}
SHARED: dict[str, Any] = {"secrets": SECRETS, "cache": False, "inline": False, "labels": True}


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


def test_components_share_what_their_pipelines_complete() -> None:
    stages = Stages(**SHARED)
    component = stages.component(make_app(), reads=["prepare"], results={"loss": float}, name="fit", labels=False)
    same = component_from_app(
        make_app(), reads=["prepare"], results={"loss": float}, name="fit", **{**SHARED, "labels": False}
    )
    assert component.pipeline_spec == same.pipeline_spec
    assert component.platform_spec == same.platform_spec

    def pipeline(tracker_base: str) -> None:
        tracked = stages.with_options(tracker_base=tracker_base)
        component(tracker_base=tracker_base, prepare=tracked.task(make_app("prepare")).outputs["run_id"])

    def written_out(tracker_base: str) -> None:
        prepared = task_from_app(make_app("prepare"), tracker_base=tracker_base, **SHARED)
        component(tracker_base=tracker_base, prepare=prepared.outputs["run_id"])

    assert compile_pipeline(pipeline) == compile_pipeline(written_out)


def test_components_of_functions() -> None:
    stages = Stages(**SHARED)
    component = stages.component_from_function(utils.booth, image="booth:1")
    same = component_from_function(utils.booth, image="booth:1", **SHARED)
    assert component.platform_spec == same.platform_spec
    assert component.pipeline_spec == same.pipeline_spec


def test_a_functions_parameter_is_not_a_shared_option() -> None:
    def app(cache: str = "/cache") -> AppDef:
        return make_app(args=["--cache", cache])

    component = Stages(cache=False).component_from_function(app)
    assert set(component.component_spec.inputs) == {"cache"}
    (task,) = component.pipeline_spec.root.dag.tasks.values()
    assert not task.caching_options.enable_cache
    constant = Stages(cache=False).component_from_function(app, cache="/tmp")
    assert not constant.component_spec.inputs


def test_a_component_has_no_tracker_base_of_its_own() -> None:
    stages = Stages(tracker_base="s3://bucket/results")
    for make in (stages.component, stages.component_from_function):
        with pytest.raises(
            ReadsError,
            match=says("component(tracker_base=...)", "Stages.component", "'s3://bucket/results'"),
        ):
            make(make_app())


def test_stages_do_not_change() -> None:
    secrets = {"s3": {"id": "AWS_ACCESS_KEY_ID"}}
    stages = Stages(secrets=secrets)
    secrets["s3"]["id"] = "OTHER"
    with pytest.raises(AttributeError, match=r"with_options\(cache=\.\.\.\)"):
        stages.cache = False
    with pytest.raises(AttributeError, match="with_options"):
        del stages._options
    others = stages.with_options(cache=False)
    assert repr(stages) == "Stages(secrets={'s3': {'id': 'AWS_ACCESS_KEY_ID'}})"
    assert repr(others) == "Stages(secrets={'s3': {'id': 'AWS_ACCESS_KEY_ID'}}, cache=False)"


MISTAKES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Stages(tracker="mlflow"), TypeError, r"Stages\(\).*'tracker'\. Did you mean 'tracker"),
    (lambda: Stages("s3://bucket"), TypeError, "positional"),
    (lambda: Stages(reads=[]), TypeError, r"'reads'.*tracker_base"),
    (lambda: Stages().with_options(cach=1), TypeError, "Did you mean 'cache'"),
    (lambda: Stages().task(make_app(), result={}), TypeError, "Did you mean 'results'"),
    (lambda: Stages().publish("a/b/c", labels=True), TypeError, "image"),
    (
        lambda: Stages().publish("a/b/c", image="i", labels=True),
        TypeError,
        r"Stages\.publish\(\).*'labels'",
    ),
    (lambda: Stages().component(make_app(), tracker_base="x"), TypeError, "'tracker_base'"),
    (lambda: Stages().component_from_function(utils.booth, no=1), AppDefError, "no parameter 'no'"),
    (lambda: Stages(tracker_base=5), ReadsError, "tracker_base is 5"),
    (lambda: Stages(secrets={"s3": "key"}), AppDefError, r"secrets\['s3'\] is 'key'"),
    (lambda: Stages(trackers=["mlflow"]), AppDefError, r"trackers is \['mlflow'\]"),
]


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES, ids=lambda value: getattr(value, "__name__", None))
def test_mistakes_are_found_where_they_are_made(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_reads_without_a_tracker_base() -> None:
    def pipeline() -> None:
        first = Stages().task(make_app("first"))
        Stages().task(make_app("second"), reads=first)

    with pytest.raises(ReadsError, match=r"tracker_base=\.\.\."):
        compile_pipeline(pipeline)


def test_a_component_compiles_its_pipeline_once() -> None:
    component = component_from_app(make_app())
    assert component.pipeline_spec is component.pipeline_spec


def test_a_task_outside_of_a_pipeline() -> None:
    with pytest.raises(AppDefError, match=r"kfp\.dsl\.pipeline"):
        Stages().task(make_app())


def test_fan_in() -> None:
    def pipeline(tracker_base: str) -> None:
        stages = Stages(tracker_base=tracker_base)
        with dsl.ParallelFor([1, 2]):
            trial = stages.task(make_app("trial"))
        stages.task(make_app("choose"), reads={"trials": dsl.Collected(trial.outputs["run_id"])})

    assert "run_id" in compile_pipeline(pipeline)


def test_task_from_app_lists_and_describes_all_options() -> None:
    """Although it only declares that it takes ``TaskOptions``."""
    _, *parameters = inspect.signature(task_from_app).parameters.values()
    assert [each.name for each in parameters] == list(TaskOptions.__annotations__)
    for each in parameters:
        assert each.annotation == TaskOptions.__annotations__[each.name].__forward_arg__
        assert re.search(rf"^    {each.name}: [\w`]", task_from_app.__doc__ or "", re.MULTILINE), each.name
    defaults = {each.name: each.default for each in parameters if each.default is not None}
    assert defaults == {"may_fail": False, "cache": True, "inline": True, "labels": False}


def test_an_option_stands_where_it_is_declared_and_where_it_is_used() -> None:
    """So many places does a new option need: two declare it, one is compared with them, and plans use it."""
    declared, compared = ["OutputOptions", "StageSettings"], ["component_from_function"]
    used = ["_command", "publisher_program", "read_launcher"]
    assert places("may_fail", "authoring") == sorted(declared + compared + used)


def test_other_functions_list_their_options() -> None:
    assert all(f"``{name}``" in (Stages.__init__.__doc__ or "") for name in SharedOptions.__annotations__)
    assert inspect.signature(publish_results).parameters.keys() >= PublisherOptions.__annotations__.keys()


def test_component_from_function_lists_the_options_of_components() -> None:
    parameters = inspect.signature(component_from_function).parameters
    options = {name: annotation.__forward_arg__ for name, annotation in ComponentOptions.__annotations__.items()}
    # A function's parameter `name` is a constant.
    del options["name"]
    assert set(parameters) == {"fn", "tracked", "reads", "constants", *options}
    for name, annotation in options.items():
        assert parameters[name].annotation == annotation
        assert parameters[name].default == inspect.signature(task_from_app).parameters[name].default


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: component_from_app(make_app(), result={}), r"component_from_app\(\).*'result'.*'results'"),
        (lambda: component_spec_from_app(make_app(), nam=""), r"component_spec_from_app\(\).*'nam'.*'name'"),
        (lambda: task_from_app(make_app(), may_fial=True), r"task_from_app\(\).*'may_fial'.*'may_fail'"),
        (lambda: publish_results("a/b", image="i", cach=1), r"publish_results\(\).*'cach'"),
    ],
)
def test_unknown_options(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()
