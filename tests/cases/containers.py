"""Container components: placeholders, optional inputs, and everything else that a command may contain."""

import datetime
import json
from typing import Optional

from kfp import dsl

from tests.cases import case
from tests.cases.parts import write

ARGUMENTS = 'out=$1; shift; printf "[%s]" "$@" > "$out"'

CONCATENATED = "dsl.ConcatPlaceholder works here; the check warns"


@dsl.container_component
def concat(name: str, out: dsl.OutputPath(str), number: int = 3):
    words = [dsl.ConcatPlaceholder(["--name=", name]), dsl.ConcatPlaceholder(["--n=", number, "-", name])]
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", ARGUMENTS, "sh", out], args=words)


@case(outputs={"Output": "[--name=a b][--n=3-a b]"}, expected=CONCATENATED)
def concatenated() -> str:
    return concat(name="a b").outputs["out"]


@dsl.container_component
def if_present(out: dsl.OutputPath(str), name: Optional[str] = None):
    words = [
        "begin",
        dsl.IfPresentPlaceholder("name", then=["--name", name], else_=["--anonymous"]),
        dsl.IfPresentPlaceholder("name", then=dsl.ConcatPlaceholder(["<", name, ">"])),
        "end",
    ]
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", ARGUMENTS, "sh", out], args=words)


@case(
    outputs={"Output": "[begin][--anonymous][end]"},
    stages={"if-present": {"out": "[begin][--name][x][<x>][end]"}},
    expected=CONCATENATED,
)
def present_or_not() -> str:
    if_present(name="x")
    return if_present().outputs["out"]


@dsl.container_component
def write_types(
    s: dsl.OutputPath(str), i: dsl.OutputPath(int), d: dsl.OutputPath(float), b: dsl.OutputPath(bool),
    li: dsl.OutputPath(list), st: dsl.OutputPath(dict),
):  # fmt: skip
    script = (
        'printf "a\\n" > "$0"; printf 7 > "$1"; printf 1e-3 > "$2"; printf true > "$3"; '
        """printf '[1, "x"]' > "$4"; printf '{"k": [1.5]}' > "$5\""""
    )
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, s, i, d, b, li, st])


@case(
    stages={"write-types": {"s": "a\n", "i": 7, "d": 0.001, "b": True, "li": [1, "x"], "st": {"k": [1.5]}}},
)
def outputs_of_every_type():
    write_types()


@case(outputs={"Output": "{{$.pipeline_job_name}} {{$.pipeline_task_name}}"})
def names_in_placeholders() -> str:
    text = f"{dsl.PIPELINE_JOB_NAME_PLACEHOLDER} {dsl.PIPELINE_TASK_NAME_PLACEHOLDER}"
    return shorten(text=text).outputs["out"]


@dsl.container_component
def shorten(text: str, out: dsl.OutputPath(str)):
    script = 'out=$1; set -- $0; printf "%s %s" "${1%%-2*}" "$2" > "$out"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, text, out])


@dsl.container_component
def facts(job: str, root: str, created: str, task_id: str, out: dsl.OutputPath(str)):
    script = 'for word in "$1" "$2" "$3" "$4"; do case "$word" in ""|*"{{"*) exit 1; esac; done; printf ok > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, out, job, root, created, task_id])


@case(state="failed", stages={"facts": "failed"})
def every_fact_has_a_value() -> str:
    return facts(
        job=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        root=dsl.PIPELINE_ROOT_PLACEHOLDER,
        created=dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
        task_id=dsl.PIPELINE_TASK_ID_PLACEHOLDER,
    ).outputs["out"]


@dsl.container_component
def no_command():
    return dsl.ContainerSpec(image="hello-world")


@case(missing="an image from a registry", refused="has no command")
def what_the_image_starts():
    no_command()


@dsl.container_component
def spaced(i: dsl.OutputPath(int), b: dsl.OutputPath(bool)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "echo ' 5' > $0; printf True > $1", i, b])


@case(stages={"spaced": {"i": 5, "b": True}, "write": {"out": "5 true"}})
def outputs_with_spaces_and_capitals():
    made = spaced()
    write(text=f"{made.outputs['i']} {made.outputs['b']}")


@dsl.container_component
def optional(out: dsl.OutputPath(str), given: Optional[str] = None, default: str = 'd"f', n: int = 4):
    given_or_none = dsl.IfPresentPlaceholder("given", then=["--given", given], else_=["none"])
    return dsl.ContainerSpec(
        image="busybox", command=["sh", "-c", ARGUMENTS, "sh", out], args=[given_or_none, f"c{default}{n}", given]
    )


@case(
    stages={
        "optional": {"out": '[none][cd"f4][]'},
        "optional-2": {"out": "[--given][G][cD5][G]"},
        "optional-3": {"out": '[none][cd"f4][]'},
    },
    expected="an input that is not passed has no value in a command on KFP; the check says so",
)
def defaults_and_optional_inputs(p: Optional[str] = None):
    optional()
    optional(given="G", default="D", n=5)
    optional(given=p)


@dsl.container_component
def placeholders(out: dsl.OutputPath(str), job: str, job_id: str, root: str, task: str, created: str, x: str):
    words = [job, job_id, root, task, created, x, "{{$}}"]
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf "%s|" "$@" > "$0"', out], args=words)


def facts_are_of_this_run(result):
    words = result["placeholders"].outputs["out"].split("|")
    job, job_id, root, task, created, x, executor_input, _ = words
    assert job == job_id == x == result.run_id
    assert (root, task) == (dsl.PIPELINE_ROOT_PLACEHOLDER, "placeholders")  # backends do not fill in the former
    assert datetime.datetime.fromisoformat(created.replace("Z", "+00:00")).tzinfo is not None
    decoded = json.loads(executor_input)
    assert decoded["inputs"]["parameterValues"]["x"] == result.run_id
    assert decoded["outputs"]["parameters"]["out"]["outputFile"].startswith(str(result.folder))
    # KFP's is that of the pipeline around the tasks.
    assert result["write"].outputs == result["write-2"].outputs


@case(check=facts_are_of_this_run)
def facts_of_the_run():
    placeholders(
        job=dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        job_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        root=dsl.PIPELINE_ROOT_PLACEHOLDER,
        task=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        created=dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
        x=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    write(text=dsl.PIPELINE_TASK_ID_PLACEHOLDER)
    write(text=dsl.PIPELINE_TASK_ID_PLACEHOLDER)
