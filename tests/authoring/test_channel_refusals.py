"""Pipeline channels that cannot be filled in where they are used are rejected, with these facts."""

# The defaults of KFP pipelines are constants in their signatures.
# ruff: noqa: B006

from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, make_app, make_artifact, produce, use
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, task_from_app
from torchx_kfp.authoring.plan import plan_stage
from torchx_kfp.errors import AppDefError, ChannelError

pytestmark = pytest.mark.versions


def closed_loop_in_text() -> None:
    with dsl.ParallelFor([1]):
        made = produce()
    use(f"--a={made.outputs['text']}")


def closed_loop_as_object() -> None:
    with dsl.ParallelFor([1]):
        made = produce()
    use(made.outputs["text"])


def collected_in_text() -> None:
    with dsl.ParallelFor([1]):
        made = produce()
    use(f"--a={dsl.Collected(made.outputs['text'])}")


def collected_as_object() -> None:
    with dsl.ParallelFor([1]):
        made = produce()
    use(dsl.Collected(made.outputs["text"]))


def collected_list() -> None:
    with dsl.ParallelFor([1]):
        made = produce()
    use(f"{dsl.Collected(made.outputs['items'])}")


def item_outside_of_its_loop() -> None:
    with dsl.ParallelFor([1]) as item:
        use(f"{item}")
    use(f"{item}")


def artifact() -> None:
    use(f"{make_artifact().outputs['data']}")


def artifact_as_object() -> None:
    use(make_artifact().outputs["data"])


def beside_dollars(lr: float = 0.1) -> None:
    use(f"$$ {lr}")


def beside_template(lr: float = 0.1) -> None:
    use(f"{{{{workflow.name}}}} {lr}")


def brace_before_channel(lr: float = 0.1) -> None:
    use(f"{{{lr}}}")


def beside_control_character(lr: float = 0.1) -> None:
    use(f"\x7f{lr}")


def placeholder_in_text() -> None:
    use(f"--name={dsl.PIPELINE_JOB_NAME_PLACEHOLDER}")


def field_called_name(lr: float = 0.1) -> None:
    with dsl.ParallelFor([{"name": "a"}]):  # with another field, KFP itself sometimes rejects it
        use(f"{lr}")


def field_called_name_of_a_parameter(items: list = [{"name": "a"}]) -> None:
    with dsl.ParallelFor(items) as item:
        use(f"--x={item.name}")


def item_object_outside_of_its_loop() -> None:
    with dsl.ParallelFor([1]) as item:
        use(item)
    use(item)


def field_outside_of_its_loop(items: list = [{"a": 1}]) -> None:
    with dsl.ParallelFor(items) as item:
        use("a")
    use(item.a)


def outside_of_its_condition(lr: float = 0.1) -> None:
    with dsl.If(lr > 0):
        made = produce()
    use(made.outputs["text"])


def outside_of_its_exit_handler() -> None:
    with dsl.ExitHandler(produce()):
        made = produce()
    use(made.outputs["text"])


MADE_ELSEWHERE: list[dsl.PipelineTask] = []


@dsl.pipeline(name="other")
def other() -> None:
    MADE_ELSEWHERE.append(produce())


def task_of_another_pipeline() -> None:
    use(MADE_ELSEWHERE[0].outputs["text"])


def task_in_text() -> None:
    use(f"--model={produce()}")


def comparison_in_text(lr: float = 0.1) -> None:
    use(f"{lr > 0}")


def variables_name_beside_channel(lr: float = 0.1) -> None:
    use("a", env={"A$(HOME)": f"{lr}"})


def brace_before_tracker_base(base: str) -> None:
    task_from_app(make_app(), tracker_base="{" + f"{base}")


def name_with_channel(lr: float = 0.1) -> None:
    task_from_app(make_app(), name=f"stage-{lr}")


def unknown_channel() -> None:
    use("{{channel:task=nowhere;name=x;type=String;}}")


def cut(begin: int | None, end: int | None) -> Callable[..., None]:
    def pipeline(lr: float = 0.1) -> None:
        use(f"{lr}"[begin:end])

    return pipeline


def in_capitals(lr: float = 0.1) -> None:
    use(f"--lr={lr}".upper())


