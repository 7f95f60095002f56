"""Pipelines in pipelines: parameters, artifacts, defaults and outputs, in loops and branches, and loaded from files."""

import re
from typing import List, NamedTuple, Optional

from kfp import compiler, components, dsl

from tests.cases import case
from tests.cases.parts import add, component, double, echo, fail, join, make, read, total


@dsl.pipeline
def inner(x: int, y: int = 10) -> int:
    return add(a=double(x=x).output, b=y).output


@dsl.pipeline
def make_inside(text: str) -> dsl.Dataset:
    return make(text=text).outputs["out"]


@dsl.pipeline
def read_inside(data: dsl.Input[dsl.Dataset]) -> str:
    return read(data=data).output


@case(
    outputs={"Output": "abc"},
    stages={"read-inside/read": {"Output": "abc"}},
)
def artifacts() -> str:
    return read_inside(data=make_inside(text="abc").output).output


@case(outputs={"Output": 36}, stages={"inner[1]/add": {"Output": 12}}, arguments={"xs": [0, 1, 2]})
def in_a_loop(xs: List[int]) -> int:
    with dsl.ParallelFor(xs) as x:
        made = inner(x=x)
    return total(numbers=dsl.Collected(made.output)).output


@dsl.pipeline
def loop_inside(words: List[str]) -> List[str]:
    with dsl.ParallelFor(words) as word:
        said = echo(text=word)
    return dsl.Collected(said.output)


@case(outputs={"Output": "a+b"}, stages={"loop-inside/echo[1]": {"Output": "b"}})
def with_a_loop_inside() -> str:
    return join(words=loop_inside(words=["a", "b"]).output).output


@dsl.pipeline
def choose(side: str) -> str:
    with dsl.If(side == "heads"):
        heads = echo(text="H")
    with dsl.Else():
        tails = echo(text="T")
    return dsl.OneOf(heads.output, tails.output)


@case(refused="collects 'words' from branches")
def with_branches_inside_a_loop() -> str:
    with dsl.ParallelFor(["heads", "tails"]) as side:
        chosen = choose(side=side)
    return join(words=dsl.Collected(chosen.output)).output


@case(stages={"inner/double": "skipped", "inner/add": "skipped", "inner-2/add": {"Output": 14}})
def in_a_branch(x: int = 2):
    with dsl.If(x == 1):
        inner(x=x)
    with dsl.Else():
        inner(x=x)


@component
def say_optional(text: Optional[str] = None) -> str:
    return f"<{text}>"


@dsl.pipeline
def optional_inside(text: Optional[str] = None) -> str:
    return say_optional(text=text).output


@case(outputs={"Output": "<None>"}, stages={"optional-inside-2/say-optional": {"Output": "<x>"}})
def optional_inputs() -> str:
    nothing = optional_inside()
    optional_inside(text="x")
    return nothing.output


@case(outputs={"Output": 14}, stages={"inner/add": {"Output": 14}})
def loaded_from_yaml() -> int:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "inner.yaml")
        compiler.Compiler().compile(inner, str(path))
        loaded = components.load_component_from_text(path.read_text())
    return loaded(x=2).output


@dsl.pipeline
def fails_inside() -> str:
    return fail(message="inside").output


@case(
    state="failed",
    stages={"fails-inside/fail": "failed", "echo": "not run", "double": {"Output": 2}},
)
def failure_inside():
    echo(text=fails_inside().output)
    double(x=1)


@dsl.pipeline
def exclaim(text: str, suffix: str = "!") -> str:
    return echo(text=echo(text=f"{text}{suffix}").output).output


@dsl.pipeline
def ask(text: str) -> str:
    return exclaim(text=text, suffix="?").output


class Said(NamedTuple):
    last: str
    all: List[str]


def pods_have_names_of_their_own(result):
    pods = [stage.pod_name for stage in result.stages]
    assert {"exclaim-echo_1", "ask-1-exclaim-echo-2_1"} <= set(pods)
    assert len(set(pods)) == len(pods)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", pod) for pod in pods)


@case(
    arguments={"x": "X"},
    outputs={"last": "X!-X", "all": ["p?", "q?"]},
    stages={"exclaim-2/echo-2": {"Output": "X!-X"}, "ask[1]/exclaim/echo-2": {"Output": "q?"}},
    check=pods_have_names_of_their_own,
)
def used_twice_and_in_loops(x: str) -> Said:
    one = exclaim(text=x)
    two = exclaim(text=one.output, suffix="-X")
    with dsl.ParallelFor(["p", "q"]) as item:
        each = ask(text=item)
    return Said(two.output, dsl.Collected(each.output))
