"""Pipeline channels in AppDefs: of every type, by themselves and in text, in loops, conditions and nested pipelines."""

# The defaults of KFP pipelines are constants in their signatures. KFP cannot parse typing's names of generic types in
# its text of channels, which is tested here.
# ruff: noqa: B006, UP006, UP035

import re
from collections.abc import Callable
from typing import Any, Dict, List

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, load, make_app, produce, unresolved_inputs, use
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.errors import AppDefError

pytestmark = pytest.mark.versions


def parameters(s: str, i: int = 1, f: float = 0.1, b: bool = True, li: list = [1], d: dict = {}) -> None:
    use(s, f"{s}", f"--s={s}", f"--i={i}", f"--f={f}", f"--b={b}", f"--l={li}", f"--d={d}", f"{i}{f}")


def generic_parameters(li: List[int] = [1], d: Dict[str, int] = {}, n: List[Dict[str, float]] = []) -> None:
    use(f"{li} {d} {n}", f"{li}")


def outputs() -> None:
    made = produce()
    use(*(f"--{name}={channel}" for name, channel in made.outputs.items()), *made.outputs.values())


def env_image_and_entrypoint(image: str, program: str, level: int = 1) -> None:
    use("a", image=image, entrypoint=f"{program}", env={"LEVEL": f"{level}", "BOTH": f"{level}-{program}"})
    use("a", entrypoint=f"/usr/bin/{program}")
    use("a", image=f"{image}")


def loop_of_dicts() -> None:
    with dsl.ParallelFor([{"lr": 0.1, "kind": "a", "n": 1}]) as item:
        use(f"--lr={item.lr}", f"{item.kind}-{item.n}", item.n, f"{item}")


def placeholders_of_kfp() -> None:
    use(dsl.PIPELINE_JOB_NAME_PLACEHOLDER, "--id", dsl.PIPELINE_JOB_ID_PLACEHOLDER)


def loop_of_output() -> None:
    with dsl.ParallelFor(produce().outputs["items"]) as item:
        use(f"--lr={item.lr}", f"{item}")


#: ``tests.cases`` runs others: of parameters, items of loops, conditions, and nested pipelines.
PIPELINES = [generic_parameters, outputs, env_image_and_entrypoint, loop_of_output, placeholders_of_kfp]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda function: function.__name__)
def test_every_channel_is_an_input(pipeline: Callable[..., Any]) -> None:
    compiled = compile_pipeline(pipeline)
    assert "{{channel" not in compiled
    spec, _ = load(compiled)
    assert unresolved_inputs(spec) == []
    for label, executor in spec["deploymentSpec"]["executors"].items():
        declared = spec["components"][label.replace("exec-", "comp-")].get("inputDefinitions", {}).get("parameters", {})
        used = set(
            re.findall(r"\{\{\$\.inputs\.parameters\['(.*?)'\]\}\}", str(executor["container"]).replace("\\'", "'"))
        )
        assert used <= set(declared), label


@pytest.mark.parametrize("image", ["repo/app:{tag}", "{tag}{level}", "{level}"])
def test_an_image_is_one_channel(image: str) -> None:
    def pipeline(tag: str, level: int = 1) -> None:
        use("a", image=image.format(tag=tag, level=level))

    with pytest.raises(AppDefError, match="KFP needs the whole image as one value"):
        compile_pipeline(pipeline)


def test_each_item_has_the_fields_that_are_used() -> None:
    def pipeline() -> None:
        with dsl.ParallelFor([{"a": "1", "b": "x"}, {"a": "2"}]) as item:
            use(f"{item.a}")
            with dsl.If(item.a == "1"):
                use(f"{item.b}")

    def wrong() -> None:
        with dsl.ParallelFor([{"a": "1", "b": "x"}, {"a": "2"}]) as item:
            use(f"{item.b}")

    compile_pipeline(pipeline)
    with pytest.raises(AppDefError, match=says("the field 'b'", "the loop's item {'a': '2'}", "Give it", "dsl.If")):
        compile_pipeline(wrong)