def test_text_that_only_resembles_a_channel_is_legal() -> None:
    def pipeline(lr: float = 0.1) -> None:
        use("{{", "{{config.x}}", "{{c}}", "{{workflow.name}}", "f() {{ x=1;}}", "{", ";}", f"a(){{x={lr};}}}}")

    compile_pipeline(pipeline)


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [
        (in_capitals, says("'{{CHANNEL:'", "'--LR={{CHANNEL:TASK=;NAME=LR;TYPE=", "application")),
        (cut(0, 5), says("args[0]", "'{{cha'", "application")),
        (cut(0, 3), says("'{{c'", "application")),
        (cut(0, 15), says("'{{channel:'", "'{{channel:task=", "application")),
        (cut(5, None), says(";}}'", "application")),
        (cut(-4, None), says(";}}'", "application")),
        (
            closed_loop_in_text,
            says("'text'", "'produce'", "dsl.ParallelFor", "dsl.Collected", "task.outputs", "'run_id'", "'trainer'"),
        ),
        (
            closed_loop_as_object,
            says("'text'", "'produce'", "dsl.ParallelFor", "dsl.Collected", "task.outputs", "'trainer'"),
        ),
        (
            collected_in_text,
            says(
                "args[0]",
                "'trainer'",
                "dsl.Collected",
                "'produce'",
                "reads=",
                "'trials'",
                "task.outputs",
                "'run_id'",
                "Read",
            ),
        ),
        (collected_as_object, says("dsl.Collected", "'produce'", "'trainer'", "reads=", "'trials'", "Read")),
        (collected_list, r"of 'produce'.*dsl\.Collected"),
        (item_outside_of_its_loop, says("loop", "items", "'trainer'", "Use")),
        (artifact, says("'make-artifact-data'", "'trainer'", "Pass")),
        (artifact_as_object, says("'make-artifact-data'", "'trainer'", "Pass")),
        (beside_dollars, says("'$$'", "channel", "'trainer'", "Split")),
        (beside_template, says("'{{'", "channel", "'trainer'", "Split")),
        (brace_before_channel, says("'{{'", "channel", "'trainer'", "Split")),
        (beside_control_character, says("'\\x7f'", "channel", "'trainer'", "Split")),
        (
            placeholder_in_text,
            says("{{$.pipeline_job_name}}", "'trainer'"),
        ),
        (
            field_called_name,
            says("dsl.ParallelFor", "'name'", "'trainer'"),
        ),
        (field_called_name_of_a_parameter, says("'--x=items-loop-item'", "'trainer'", "full_name", "Rename")),
        (item_object_outside_of_its_loop, says("loop", "items", "'trainer'", "Use")),
        (field_outside_of_its_loop, says("outside its loop", "'trainer'", "'items-loop-item-subvar-a'", "Use")),
        (
            outside_of_its_condition,
            says("dsl.OneOf(task", "condition", "other_task.outputs", "'trainer'"),
        ),
        (outside_of_its_exit_handler, says("dsl.ExitHandler", "'trainer'", "'text'", "'produce-2'", "Use")),
        (task_of_another_pipeline, says("'text'", "'produce'", "'trainer'", "Pass")),
        (task_in_text, says("reads=task", "outputs", "--model", "kfp.dsl.pipeline_task.PipelineTask", "'trainer'")),
        (comparison_in_text, says("dsl.If", "comparison", "pipeline", "'trainer'")),
        (
            variables_name_beside_channel,
            says("env['A$(HOME)']", "'$('", "channel", "'trainer'", "'A$(HOME)='", "Split"),
        ),
        (brace_before_tracker_base, says("tracker_base", "'{{'", "channel", "Split")),
        (name_with_channel, says("name is a pipeline channel", "when the pipeline is compiled")),
        (
            unknown_channel,
            says("'{{channel:task=nowhere;name=x;type=String;}}'", "'trainer'", "Use"),
        ),
    ],
)
def test_refused(pipeline: Callable[..., Any], text: str) -> None:
    with pytest.raises(ChannelError, match=text):
        compile_pipeline(pipeline)


def test_channels_need_a_pipeline() -> None:
    apps: list[Any] = []

    def pipeline(lr: float = 0.1) -> None:
        apps.append(make_app(args=[f"{lr}"]))
        use("a")

    compile_pipeline(pipeline)
    for make in (component_from_app, component_spec_from_app, plan_stage):
        with pytest.raises(ChannelError, match=says("task_from_app", "'trainer'", "AppDefs")):
            make(apps[0])


def test_values_must_be_text() -> None:
    with pytest.raises(AppDefError, match=says("args[0]", "'trainer'", "None", "Leave")):
        plan_stage(make_app(args=[None]))
    with pytest.raises(AppDefError, match=says("args[0]", "'trainer'", "(int)", "'3'")):
        plan_stage(make_app(args=[3]))
    with pytest.raises(AppDefError, match=says("args[0]", "'trainer'", "(function)")):
        plan_stage(make_app(args=[test_values_must_be_text]))


def test_tasks_and_comparisons_are_no_values() -> None:
    def task() -> None:
        use(produce())

    def comparison(lr: float = 0.1) -> None:
        use(lr > 0)

    with pytest.raises(AppDefError, match=says("'produce'", "task.outputs['...']", "reads=", "'trainer'")):
        compile_pipeline(task)
    with pytest.raises(AppDefError, match=says("dsl.If", "comparison", "pipeline", "'trainer'")):
        compile_pipeline(comparison)


def test_a_task_needs_a_pipeline() -> None:
    with pytest.raises(
        AppDefError, match=says("function", "decorated", "component_from_app", "task_from_app", "kfp.dsl.pipeline")
    ):
        task_from_app(make_app())


def test_component_files_are_not_made_inside_of_a_pipeline() -> None:
    def pipeline() -> None:
        component_spec_from_app(make_app())

    with pytest.raises(
        AppDefError,
        match=says("component_from_app", "pipeline", "function", "task_from_app", "component_spec_from_app"),
    ):
        compile_pipeline(pipeline)


def test_components_are_static_in_a_pipeline_too() -> None:
    def pipeline(lr: float = 0.1) -> None:
        component_from_app(make_app(args=[f"{lr}"]))

    with pytest.raises(ChannelError, match=says("'train'", "'lr_float'", "task_from_app")):
        compile_pipeline(pipeline)
