"""Functions of a module as stages: what they are called with, and what becomes of what they return."""

# No annotations from __future__: KFP reads the annotations of pipelines.

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl
from torchx import specs

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline
from tests.facts import says
from tests.refusals import check_refusal, refused
from torchx_kfp import Stages, local
from torchx_kfp.errors import AppDefError
from torchx_kfp.local import Watch

pytestmark = pytest.mark.versions

MODULE = """
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Iterator, Mapping, NamedTuple, Optional, Protocol, TypedDict, Union

from torchx_kfp.tracking import current_run

Model = TypedDict("Model", {"loss": float, "model-uri": str})


class Noted(Model, total=False):
    note: str


def rates(number: int) -> list:
    return [{"rate": each / 10} for each in range(number)]


def fit(rate: float, epochs: Optional[int] = None) -> Noted:
    return {"loss": rate * 2, "model-uri": f"s3://models/{rate}", "epochs": epochs or 1}


def judge(loss: float, limit: float = 0.1) -> bool:
    current_run().put(seen=loss)
    return loss < limit


def best(fit, loss, *, suffix: str):
    return {"best": min(loss), "models": [each["model-uri"] for each in fit], "text": suffix}


def halve(los: float = 1.0):
    return los / 2


def show(text: str = "", texts: list[str] = [], settings: dict[str, object] = {}):
    return {"shown": repr((text, texts, settings))}


def untyped(value):
    pass


def in_folder(folder: Path = Path("data")):
    pass


def decorate(function):
    def call(*args):
        return function(*args)

    return call


@decorate
def decorated():
    pass


def sequence(values: Sequence[int]):
    pass


def cached(cache: bool):
    pass


async def awaited():
    return 1

def yielding():
    yield 1

def any_named(**rates):
    return rates

def by_position(rate: float = 0.1, /):
    pass


def unknown(value: "Missing"):
    pass


class Scores(NamedTuple):
    loss: float
    sizes: list


class Pair(NamedTuple):
    loss: float
    shape: tuple


class Shaped(TypedDict):
    shape: tuple[int, int]


class Array(Protocol):
    def tolist(self) -> list: ...


def returning(annotation):
    def function():
        pass

    function.__annotations__["return"] = annotation
    return function


names = {
    "tuple": tuple, "pair": tuple[float, float], "set": set[str], "bytes": bytes, "path": Path,
    "iterator": Iterator[int], "either": Union[set, bytes, None], "named": Pair, "typed": Shaped,
}
fitting = [None, Any, object, float, dict[str, float], Mapping, Sequence[float], Optional[int], Scores, Model, Array,
           Annotated[int, 1], Union[int, tuple]]
for name, annotation in names.items():
    globals()[f"returns_{name}"] = returning(annotation)
    globals()[f"returns_{name}"].__name__ = f"returns_{name}"
for number, annotation in enumerate(fitting):
    globals()[f"fits_{number}"] = returning(annotation)
    globals()[f"fits_{number}"].__name__ = f"fits_{number}"
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module ``functions_here``, which stages can import as well."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions_here.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        yield importlib.import_module("functions_here")
    del sys.modules["functions_here"]


def ran(pipeline: Any, folder: Path) -> dict[str, Any]:
    """Run the pipeline, and return the results of its stages by name."""
    done = local.run(pipeline, {"tracker_base": str(folder / "base")}, output_dir=folder / "runs", watch=Watch())
    assert done.state == "succeeded"
    return {stage.name: dict(stage.results) for stage in done.stages if stage.state == "succeeded"}


def test_parameters_and_upstream_results_are_arguments_and_what_is_returned_is_recorded(
    module: Any, tmp_path: Path
) -> None:
    @dsl.pipeline
    def pipeline(tracker_base: str, number: int = 2, limit: float = 0.15) -> None:
        stages = Stages(tracker_base=tracker_base)
        rates = stages.python(module.rates, image="i", number=number)
        with dsl.ParallelFor(rates.outputs["rates"]) as trial:
            fit = stages.python(module.fit, image="i", rate=trial.rate, name="fitting")
            judged = stages.python(module.judge, image="i", reads=fit, limit=limit)
            with dsl.If(judged.outputs["judge"] == False):  # noqa: E712 (a channel)
                stages.python(module.judge, image="i", loss=fit.outputs["loss"], name="again")
        fits = dsl.Collected(fit.outputs["run_id"])
        stages.python(module.best, image="i", reads={"fit": fits}, suffix=f"up to {limit}")

    assert ran(pipeline, tmp_path) == {
        "rates": {},
        "fitting[0]": {"loss": 0.0, "model-uri": "s3://models/0.0", "epochs": 1},
        "fitting[1]": {"loss": 0.2, "model-uri": "s3://models/0.1", "epochs": 1},
        "judge[0]": {"seen": 0.0, "judge": True},
        "judge[1]": {"seen": 0.2, "judge": False},
        "again[1]": {"seen": 0.2, "judge": False},
        "best": {"best": 0.0, "text": "up to 0.15"},
    }


def test_text_arrives_as_it_is(module: Any, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(tracker_base: str, last: str = HOSTILE[-1]) -> None:
        stages = Stages(tracker_base=tracker_base)
        stages.python(module.show, image="i", texts=[*HOSTILE, *PLAIN], settings={"$$": None})
        stages.python(module.show, image="i", text=last, name="parameter")

    @dsl.pipeline
    def constants(tracker_base: str) -> None:
        stages = Stages(tracker_base=tracker_base)
        for index, text in enumerate([*HOSTILE, *PLAIN]):
            stages.python(module.show, image="i", text=text, name=f"show-{index}")

    found = ran(pipeline, tmp_path)
    assert found["show"] == {"shown": repr(("", [*HOSTILE, *PLAIN], {"$$": None}))}
    assert found["parameter"] == {"shown": repr((HOSTILE[-1], [], {}))}
    expected = {f"show-{index}": {"shown": repr((text, [], {}))} for index, text in enumerate([*HOSTILE, *PLAIN])}
    assert ran(constants, tmp_path) == expected


def test_a_declared_result_of_ones_own_replaces_those_of_the_annotation(module: Any) -> None:
    def pipeline(tracker_base: str) -> None:
        stages = Stages(tracker_base=tracker_base)
        task = stages.python(module.judge, image="i", loss=0.1, results={"seen": float})
        assert task.outputs.keys() == {"run_id", "seen", "metrics"}

    compile_pipeline(pipeline)


def test_a_stage_that_is_not_tracked_declares_nothing(module: Any) -> None:
    def pipeline(loss: float) -> None:
        assert not Stages().python(module.judge, image="i", loss=loss).outputs
        assert not Stages(tracker_base="/data").python(module.judge, image="i", loss=loss, tracker_base=None).outputs

    compile_pipeline(pipeline)


@pytest.mark.parametrize(("arguments", "imported"), [(["-m", "package.flow"], "package.flow"), (["flow.py"], "flow")])
def test_a_function_of_the_program_itself_has_the_name_with_which_a_stage_imports_it(
    tmp_path: Path, arguments: list[str], imported: str
) -> None:
    flow = """