def test_an_artifact_is_passed_by_its_uri() -> None:
    @dsl.component(base_image="i")
    def data_of(out: dsl.Output[dsl.Dataset]):
        pass

    def pipeline() -> None:
        use(f"{data_of().outputs['out']}")

    facts = (
        "'data-of-out'",
        "ARTIFACT",
        "def uri_of(data: dsl.Input[dsl.Artifact]) -> str: return data.uri",
        "read that",
    )
    with pytest.raises(AppDefError, match=says(*facts)):
        compile_pipeline(pipeline)


def declared_types(pipeline: Callable[..., Any]) -> dict[str, str]:
    spec, _ = load(compile_pipeline(pipeline))
    definitions = spec["components"]["comp-use"]["inputDefinitions"]["parameters"]
    return {name: definition["parameterType"] for name, definition in definitions.items()}


def test_inputs_have_the_names_and_types_of_their_channels() -> None:
    assert declared_types(parameters) == {
        "s": "STRING",
        "i_int": "NUMBER_INTEGER",
        "f_float": "NUMBER_DOUBLE",
        "b_bool": "BOOLEAN",
        "li_list": "LIST",
        "d_dict": "STRUCT",
    }
    assert declared_types(outputs)["ratio_float"] == "NUMBER_DOUBLE"


def test_fields_of_items_have_the_type_of_that_field() -> None:
    """KFP gives all fields the type of the first one, and the backend rejects text in a number."""
    assert declared_types(loop_of_dicts) == {
        "item_lr_float": "NUMBER_DOUBLE",
        "item_kind": "STRING",
        "item_n_int": "NUMBER_INTEGER",
        "item_dict": "STRUCT",
    }


def test_items_have_the_type_of_all_of_them() -> None:
    """KFP uses the first item's type, and kfp.local turns the others into integers."""

    def numbers() -> None:
        with dsl.ParallelFor([1, 0.5]) as item:
            use(item)

    def mixed() -> None:
        with dsl.ParallelFor([{"a": 1}, {"a": "x"}]) as item:
            use(f"{item.a}")

    assert declared_types(numbers) == {"item_float": "NUMBER_DOUBLE"}
    assert declared_types(mixed) == {"item_a": "STRING"}


def test_an_entrypoint_that_is_a_channel_is_not_the_first_word() -> None:
    """Older backends do not fill placeholders into a command's first element."""
    spec, _ = load(compile_pipeline(env_image_and_entrypoint))
    command = spec["deploymentSpec"]["executors"]["exec-use-2"]["container"]["command"]
    assert command == ["env", "/usr/bin/{{$.inputs.parameters['program']}}", "a"]


def test_placeholders_of_kfp_are_inputs() -> None:
    spec, _ = load(compile_pipeline(placeholders_of_kfp))
    values = spec["root"]["dag"]["tasks"]["use"]["inputs"]["parameters"]
    assert {name: value["runtimeValue"]["constant"] for name, value in values.items()} == {
        "pipeline_job_name": "{{$.pipeline_job_name}}",
        "pipeline_job_id": "{{$.pipeline_job_uuid}}",
    }


def test_text_that_only_resembles_a_channel_is_legal() -> None:
    def pipeline(lr: float = 0.1) -> None:
        use("{{", "{{config.x}}", "{{c}}", "{{workflow.name}}", "f() {{ x=1;}}", "{", ";}", f"a(){{x={lr};}}}}")

    compile_pipeline(pipeline)


def test_a_channel_as_entrypoint_may_hold_an_equals_sign_in_a_tracked_stage() -> None:
    def tracked(program: str = "sh") -> None:
        task_from_app(make_app(entrypoint=f"/opt/a=b/{program}"), tracker_base="/tmp")

    spec, _ = load(compile_pipeline(tracked))
    command = spec["deploymentSpec"]["executors"]["exec-train"]["container"]["command"]
    assert command[-1] == "/opt/a=b/{{$.inputs.parameters['program']}}"
    assert command.count("env") == 1
