"""Where the value of an input comes from: the rules of KFP's driver."""

from typing import List, Optional

from kfp import dsl

from tests.cases import VERSION, case
from tests.cases.parts import add, component, double, echo, make, read, total


@component
def mixed() -> list:
    return [1, 2.5, True, {"a": 1}, [1], "x"]


@component
def kind_of(x: str) -> str:
    return f"{type(x).__name__} {x}"


@case(
    stages={
        **{f"kind-of[{at}]": {"Output": f"str {text}"} for at, text in enumerate(["1", "2.5", "true", '{"a":1}'])},
        "kind-of[4]": {"Output": "str [1]"},
        "echo[0]": {"Output": "1"},
        "echo[1]": "skipped",
    }
)
def items_of_any_type_are_text():
    with dsl.ParallelFor(mixed().output) as item:
        kind_of(x=item)
        with dsl.If(item == "1"):
            echo(text=item)


@component
def some_numbers() -> List[int]:
    return [1, "b"]


@case(
    state="failed",
    expected="KFP's driver fails for the iteration, and nothing of it runs; locally, the stage fails",
    stages={"double[0]": {"Output": 2}, "double[1]": "failed"},
    reasons={"double[1]": ("has no value for its input 'x': it is 'b', not an int",)},
)
def an_item_of_another_type():
    with dsl.ParallelFor(some_numbers().output) as item:
        double(x=item)


@case(refused=r"has an item of another type: it is 'b', not an int", arguments={"items": [1, "b"]})
def an_argument_with_an_item_of_another_type(items: List[int]):
    with dsl.ParallelFor(items) as item:
        double(x=item)


@dsl.pipeline
def with_default(x: str = "the inner default") -> str:
    return echo(text=x).output


@case(refused="'with-default/echo' has no value for its input 'text': 'x' was not set")
def an_unset_parameter_for_a_nested_pipeline(x: Optional[str] = None):
    with_default(x=x)


@case(outputs={"Output": "the inner default"})
def a_default_of_a_nested_pipeline() -> str:
    return with_default().output


@case(refused="has no value for its input 'text': 'x' was not set. Give it a value, or its parameter a default")
def an_unset_parameter_for_a_stage(x: Optional[str] = None):
    echo(text=x)


@component
def note_of(text: Optional[str] = None) -> str:
    return f"{text}"


@case(outputs={"Output": "None"})
def an_unset_parameter_for_an_optional_input(x: Optional[str] = None) -> str:
    return note_of(text=x).output


@case(outputs={"Output": "echo"})
def the_name_of_a_task_with_another_display_name() -> str:
    return echo(text=dsl.PIPELINE_TASK_NAME_PLACEHOLDER).set_display_name("My task").output


@dsl.pipeline
def sums(x: int) -> List[int]:
    with dsl.ParallelFor([1, 2]) as y:
        added = add(a=x, b=y)
    return dsl.Collected(added.output)


@case(outputs={"Output": 66})
def values_collected_from_a_nested_pipeline_that_collects() -> int:
    with dsl.ParallelFor([10, 20]) as x:
        made = sums(x=x)
    return total(numbers=dsl.Collected(made.output)).output


@dsl.container_component
def words(x: float, y: float, z: float, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image="busybox", command=["sh", "-c", 'printf %s "$1 $2 $3" >"$0"', out, f"{x}", f"--y={y}", z]
    )


@case(outputs={"Output": "1e-05 --y=1.2345675e+06 3"})
def doubles_in_the_words_of_a_command(x: float = 1e-5) -> str:
    return words(x=x, y=1234567.5, z=3.0).outputs["out"]


if VERSION >= (2, 15):

    @dsl.container_component
    def workspace_path(out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(
            image="busybox", command=["sh", "-c", 'printf %s "$1" >"$0"', out, f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/x"]
        )

    @case(
        missing="storage for volume claims",
        outputs={"Output": "{{$.workspace_path}}/x"},
        config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")),
    )
    def the_workspace_in_the_words_of_a_command() -> str:
        return workspace_path().outputs["out"]


@case(refused="imports an artifact whose URI is the output of another task")
def an_importer_of_an_output() -> str:
    uri = echo(text="s3://bucket/x").output
    return read(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output).output


@case(refused="contains the channel 'bucket' as text")
def an_importer_of_a_text_with_a_channel(bucket: str = "b") -> str:
    uri = f"s3://{bucket}/x"
    return read(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output).output


@dsl.container_component
def tagged(tag: str):
    return dsl.ContainerSpec(image=f"registry.example.com/app:{tag}", command=["true"])


@case(refused="has the image 'registry.example.com/app:{tag}', of which KFP takes only 'tag'")
def an_image_with_text_around_an_input():
    tagged(tag="1")


@case(refused="has the cpu limit 'cpus' of the type int, and KFP takes text only")
def a_limit_of_a_number(cpus: int = 1):
    echo(text="a").set_cpu_limit(cpus)


@component
def pick(x: int, words: List[int]) -> int:
    return words[0] + x


@case(refused="takes the list that its loop goes through")
def a_list_inside_of_its_loop(words: List[int] = [1, 2]):
    with dsl.ParallelFor(words) as x:
        pick(x=x, words=words)


@case(
    expected="a task that ignores a failure of a loop never runs on KFP; the check says so",
    stages={"echo": {"Output": "cleaned"}},
)
def a_hook_after_a_loop():
    with dsl.ParallelFor([1, 2]) as x:
        doubled = double(x=x)
    echo(text="cleaned").after(doubled).ignore_upstream_failure()


@component
def read_given(data: dsl.Input[dsl.Dataset] = None) -> str:
    return "nothing" if data is None else open(data.path).read()


@case(outputs={"Output": "x"})
def an_artifact_for_an_optional_input() -> str:
    return read_given(data=make(text="x").outputs["out"]).output


@component
def order() -> dict:
    return {"id": 9007199254740993}


@case(
    state="failed",
    expected="an integer above 2**53 fails a stage here, and is rounded on KFP",
    reasons={"order": ("returned the integer 9007199254740993 as its output 'Output'", "Return it as text")},
)
def an_output_above_2_to_53():
    order()
