"""Conditions and loops of Python on pipeline channels are refused, in every way to define a pipeline."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import dsl
from torchx.components import dist

from tests.authoring.apps import compile_pipeline, make_app, produce, use
from tests.refusals import Row, check_refusal, refused
from torchx_kfp import task_from_app
from torchx_kfp.errors import AppDefError, ChannelError

#: TorchX's nightly has a different name for dist.ddp.
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")]


def inside(make: Callable[[Any], object]) -> Callable[[], object]:
    """Return a call that compiles a pipeline; the function is given its parameters and an output of a task."""

    def pipeline(debug: bool = False, n: int = 2, xs: list = []) -> None:  # noqa: B006 (KFP takes the text of defaults)
        make(SimpleNamespace(debug=debug, n=n, xs=xs, acc=produce().outputs["text"]))

    return lambda: compile_pipeline(pipeline)


def loops_over(items: Callable[[Any], Any], condition: Callable[[Any], object]) -> Callable[[], object]:
    def make(given: Any) -> None:
        with dsl.ParallelFor(items(given)) as item:
            condition(item)

    return inside(make)


def asserts(given: Any) -> None:
    assert given.n > 2


def repeats(given: Any) -> None:
    while given.n:
        produce()


#: Conditions, and the beginning of the message.
CONDITIONS: list[tuple[Callable[[Any], object], str]] = [
    (lambda given: [1 for _ in "a" if given.debug], "The pipeline parameter 'debug'"),
    (lambda given: not given.n, "The pipeline parameter 'n'"),
    (lambda given: given.debug == True and given.n > 3, "The pipeline parameter 'debug'"),  # noqa: E712  # KFP has no other form
    (lambda given: given.acc > 0.9 or given.debug, "The output 'text' of 'produce'"),
    (lambda given: 1 if given.acc else 2, "The output 'text' of 'produce'"),
    (lambda given: 1 < given.n < 3, "The pipeline parameter 'n'"),
    (lambda given: max(given.n, 3), "The pipeline parameter 'n'"),
    (lambda given: any([given.debug]), "The pipeline parameter 'debug'"),
    (lambda given: list(filter(None, [given.acc])), "The output 'text' of 'produce'"),
    (lambda given: bool(2 == given.n), "The pipeline parameter 'n'"),  # noqa: SIM300 (a channel)
    (lambda given: given.n in (1, 2), "The pipeline parameter 'n'"),
    (lambda given: dsl.If(not (given.debug == True)), "The pipeline parameter 'debug'"),  # noqa: E712, SIM201 (a channel)
    (asserts, "The pipeline parameter 'n'"),
    (repeats, "The pipeline parameter 'n'"),
]
OF_LOOP = "The item of a loop", "is not None"
REFUSED: dict[type[Exception], list[Row]] = {
    ChannelError: [
        *((inside(make), name, "dsl.If(...)", "dsl.Else", "is not None", "None") for make, name in CONDITIONS),
        (loops_over(lambda _: [{"lr": 0.1}], lambda item: bool(item.lr > 0.5)), "dsl.If(...)", *OF_LOOP),
        (loops_over(lambda given: given.xs, lambda item: bool(item == "a")), "dsl.If(...)", *OF_LOOP),
        (inside(lambda given: dist.ddp(script="t.py", image="i", debug=given.debug)), "'debug'", "constant", "None"),
        (inside(lambda given: list(given.xs)), "'xs'", "dsl.ParallelFor(...)"),
        (inside(lambda given: 1 in given.xs), "'xs'", "application"),
        (inside(lambda given: len(given.xs)), "'xs'", "application"),
        (inside(lambda given: given.xs[0]), "'xs'", "item.lr"),
    ],
    AppDefError: [
        (
            inside(lambda given, name=name: task_from_app(make_app(), tracker_base="/b", **{name: given.n != 1})),
            *(name, "True or False"),
        )
        for name in ("cache", "inline", "labels", "may_fail")
    ],
}


@refused(REFUSED)
def test_python_cannot_decide_on_a_channel(error: Any, call: Callable[[], object], facts: Any) -> None:
    check_refusal(error, call, facts)


def test_containers_find_a_channel_that_is_in_them() -> None:
    found: list[bool] = []

    def pipeline(n: int = 1, m: int = 2) -> None:
        with dsl.ParallelFor([{"lr": 0.1}]) as item:
            found.extend([n in [n, m], {n: 1, m: 2}[m] == 2, item.lr in {item.lr}, n is not None])
            use("a")

    compile_pipeline(pipeline)
    assert found == [True] * 4


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
            "from kfp import dsl\nimport torchx_kfp.host",
            "torchx_kfp.host.submit(dsl.pipeline(p), host='http://h')",
        ),
    ],
)
def test_every_way_to_define_a_pipeline(imports: str, use: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(imports=imports, use=use))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "dsl.If(...)" in done.stdout, done.stderr
