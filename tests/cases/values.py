"""Values in AppDefs: they reach applications byte for byte, as constants, parameters, loop items and outputs."""

from typing import Dict, List

from kfp import dsl

from tests.authoring.apps import HOSTILE, PLAIN
from tests.cases import case
from tests.cases.apps import argv, echo, read, shell
from torchx_kfp import Stages

#: Without text that Argo and the kubelet change in the arguments of a pipeline: the check reports it.
TEXT = 'it\'s "$HOME" $(id)\n'


@case(
    arguments={"s": TEXT},
    results={
        "use": {**argv(TEXT, "--i=3", "[0.1]", "true", "[1,2]", '{"a":1}', "3"), "variable": f"3-{TEXT}"},
    },
)
def of_every_type(
    tracker_base: str,
    s: str = "x",
    i: int = 3,
    f: float = 0.1,
    b: bool = True,
    li: List[int] = [1, 2],
    d: Dict[str, int] = {"a": 1},
    workspace: str = "",
):
    words = (f"{s}", f"--i={i}", f"[{f}]", f"{b}", f"{li}", f"{d}", i)
    Stages(tracker_base=tracker_base, workspace=workspace).task(echo("use", *words, env={"VARIABLE": f"{i}-{s}"}))


#: Without characters above U+FFFF, which KFP's connection to its database cannot carry.
WORDS = [word for word in (*HOSTILE, *PLAIN) if not any(ord(each) > 0xFFFF for each in word)]
#: Records the bytes of its arguments in hexadecimal digits, without Python.
HEX = r"""
hex=$(for word; do printf '%s' "$word" | od -An -v -tx1; echo ,; done | tr -d ' \n')
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
printf '{"words": "%s"}' "$hex" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
"""


@case(results={"words": argv(*WORDS)})
def constants_that_argo_or_a_shell_would_change(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(echo("words", *WORDS))


@case(
    results={"words": {"words": "".join(f"{word.encode().hex()}," for word in (*HOSTILE, *PLAIN))}},
    missing="a folder as the tracker base",
)
def constants_in_an_image_with_a_shell(tracker_base: str):
    Stages(tracker_base=tracker_base).task(shell("words", HEX, *HOSTILE, *PLAIN))


@dsl.pipeline
def inner(tracker_base: str, lr: float, words: List[str], workspace: str = "") -> str:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor(words) as word:
        stages.task(echo("deep", f"{lr}-{word}"))
    return stages.task(echo("last", f"{lr}")).outputs["run_id"]


@case(
    results={
        "fields[0]": argv("--lr=0.1", "x", "2", '{"kind":"x","lr":0.1,"n":2}'),
        "fields[1]": argv("--lr=1e-05", "y z", "3", '{"kind":"y z","lr":0.00001,"n":3}'),
        "both[0,0]": argv("x:0.1:10"),
        "both[1,1]": argv("y z:1e-05:0.5"),
        "point[0]": argv("0.5"),
        "inner/deep[1]": argv("0.1-v"),
        "inner-2/deep[0]": argv("0.2-u"),
        "read": read(first="0.1", second="0.2"),
    },
)
def items_and_fields_in_loops_conditions_and_nested_pipelines(
    tracker_base: str,
    mode: str = "a",
    points: List[Dict[str, float]] = [{"lr": 0.5}],
    workspace: str = "",
):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    with dsl.ParallelFor([{"lr": 0.1, "kind": "x", "n": 2}, {"lr": 1e-5, "kind": "y z", "n": 3}]) as item:
        stages.task(echo("fields", f"--lr={item.lr}", f"{item.kind}", item.n, f"{item}"))
        with dsl.If(mode == "a"), dsl.ParallelFor([10, 0.5]) as number:
            stages.task(echo("both", f"{item.kind}:{item.lr}:{number}"))
    with dsl.ParallelFor(points) as point:
        stages.task(echo("point", f"{point.lr}"))
    first, second = (
        inner(tracker_base=tracker_base, lr=lr, words=["u", "v"], workspace=workspace) for lr in (0.1, 0.2)
    )
    stages.task(echo("read"), reads={"first": first.output, "second": second.output})


NAMES = ("漢字", "a/b ../c", "x" * 200, "UPPER_case.1", "quo\"te'")


@case(results={"read": read(**{name: str(number) for number, name in enumerate(NAMES)})})
def names_that_kfp_would_change(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    tasks = [stages.task(echo(name, str(number))) for number, name in enumerate(NAMES)]
    stages.task(echo("read"), reads=tasks)


@case(arguments={"words": "no code, no Python"}, stages={"echo": {}})
def an_image_with_a_shell(words: str, workspace: str = ""):
    Stages(workspace=workspace).task(shell("echo", 'echo "$1"', f"{words}"))
