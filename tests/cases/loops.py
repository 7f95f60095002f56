"""Loops: items of every kind, loops in loops, limits, and the tasks after them."""

from typing import List, NamedTuple

from kfp import dsl

from tests.cases import case
from tests.cases.parts import (
    add,
    component,
    double,
    echo,
    join,
    make,
    read,
    read_all,
    shell,
    total,
    write,
)


@component
def numbers(count: int) -> List[int]:
    return list(range(count))


@case(outputs={"Output": 6}, stages={"double[2]": {"Output": 4}})
def over_an_output() -> int:
    with dsl.ParallelFor(numbers(count=3).output) as x:
        doubled = double(x=x)
    return total(numbers=dsl.Collected(doubled.output)).output


@case(outputs={"Output": []})
def over_nothing() -> List[int]:
    with dsl.ParallelFor(numbers(count=0).output) as x:
        doubled = double(x=x)
    return dsl.Collected(doubled.output)


@case(
    state="failed",
    stages={"numbers": {"Output": []}, "total": "failed"},
    reasons={"total": ("the loop with 'double' had no iterations",)},
)
def fan_in_of_nothing() -> int:
    with dsl.ParallelFor(numbers(count=0).output) as x:
        doubled = double(x=x)
    return total(numbers=dsl.Collected(doubled.output)).output


@case(refused="KFP's compiler lost it")
def over_fields_in_text():
    with dsl.ParallelFor([{"label": "a", "n": 1}, {"label": "b", "n": 2}]) as item:
        write(text=f"{item.label} {item.n}")


@case(outputs={"Output": "a1+a2+b1+b2"}, stages={"pair[1,0]": {"Output": "b1"}})
def nested() -> str:
    with dsl.ParallelFor(["a", "b"]) as letter, dsl.ParallelFor([1, 2]) as number:
        made = pair(letter=letter, number=number)
    return join(words=dsl.Collected(made.output)).output


@component
def pair(letter: str, number: int) -> str:
    return f"{letter}{number}"


@case(
    outputs={"Output": 14},
    stages={
        "double[0]": {"Output": 2},
        "add[0,1]": {"Output": 3},
        "add[1,0]": {"Output": 4},
        "add[1,1]": {"Output": 5},
    },
)
def nested_with_an_output_of_the_outer_one() -> int:
    with dsl.ParallelFor([1, 2]) as x:
        doubled = double(x=x)
        with dsl.ParallelFor(numbers(count=2).output) as y:
            added = add(a=doubled.output, b=y)
    return total(numbers=dsl.Collected(added.output)).output


@case(
    arguments={"items": [{"letter": "a", "words": ["b", "c"]}, {"letter": "d", "words": ["e"]}]},
    refused=r'loops over parseJson\(string_value\)\["words"\] of another loop',
)
def over_a_list_in_the_item(items: list):
    with dsl.ParallelFor(items) as item:
        echo(text=item.letter)
        with dsl.ParallelFor(item.words) as word:
            echo(text=word)


@component
def same(numbers: List[int]) -> List[int]:
    return numbers


@case(outputs={"Output": 6}, arguments={"xs": [1, 2]})
def one_behind_another(xs: List[int]) -> int:
    with dsl.ParallelFor(xs) as x:
        first = double(x=x)
    with dsl.ParallelFor(same(numbers=dsl.Collected(first.output)).output) as y:
        second = add(a=y, b=0)
    return total(numbers=dsl.Collected(second.output)).output


@case(stages={"shell[2]": {"out": "alone"}})
def one_at_a_time_is_alone():
    with dsl.ParallelFor(["a", "b", "c"], parallelism=1):
        shell(script='mkdir alone && sleep 0.1 && rmdir alone && printf alone > "$0"')


@component
def two(first: str, second: str) -> str:
    return first + second


@case(outputs={"Output": "ac+ad+bc+bd"})
def collected_artifacts_of_nested_loops() -> str:
    with dsl.ParallelFor(["a", "b"]) as x, dsl.ParallelFor(["c", "d"]) as y:
        made = make(text=two(first=x, second=y).output)
    return read_all(data=dsl.Collected(made.outputs["out"])).output


@dsl.pipeline
def make_several() -> List[dsl.Dataset]:
    with dsl.ParallelFor(["x", "yy"]) as text:
        made = make(text=text)
    return dsl.Collected(made.outputs["out"])


@case(refused="loops over artifacts, which KFP's backend rejects")
def over_artifacts() -> str:
    with dsl.ParallelFor(make_several().output) as data:
        seen = read(data=data)
    return join(words=dsl.Collected(seen.output)).output


class ListsAsOutputs(NamedTuple):
    words: List[str]
    data: List[dsl.Dataset]


@case(outputs={"words": ["x", "yy"]}, artifacts={"data": ["x", "yy"]})
def lists_as_outputs() -> ListsAsOutputs:
    with dsl.ParallelFor(["x", "yy"]) as text:
        said = echo(text=text)
        made = make(text=text)
    return ListsAsOutputs(dsl.Collected(said.output), dsl.Collected(made.outputs["out"]))


@case(stages={"echo": {"Output": "after"}, "double[1]": {"Output": 4}})
def behind_a_loop():
    with dsl.ParallelFor([1, 2]) as x:
        doubled = double(x=x)
    echo(text="after").after(doubled)


@case(
    arguments={"items": ["x", "{{$}}"]},
    stages={
        "write[0]": {"out": "1"},
        "write[1]": {"out": "2.5"},
        "write-2[0]": {"out": "<x>"},
        "write-2[1]": {"out": "<{{$}}>"},
    },
)
def items_as_text(items: List[str]):
    with dsl.ParallelFor([1.0, 2.5]) as number:
        write(text=f"{number}")
    with dsl.ParallelFor(items) as item:
        write(text=f"<{item}>")


@case(stages={"echo[0]": "skipped", "echo[1]": {"Output": "big"}})
def conditions_on_fields():
    with dsl.ParallelFor([{"a": 1, "b": 2}, {"a": 3, "b": 4}]) as item, dsl.If(item.a > 2):
        echo(text="big")


@case(outputs={"Output": [[0, 1], [0, 1]]})
def collected_lists_are_not_joined() -> List[List[int]]:
    with dsl.ParallelFor(["a", "b"]):
        made = numbers(count=2)
    return dsl.Collected(made.output)


@component
def slow_first(letter: str) -> str:
    import time

    time.sleep(0.3 if letter == "a" else 0)
    return letter


@case(outputs={"Output": "a+b+c"})
def collected_in_the_order_of_the_items() -> str:
    with dsl.ParallelFor(["a", "b", "c"]) as letter:
        said = slow_first(letter=letter)
    return join(words=dsl.Collected(said.output)).output


@dsl.pipeline
def many_stages(items: List[str]) -> List[str]:
    with dsl.ParallelFor(items) as item:
        said = echo(text=item)
        with dsl.ParallelFor(["x"]):
            for _ in range(3):
                echo(text="never")
    return dsl.Collected(said.output)


NO_ITERATIONS = (
    "has no value for its input 'words': the loop with 'many-stages/echo', 'many-stages/echo-2', 'many-stages/echo-3' "
    "and 1 more had no iterations, "
)


@case(state="failed", stages={"join": "failed"}, reasons={"join": (NO_ITERATIONS,)})
def fan_in_of_a_nested_loop_over_nothing(items: List[str] = []):
    join(words=many_stages(items=items).output)