from kfp import dsl
from torchx_kfp import Stages

def fit(rate: float) -> None: ...

@dsl.pipeline
def pipeline(tracker_base: str):
    print(Stages(tracker_base=tracker_base).python(fit, image="i", rate=0.1).inputs["stage"])
"""
    for file in ("package/flow.py", "flow.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(flow)
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"fit|torchx_kfp.tracking.call|{imported}|fit|rate=0.1"


_python: Any = Stages().python  # whose types refuse what follows


def _component(rate: float) -> float:
    return rate


def calling(name: str, make: Callable[[Any], dict[str, Any]] = lambda channel: {}) -> Callable[[], object]:
    """Return a call that makes a stage of a function with these arguments."""

    def pipeline(tracker_base: str, number: float = 0.1) -> None:
        function = getattr(importlib.import_module("functions_here"), name, lambda: 1)
        Stages(tracker_base=tracker_base).python(function, image="i", **make(number))

    return lambda: compile_pipeline(pipeline)


#: What the annotations of functions say that no stage can record.
UNFIT = {
    "tuple": "tuple, which",
    "pair": "tuple[float, float], which",
    "set": "set[str]",
    "bytes": "bytes",
    "path": "pathlib.Path",
    "iterator": "Iterator[int]",
    "either": "Union[set, bytes, NoneType]",
    "named": "functions_here.Pair, with tuple inside",
    "typed": "functions_here.Shaped, with tuple[int, int] inside",
}


def test_functions_may_return_all_that_can_be_recorded(module: Any) -> None:
    for number in range(len(module.fitting)):
        calling(f"fits_{number}")()


@refused(
    {
        AppDefError: [
            (calling("judge"), "judge() needs 'loss'", "stages.python(judge, loss=...)", "reads=task"),
            (calling("judge", lambda _: {"los": 1}), "judge() has no parameter 'los'", "'loss'?", "loss, limit"),
            (calling("awaited"), "awaited() is async", "Write a function with def", "asyncio.run"),
            *(
                (calling(f"returns_{name}"), f"returns_{name}() returns {text}", "cannot be recorded", "by name")
                for name, text in UNFIT.items()
            ),
            (calling("yielding"), "yielding() is a generator", "Write a function with def", "return a list"),
            (
                calling("any_named", lambda _: {"rate": 1}),
                "any_named() has no",
                "'**rates'",
                "def any_named(rate: float)",
            ),
            (calling("judge", lambda _: {"cach": 1}), "'cach'", "Did you mean 'cache'?"),
            (calling("judge", lambda _: {"retries": 3}), "'retries'", "methods of a task: task.set_retry(3)"),
            (calling("judge", lambda _: {"loss": "much"}), "loss of judge() is float", "'much'"),
            (calling("judge", lambda _: {"loss": None}), "loss of judge() is float, but gets None", "Pass a value"),
            (
                calling("fit", lambda _: {"rate": 1, "epochs": None}),
                "epochs of fit() is int, but gets None. Leave it out: that is its default.",
            ),
            (calling("judge", lambda it: {"loss": it > 1}), "loss of judge() is", "(ConditionOperation)"),
            (calling("by_position"), "'rate' of by_position()", "positional-only", "Remove the '/'"),
            (calling("judge", lambda it: {"loss": [it]}), "loss of judge()"),
            (calling("judge", lambda _: {"loss": float}), "loss of judge() is float, but gets <class 'float'>"),
            (calling("rates", lambda it: {"number": it}), "number of rates() is int", "a channel for float"),
            (calling("rates", lambda _: {"number": 0.5}), "number of rates() is int", "0.5"),
            (calling("rates", lambda _: {"number": True}), "number of rates() is int", "True"),
            (calling("show", lambda it: {"settings": {"a": it}}), "settings of show()", "channel inside"),
            (
                calling("show", lambda _: {"settings": {"a": {1}}}),
                "settings of show() is dict",
                "not JSON serializable",
            ),
            (calling("show", lambda _: {"settings": {"a": [{1: 2}]}}), "settings of show() is dict", "the key 1"),
            (calling("untyped", lambda _: {"value": 1}), "value of untyped() has no type", "Annotate it with str"),
            (
                calling("sequence", lambda _: {"values": [1]}),
                "of sequence() is annotated with collections.abc.Sequence[int]",
            ),
            (
                calling("in_folder", lambda _: {"folder": "a"}),
                "folder of in_folder() is annotated with pathlib.Path, which a stage cannot pass on",
                "Annotate it with str",
            ),
            (calling("cached", lambda _: {"cache": True}), "cached() has the parameter 'cache'", "Rename it."),
            (
                calling("unknown", lambda _: {"value": 1}),
                "annotations of unknown()",
                "'Missing'",
                "that the module has",
            ),
            (calling("none"), "<lambda>", "Define it with def at the top level of a file", "from train import fit."),
            (
                lambda: _python(functools.partial(compile_pipeline), image="i"),
                "functools.partial(<function compile_pipeline",
                "from train import fit.",
            ),
            (calling("decorated"), "decorate.<locals>.call", "If a decorator made it, use functools.wraps there."),
            (lambda: _python(specs.AppDef("a"), image="i"), "AppDef(name='a'", "stages.task(app)"),
            (lambda: _python({"loss": 1}, image="i"), "{'loss': 1}", "the function itself"),
            (
                lambda: _python(dsl.component(_component, base_image="i"), image="i"),
                "of type PythonComponent",
                "in the pipeline",
            ),
            (calling("judge", lambda _: {"reads": "prepare"}), "reads", "prepare"),
        ],
    }
)
def test_a_refusal_shows_the_value_and_the_way_out(error: Any, call: Any, facts: Any) -> None:
    check_refusal(error, call, facts)


@pytest.mark.parametrize("collected", [False, True])
def test_a_parameter_named_nearly_as_a_result_that_is_read_is_refused(collected: bool) -> None:
    """It would get its default in silence."""
    functions: Any = importlib.import_module("functions_here")

    def reading(**arguments: float) -> str:
        def pipeline(tracker_base: str) -> None:
            stages = Stages(tracker_base=tracker_base)
            with dsl.ParallelFor([0.1]) as rate:
                fitted: Any = stages.python(functions.fit, image="i", rate=rate)
            if not collected:
                fitted = stages.python(functions.fit, image="i", name="last", rate=0.5)
            reads = {"fitted": dsl.Collected(fitted.outputs["run_id"]) if collected else fitted}
            stages.python(functions.halve, image="i", reads=reads, **arguments)

        return compile_pipeline(pipeline)

    with pytest.raises(AppDefError, match=says("'los'", "'loss'", "stages.python(halve, los=1.0)")):
        reading()
    assert "los=1.0" in reading(los=1.0)


def test_the_stages_of_functions_share_an_image_variables_and_resources() -> None:
    functions: Any = importlib.import_module("functions_here")
    shared: dict[str, Any] = {"image": "shared:1", "env": {"MODE": "all"}, "resource": specs.Resource(2, 0, 512)}

    def pipeline(tracker_base: str) -> None:
        stages = Stages(tracker_base=tracker_base, **shared)
        fitted = stages.python(functions.fit, rate=0.1)
        stages.python(functions.judge, image="own:1", env={}, reads=fitted)
        stages.task(specs.AppDef("app", [specs.Role("app", image="of-role:1", entrypoint="true")]))

    deployed: Any = next(iter(yaml.safe_load_all(compile_pipeline(pipeline))))["deploymentSpec"]["executors"]
    fit, judge, app = (deployed[f"exec-{name}"]["container"] for name in ("fit", "judge", "app"))
    assert [each["image"] for each in (fit, judge, app)] == ["shared:1", "own:1", "of-role:1"]
    assert ["MODE" in str(each) for each in (fit, judge, app)] == [True, False, False]
    assert ["resources" in each for each in (fit, judge, app)] == [True, True, False]


def test_an_image_is_needed_and_belongs_into_the_role_of_an_app() -> None:
    functions: Any = importlib.import_module("functions_here")
    with pytest.raises(AppDefError, match=says("fit", "has no image", "Stages(image=...)")):
        compile_pipeline(lambda: Stages().python(functions.fit, rate=0.1))
    with pytest.raises(TypeError, match=says("'image'", "AppDef's role")):
        compile_pipeline(lambda: Stages().task(specs.AppDef("app"), image="i"))
    wrong: Any = ["MODE"]
    with pytest.raises(AppDefError, match=says("env of role 'fit'", "['MODE']", "a dict")):
        compile_pipeline(lambda: Stages(image="i", env=wrong).python(functions.fit, rate=0.1))
