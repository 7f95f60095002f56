"""Parameters: types, defaults, optional inputs, constants, values of several kinds in one text."""

from typing import Dict, List, NamedTuple, Optional

from tests.cases import case
from tests.cases.parts import add, component, echo, write


@component
def every_type(s: str, i: int, d: float, b: bool, li: list, st: dict) -> NamedTuple(
    "Outputs", [("s", str), ("i", int), ("d", float), ("b", bool), ("li", list), ("st", dict)]
):
    return (s, i, d, b, li, st)


VALUES = {"s": "é'\"\\{{x}}", "i": -7, "d": 1e-05, "b": False, "li": [1, "a", None], "st": {"b": [1], "a": {}}}


@case(arguments=VALUES, stages={"every-type": VALUES, "every-type-2": VALUES})
def types_through_python(s: str, i: int, d: float, b: bool, li: list, st: dict):
    first = every_type(s=s, i=i, d=d, b=b, li=li, st=st)
    every_type(**{name: first.outputs[name] for name in ("s", "i", "d", "b", "li", "st")})


class EmptyValues(NamedTuple):
    d: float
    li: list


@case(
    stages={"every-type": {"s": "", "i": 0, "d": 0.0, "b": True, "li": [], "st": {}}},
    outputs={"d": 0.0, "li": []},
)
def empty_values() -> EmptyValues:
    values = every_type(s="", i=0, d=0.0, b=True, li=[], st={})
    return EmptyValues(values.outputs["d"], values.outputs["li"])


@component
def optional(
    none: Optional[str] = None, text: Optional[str] = "default", number: Optional[int] = None, flag: bool = False
) -> str:
    return repr((none, text, number, flag))


@case(
    outputs={"Output": "(None, 'default', None, False)"},
    stages={"optional-2": {"Output": "('x', 'default', 3, True)"}},
)
def optional_inputs() -> str:
    defaults = optional()
    optional(none="x", number=3, flag=True)
    return defaults.output


@case(outputs={"Output": "(None, 'given', None, False)"}, arguments={"text": "given"})
def optional_pipeline_inputs(text: Optional[str] = None, number: Optional[int] = None) -> str:
    return optional(text=text, number=number).output


@case(
    arguments={"name": "Ada", "n": 3},
    outputs={"Output": "Hello Ada, 3 times (and 5): {'x'}"},
)
def text_of_channels(name: str, n: int) -> str:
    sum_ = add(a=n, b=2)
    return echo(text=f"Hello {name}, {n} times (and {sum_.output}): {{'x'}}").output


@component
def show(items: List[str], mapping: Dict[str, str]) -> str:
    return f"{items} {sorted(mapping.items())}"


@case(arguments={"x": "v"}, outputs={"Output": "['a', 'v', 'w'] [('k', 'v'), ('l', 'w')]"})
def channels_in_lists_and_dicts(x: str) -> str:
    w = echo(text="w").output
    return show(items=["a", x, w], mapping={"k": x, "l": w}).output


@case(
    arguments={"i": 3, "d": 1.0, "b": True, "li": [1, "a"], "st": {"b": 1, "a": "<"}},
    outputs={"Output": '3 1 true [1,"a"] {"a":"\\u003c","b":1}'},
)
def types_in_commands(i: int, d: float, b: bool, li: list, st: dict) -> str:
    return write(text=f"{i} {d} {b} {li} {st}").outputs["out"]


@case(outputs={"Output": "x" * 100_000})
def long_text() -> str:
    return echo(text=repeat(text="x", times=100_000).output).output


@component
def repeat(text: str, times: int) -> str:
    return text * times


#: Without characters above U+FFFF, which KFP's connection to its database cannot carry.
HOSTILE = "q\"'\\ $HOME $$ $(PATH) {{workflow.name}} {{=1+1}} é \x7f\n{{$.inputs.parameters['x']}} {{$}}"


@case(
    arguments={"s": HOSTILE},
    stages={"write": {"out": HOSTILE}, "write-2": {"out": ""}},
    expected="Argo and the kubelet expand the text of an argument; the check says so",
)
def text_in_commands(s: str):
    write(text=s)
    write(text="")


TRAP = "{{$.inputs.parameters['pipelinechannel--n']}}"


@case(
    arguments={"a": TRAP, "n": 3},
    stages={"write": {"out": f"[{TRAP}|3]"}, "write-2": {"out": f"<[{TRAP}|3]|{TRAP}>"}},
    expected="KFP's launcher also replaces placeholders of the stage's inputs in their values",
)
def values_that_look_like_placeholders(a: str, n: int):
    first = write(text=f"[{a}|{n}]")
    write(text=f"<{first.outputs['out']}|{a}>")
