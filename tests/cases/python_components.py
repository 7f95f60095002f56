"""Lightweight Python components, with everything that they can declare besides the function."""

from pathlib import Path

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component


@dsl.component(base_image="python:3.11")
def with_kfp(text: str) -> str:
    import kfp

    return f"{text} {kfp.__version__.split('.')[0]}"


@case(outputs={"Output": "kfp 2"})
def that_installs_kfp() -> str:
    return with_kfp(text="kfp").output


@component
def parameters_in_a_path(text: dsl.OutputPath(str)) -> int:
    with open(text, "w") as file:
        file.write("in a file")
    return 1


@case(stages={"parameters-in-a-path": {"text": "in a file", "Output": 1}})
def a_path_and_a_return_value():
    parameters_in_a_path()


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
def unicode_text(text: str) -> str:
    return text + "é😀\n\t\"'\\"


@case(
    outputs={"Output": "ü ü {{$.inputs.parameters['text']}} $HOME  $HOME é😀\n\t\"'\\"},
)
def text_of_every_kind() -> str:
    return unicode_text(text="ü {{$.inputs.parameters['text']}} $HOME ").output


EMBEDDED = Path(__file__).with_name("imported.txt")


@case(since=(2, 15), outputs={"Output": "imported\n"})
def embedded_files() -> str:
    def read_embedded(files: dsl.EmbeddedInput[dsl.Dataset]) -> str:
        import os

        path = files.path if os.path.isfile(files.path) else os.path.join(files.path, "imported.txt")
        with open(path) as file:
            return file.read()

    return component(read_embedded, embedded_artifact_path=str(EMBEDDED))().output
