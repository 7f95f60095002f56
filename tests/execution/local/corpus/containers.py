"""Container components: placeholders, optional inputs, and everything else that a command may contain."""

from typing import Optional

from kfp import dsl

from tests.execution.local.corpus import CONTAINERS, case
from tests.execution.local.corpus.parts import echo, shell, write


@dsl.container_component
def no_input(out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh"], args=["-c", 'printf none > "$0"', out])


@case(outputs={"Output": "none"}, local=CONTAINERS)
def without_input() -> str:
    return no_input().outputs["out"]


@case(outputs={"Output": "a b"}, stages={"write": {"out": "a"}}, local=CONTAINERS)
def one_after_another() -> str:
    return write(text=f"{write(text='a').outputs['out']} b").outputs["out"]


@case(outputs={"Output": "HI"}, local=CONTAINERS)
def with_python_components() -> str:
    made = shell(script='printf hi | tr a-z A-Z > "$0"')
    return echo(text=made.outputs["out"]).output


ARGUMENTS = 'out=$1; shift; printf "[%s]" "$@" > "$out"'


@dsl.container_component
def concat(name: str, out: dsl.OutputPath(str), number: int = 3):
    words = [dsl.ConcatPlaceholder(["--name=", name]), dsl.ConcatPlaceholder(["--n=", number, "-", name])]
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", ARGUMENTS, "sh", out], args=words)


@case(refused="contains dsl.ConcatPlaceholder")
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


@case(refused="contains dsl.ConcatPlaceholder")
def present_or_not() -> str:
    if_present(name="x")
    return if_present().outputs["out"]


@dsl.container_component
def list_and_dict(items: list, mapping: dict, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", ARGUMENTS, "sh", out, items, mapping])


@case(outputs={"Output": '[["a",1,true]][{"a":{},"b":1.5}]'}, local=CONTAINERS)
def lists_and_dicts() -> str:
    return list_and_dict(items=["a", 1, True], mapping={"b": 1.5, "a": {}}).outputs["out"]


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
    local=CONTAINERS,
)
def outputs_of_every_type():
    write_types()


@case(outputs={"Output": "{{$.pipeline_job_name}} {{$.pipeline_task_name}}"}, local=CONTAINERS)
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


@case(state="failed", stages={"facts": "failed"}, local=CONTAINERS)
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


@case(refused="has no command")
def what_the_image_starts():
    no_command()
