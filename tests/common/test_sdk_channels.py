"""Conditions and loops of Python on pipeline channels are refused, in every way to define a pipeline."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, make_app, produce, use
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.errors import AppDefError, ChannelError

#: TorchX's nightly has a different name for dist.ddp.
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")]

CONDITIONS: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "if": (lambda debug, n, acc: [1 for _ in "a" if debug], "debug == True"),
    "not": (lambda debug, n, acc: not n, "n != 0"),
    "and": (lambda debug, n, acc: debug == True and n > 3, "debug == True"),  # noqa: E712  # KFP has no other form
    "or": (lambda debug, n, acc: acc > 0.9 or debug, "produce.outputs['text'] > 0.9"),
    "ternary": (lambda debug, n, acc: 1 if acc else 2, "produce.outputs['text'] != ''"),
    "chain": (lambda debug, n, acc: 1 < n < 3, "n > 1"),
    "max": (lambda debug, n, acc: max(n, 3), "n < 3"),
    "any": (lambda debug, n, acc: any([debug]), "debug == True"),
    "filter": (lambda debug, n, acc: list(filter(None, [acc])), "produce.outputs['text'] != ''"),
    "bool": (lambda debug, n, acc: bool(2 == n), "n == 2"),  # noqa: SIM300
    "in": (lambda debug, n, acc: n in (1, 2), "n == 1"),
    "If": (lambda debug, n, acc: dsl.If(not (debug == True)), "debug == True"),  # noqa: E712, SIM201
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_names_dsl_if(name: str) -> None:
    condition, code = CONDITIONS[name]

    def pipeline(debug: bool = False, n: int = 2) -> None:
        condition(debug, n, produce().outputs["text"])

    with pytest.raises(ChannelError, match=says(f"dsl.If({code})", "dsl.Else", "is not None")):
        compile_pipeline(pipeline)


def test_assert_and_while_are_conditions() -> None:
    def asserts(n: int) -> None:
        assert n > 2

    def repeats(n: int) -> None:
        while n:
            produce()

    for pipeline in (asserts, repeats):
        with pytest.raises(ChannelError, match=says("dsl.If", "'n'")):
            compile_pipeline(pipeline)


def test_a_function_of_a_library_needs_a_constant() -> None:
    from torchx.components import dist

    def pipeline(debug: bool = False) -> None:
        task_from_app(dist.ddp(script="t.py", image="i", debug=debug))

    with pytest.raises(ChannelError, match=says("'debug'", "constant")):
        compile_pipeline(pipeline)


@pytest.mark.parametrize(
    ("operation", "way_out"),
    [
        (lambda xs: list(xs), "dsl.ParallelFor(xs)"),
        (lambda xs: 1 in xs, "application"),
        (lambda xs: len(xs), "application"),
        (lambda xs: xs[0], "item.lr"),
    ],
)
def test_a_list_is_not_there_yet(operation: Callable[[Any], object], way_out: str) -> None:
    def pipeline(xs: list) -> None:  # type: ignore[type-arg]
        operation(xs)

    with pytest.raises(ChannelError, match=says("'xs'", way_out)):
        compile_pipeline(pipeline)


def test_an_item_of_a_loop_is_called_that() -> None:
    def pipeline(xs: list) -> None:  # type: ignore[type-arg]
        with dsl.ParallelFor([{"lr": 0.1}]) as item:
            assert item.lr > 0.5

    def other(xs: list) -> None:  # type: ignore[type-arg]
        with dsl.ParallelFor(xs) as item:
            assert item == "a"

    for made, code in ((pipeline, "dsl.If(item.lr > 0.5)"), (other, "dsl.If(item == 'a')")):
        with pytest.raises(ChannelError, match=says("The item of a loop", code)):
            compile_pipeline(made)


def test_containers_find_a_channel_that_is_in_them() -> None:
    found: list[bool] = []

    def pipeline(n: int = 1, m: int = 2) -> None:
        with dsl.ParallelFor([{"lr": 0.1}]) as item:
            found.extend([n in [n, m], {n: 1, m: 2}[m] == 2, item.lr in {item.lr}, n is not None])
            use("a")

    compile_pipeline(pipeline)
    assert found == [True] * 4


@pytest.mark.parametrize("option", ["cache", "inline", "labels", "may_fail"])
def test_a_switch_is_a_constant(option: str) -> None:
    def pipeline(debug: bool = False) -> None:
        task_from_app(make_app(), tracker_base="/tmp/r", **{option: debug != True})  # type: ignore[arg-type]  # noqa: E712

    with pytest.raises(AppDefError, match=says(option, "True or False")):
        compile_pipeline(pipeline)


SCRIPT = """
{imports}

@dsl.component
def say(text: str) -> str:
    return text

def p(debug: bool = False):
    if debug:
        say(text="always")
    say(text="a")

try:
    {use}
except ValueError as error:
    print(str(error))
"""


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        (
            "from torchx_kfp import Stages, errors\nfrom kfp import compiler, dsl",
            "compiler.Compiler().compile(dsl.pipeline(p), '')",
        ),
        ("from kfp import dsl\nimport torchx_kfp.local", "torchx_kfp.local.run(p)"),
        (
            "import torchx_kfp.host\nfrom kfp import dsl",
            "torchx_kfp.host.submit(dsl.pipeline(p), host='http://h')",
        ),
    ],
)
def test_every_way_to_define_a_pipeline(imports: str, use: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(imports=imports, use=use))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "dsl.If(debug == True)" in done.stdout, done.stderr
