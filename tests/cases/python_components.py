"""Lightweight Python components, with everything that they can declare besides the function."""

from pathlib import Path
from typing import NamedTuple

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component, echo


@dsl.component(base_image="python:3.11")
def with_kfp(text: str) -> str:
    import kfp

    return f"{text} {kfp.__version__.split('.')[0]}"


@case(outputs={"Output": "kfp 2"})
def that_installs_kfp() -> str:
    return with_kfp(text="kfp").output


@component
def imports_and_helpers(x: int) -> str:
    import math
    from dataclasses import dataclass

    @dataclass
    class Point:
        x: int

    def shift(point: Point) -> Point:
        return Point(point.x + 1)

    return f"{shift(Point(x)).x} {math.floor(1.5)}"


@case(outputs={"Output": "4 1"})
def helpers() -> str:
    return imports_and_helpers(x=3).output


@component
def named(x: int) -> NamedTuple("Outputs", [("sum", int), ("text", str), ("flag", bool)]):
    from typing import NamedTuple

    outputs = NamedTuple("Outputs", [("sum", int), ("text", str), ("flag", bool)])
    return outputs(x + 1, str(x), x > 0)


@case(stages={"named": {"sum": 4, "text": "3", "flag": True}, "echo": {"Output": "3"}})
def several_outputs():
    echo(text=named(x=3).outputs["text"])


@component
def parameters_in_a_path(text: dsl.OutputPath(str)) -> int:
    with open(text, "w") as file:
        file.write("in a file")
    return 1


@case(stages={"parameters-in-a-path": {"text": "in a file", "Output": 1}})
def a_path_and_a_return_value():
    parameters_in_a_path()


@component
def environment() -> str:
    import os

    return f"{os.environ.get('A')} {os.environ.get('B')}"


@case(outputs={"Output": "1 x=y z"})
def environment_variables() -> str:
    return environment().set_env_variable("A", "1").set_env_variable("B", "x=y z").output


@component
def nothing():
    print("nothing to say")


@case(stages={"nothing": {}, "echo": {"Output": "after"}})
def without_outputs():
    done = nothing()
    echo(text="after").after(done)


@component
def names(pipeline: str, job: str, task: str) -> str:
    return f"{job.startswith(pipeline)} {task} {'{{' in job}"


@case(
    expected="the job's name is the run id here, and what the user wrote there", outputs={"Output": "True names False"}
)
def placeholders_of_names() -> str:
    return names(
        pipeline="placeholders-of-names", job=dsl.PIPELINE_JOB_NAME_PLACEHOLDER, task=dsl.PIPELINE_TASK_NAME_PLACEHOLDER
    ).output


@component
def lists(items: list, mapping: dict) -> NamedTuple("Outputs", [("items", list), ("mapping", dict)]):
    return (items[::-1], {key: value + 1 for key, value in mapping.items()})


@case(
    stages={"lists": {"items": ["b", "a"], "mapping": {"k": 2}}, "lists-2": {"items": ["a", "b"], "mapping": {"k": 3}}}
)
def lists_and_dicts():
    first = lists(items=["a", "b"], mapping={"k": 1})
    lists(items=first.outputs["items"], mapping=first.outputs["mapping"])


@component
def unicode_text(text: str) -> str:
    return text + "é😀\n\t\"'\\"


@case(
    outputs={"Output": "ü ü {{$.inputs.parameters['text']}} $HOME  $HOME é😀\n\t\"'\\"},
)
def text_of_every_kind() -> str:
    return unicode_text(text="ü {{$.inputs.parameters['text']}} $HOME ").output


@case(missing="a GPU", outputs={"Output": "x"})
def settings_that_are_for_clusters() -> str:
    said = echo(text="x")
    said.set_cpu_limit("1").set_memory_limit("1G").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    return said.set_caching_options(False).set_display_name("A name").output


EMBEDDED = Path(__file__).with_name("imported.txt")


@case(since=(2, 15), outputs={"Output": "imported\n"})
def embedded_files() -> str:
    def read_embedded(files: dsl.EmbeddedInput[dsl.Dataset]) -> str:
        import os

        path = files.path if os.path.isfile(files.path) else os.path.join(files.path, "imported.txt")
        with open(path) as file:
            return file.read()

    return component(read_embedded, embedded_artifact_path=str(EMBEDDED))().output
