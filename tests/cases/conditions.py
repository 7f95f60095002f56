"""Conditions: If, Elif, Else, OneOf, nested in loops and in each other, on values of every type."""

from typing import List

from kfp import dsl

from tests.cases import case
from tests.cases.parts import add, component, double, echo, join, make, read, total


@component
def measure() -> float:
    return 0.5


@component
def is_good() -> bool:
    return True


@case(
    stages={f"echo-{i}" if i > 1 else "echo": {"Output": str(i)} for i in range(1, 8)},
)
def operators(n: int = 3, text: str = "b"):
    value, good = measure().output, is_good().output
    conditions = [value > 0.25, value <= 0.5, good == True, n >= 3, n < 4, text == "b", text != "c"]
    for number, condition in enumerate(conditions, 1):
        with dsl.If(condition):
            echo(text=str(number))


@case(
    arguments={"x": 7},
    outputs={"Output": "middle"},
    stages={"echo": "skipped", "echo-2": {"Output": "middle"}, "echo-3": "skipped"},
)
def one_of_parameters(x: int) -> str:
    with dsl.If(x < 5):
        low = echo(text="low")
    with dsl.Elif(x < 10):
        middle = echo(text="middle")
    with dsl.Else():
        high = echo(text="high")
    return echo(text=dsl.OneOf(low.output, middle.output, high.output)).output


@case(outputs={"Output": "tails!"}, stages={"make": "skipped"})
def one_of_artifacts(side: str = "tails") -> str:
    with dsl.If(side == "heads"):
        heads = make(text="heads!")
    with dsl.Else():
        tails = make(text="tails!")
    return read(data=dsl.OneOf(heads.outputs["out"], tails.outputs["out"])).output


@case(
    outputs={"Output": "c"},
    stages={"echo": "skipped", "echo-2": "skipped", "echo-3": {"Output": "c"}},
)
def one_of_in_one_of(x: int = 3, y: int = 2) -> str:
    with dsl.If(x == 1):
        outer = echo(text="a")
    with dsl.Else():
        with dsl.If(y == 1):
            first = echo(text="b")
        with dsl.Else():
            second = echo(text="c")
        inner = echo(text=dsl.OneOf(first.output, second.output))
    return dsl.OneOf(outer.output, inner.output)


@case(
    stages={"double[0]": "skipped", "double[1]": {"Output": 4}, "add[0]": {"Output": 2}, "add[1]": "skipped"},
)
def in_a_loop():
    with dsl.ParallelFor([1, 2]) as x:
        with dsl.If(x == 2):
            double(x=x)
        with dsl.Else():
            add(a=x, b=1)


@case(outputs={"Output": 6}, stages={"double[0]": "skipped"})
def collected_from_branches() -> int:
    with dsl.ParallelFor([1, 2, 1]) as x:
        with dsl.If(x == 2):
            even = double(x=x)
        with dsl.Else():
            odd = add(a=x, b=0)
        chosen = dsl.OneOf(even.output, odd.output)
        kept = add(a=chosen, b=0)
    return total(numbers=dsl.Collected(kept.output)).output


@case(stages={"echo": "skipped", "echo-2": "skipped", "double": {"Output": 2}})
def what_reads_a_skipped_stage_is_skipped(x: int = 1):
    with dsl.If(x == 2):
        said = echo(text="never")
        echo(text=said.output)
    double(x=x)


@case(refused="compares values of different types")
def on_values_of_two_types(n: int = 3):
    with dsl.If(n == "3"):
        echo(text="never")


@case(arguments={"i": 3, "d": 1.0}, stages={"echo": {"Output": "i>d"}, "echo-2": "skipped"})
def between_channels(i: int, d: float):
    with dsl.If(i > d):
        echo(text="i>d")
    with dsl.If(d > i):
        echo(text="never")


SKIPPED = ("was skipped: its condition is false",)


@case(
    stages={"echo": "skipped", "echo-2": "skipped"},
    reasons={"echo": SKIPPED, "echo-2": SKIPPED},
)
def what_waits_for_a_skipped_stage_is_skipped(x: str = "no"):
    with dsl.If(x == "yes"):
        first = echo(text="1")
        with dsl.ParallelFor(["a"]) as item:
            echo(text=item).after(first)


@case(
    state="failed",
    stages={"echo[1]": "skipped"},
    reasons={"join": ("an iteration of the loop with 'echo' has skipped it",)},
)
def collected_where_an_iteration_has_skipped_it():
    with dsl.ParallelFor(["a", "b"]) as item, dsl.If(item != "b"):
        said = echo(text=item)
    join(words=dsl.Collected(said.output))


@case(outputs={"Output": ["a", "c"]})
def collected_as_output_from_a_branch() -> List[str]:
    with dsl.ParallelFor(["a", "b", "c"]) as item, dsl.If(item != "b"):
        said = echo(text=item)
    return dsl.Collected(said.output)
