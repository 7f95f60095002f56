"""TorchX component functions as KFP components."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035, UP045
# No annotations from __future__: TorchX and KFP read the annotations of functions.

import copy
import dataclasses
import functools
import inspect
import json
import re
import shlex
import urllib.parse
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Dict, List, Optional

import pytest
from kfp import dsl
from torchx import specs
from torchx.components import dist, utils

from tests.authoring.apps import compile_pipeline, load
from tests.facts import says
from tests.refusals import Row, check_refusal, refused
from torchx_kfp import component_from_function, local
from torchx_kfp.errors import AppDefError
from torchx_kfp.local import Watch

#: TorchX's nightly has a different name for dist.ddp.
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")]

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('RATE'), os.environ.get('NAME')]))"


def show(*args: str, env: Optional[Dict[str, str]] = None, image: str = "image:1") -> specs.AppDef:
    role = specs.Role("show", image=image, entrypoint="python", args=["-c", SHOW, *args], env=env or {})
    return specs.AppDef("show", roles=[role])


def train(lr: float, epochs: int = 3, verbose: bool = False, *, image: str) -> specs.AppDef:
    """Trains a model.

    On whatever data there is.

    Args:
        lr: how fast it learns
        epochs: how often
        verbose: whether it talks
        image: an image with the application
    """
    env = {"RATE": str(lr), "NAME": "rate-" + image}
    return show("--lr", str(lr), f"--epochs={epochs}", f"{verbose}", env=env, image=image)


def types(
    text: str,
    number: int,
    ratio: float,
    flag: bool,
    items: List[int],
    table: Dict[str, float],
    name: str = "x",
) -> specs.AppDef:
    return show(text, f"{number}", str(ratio), f"{flag}", f"{items}", str(table), name)


def inputs_of(component: Any) -> dict[str, tuple[str, Any]]:
    return {name: (spec.type, spec.default) for name, spec in (component.component_spec.inputs or {}).items()}


def test_inputs_have_the_names_types_defaults_and_descriptions_of_the_parameters() -> None:
    component = component_from_function(train)
    assert inputs_of(component) == {
        "lr": ("Float", None),
        "epochs": ("Integer", 3),
        "verbose": ("Boolean", False),
        "image": ("String", None),
    }
    inputs = component.component_spec.inputs
    assert {name: spec.description for name, spec in inputs.items()} == {
        "lr": "how fast it learns",
        "epochs": "how often",
        "verbose": "whether it talks",
        "image": "an image with the application",
    }
    assert not inputs["lr"].optional
    assert inputs["epochs"].optional
    assert component.component_spec.description.splitlines()[0] == "Trains a model."
    assert component.component_spec.description.endswith("On whatever data there is.")


def run(tmp_path: Path, pipeline: Any, **arguments: Any) -> dict[str, Any]:
    done = local.run(dsl.pipeline(pipeline), arguments, output_dir=tmp_path / "runs", watch=Watch())
    done.raise_for_failure()
    return {stage.name: json.loads(stage.log_file.read_text()) for stage in done.stages if stage.log_file}


def test_values_of_every_type_arrive(tmp_path: Path) -> None:
    by_name, by_type = component_from_function(train), component_from_function(types)
    fixed = component_from_function(train, lr=0.125, image="i:1")
    assert {name: kind for name, (kind, _) in inputs_of(by_type).items()} == {
        "text": "String",
        "number": "Integer",
        "ratio": "Float",
        "flag": "Boolean",
        "items": "List",
        "table": "Dict",
        "name": "String",
    }
    assert set(inputs_of(fixed)) == {"epochs", "verbose"}

    def pipeline(rate: float = 0.5, text: str = "it's $HOME") -> None:
        by_name(lr=rate, image="a:1")
        by_name(lr=0.25, epochs=7, verbose=True, image="b:2")
        by_type(text=text, number=3, ratio=0.5, flag=True, items=[1, 2], table={"a": 0.5})
        fixed()

    assert run(tmp_path, pipeline) == {
        "show": [["--lr", "0.5", "--epochs=3", "false"], "0.5", "rate-a:1"],
        "show-2": [["--lr", "0.25", "--epochs=7", "true"], "0.25", "rate-b:2"],
        "show-3": [["it's $HOME", "3", "0.5", "true", "[1,2]", '{"a":0.5}', "x"], None, None],
        "show-4": [["--lr", "0.125", "--epochs=3", "false"], "0.125", "rate-i:1"],
    }


def test_passing_a_constant_names_the_way_out() -> None:
    def noted(note: Optional[str] = None, image: str = "i") -> specs.AppDef:
        return show(note or "", image=image)

    def pipeline(text: str) -> None:
        component_from_function(noted)(note=text)

    facts = (
        "'note' is not an input",
        "'show'",
        "keeps its default None",
        "another default",
        "(FUNCTION(note=f'{channel}'))",
    )
    with pytest.raises(AppDefError, match=says(*facts)):
        compile_pipeline(pipeline)


def test_an_error_names_what_was_none() -> None:
    def one_of(script: str = "", module: Optional[str] = None) -> specs.AppDef:
        raise ValueError("needs one of script and module")

    facts = "one of script and module", "its inputs (script)", "with None, their default, for module", "NAME=..."
    with pytest.raises(AppDefError, match=says(*facts)):
        component_from_function(one_of)
    with pytest.raises(AppDefError, match=r"only at run time\. Give parameters"):
        component_from_function(one_of, module="m")


def test_star_args_are_constants() -> None:
    component = component_from_function(show, args=["a b", "$$$$"])
    assert set(inputs_of(component)) == {"image"}
    assert component.component_spec.implementation.container.command[-2:] == ["a b", "\\0044$"]


def test_a_default_of_none_stays_none() -> None:
    def optional(name: Optional[str] = None) -> specs.AppDef:
        return show("anonymous" if name is None else name)

    assert inputs_of(component_from_function(optional)) == {}
    assert "me" in component_from_function(optional, name="me").component_spec.implementation.container.command


# TorchX's own

#: Components of TorchX, what is needed to call them, and the inputs that their components have.
TORCHX: list[tuple[Callable[..., specs.AppDef], dict[str, Any], set[str]]] = [
    (utils.echo, {}, {"msg", "image"}),
    (utils.touch, {}, {"file", "image"}),
    (utils.sh, {"args": ["echo", "it's"]}, {"image"}),
    (utils.python, {"m": "app", "args": ["--x"]}, {"image"}),
    (utils.copy, {}, {"src", "dst", "image"}),
    (utils.booth, {}, {"x1", "x2", "trial_idx", "tracker_base", "image"}),
    (dist.ddp, {"script": "train.py", "script_args": ["--lr", "0.1"], "j": "1x2"}, {"image", "tee"}),
]


@pytest.mark.parametrize(("function", "needed", "inputs"), TORCHX)
def test_components_of_torchx_are_made_with_the_call_in_the_error(
    function: Callable[..., specs.AppDef], needed: dict[str, Any], inputs: set[str]
) -> None:
    call: Callable[[], Any] = functools.partial(component_from_function, function, **needed)
    names = {"component_from_function": component_from_function, function.__name__: function}
    component = None
    for _ in range(8):  # one for each line that needs a value
        try:
            component = call()
            break
        except AppDefError as error:
            text = str(error).rpartition("Give them as constants: ")[2].rstrip(".")
            call = functools.partial(eval, text, names)
    assert set(inputs_of(component)) - {"rdzv_conf"} == inputs
    values = {
        name: {"String": "x", "Float": 1.5, "Integer": 2}[kind] for name, (kind, _) in inputs_of(component).items()
    }
    compile_pipeline(lambda: component(**values) and None)


# What is rejected

OPTIONS = {"adam": "fast", "sgd": "slow"}


def changed(**fields: Any) -> specs.AppDef:
    """Return an AppDef whose role has these fields, or which has this name."""
    app = show("x")
    app.name = fields.pop("app_name", app.name)
    app.roles[0] = dataclasses.replace(app.roles[0], **fields)
    return app


def swallow(x: Any) -> str:
    try:
        return str(x * 2)
    except Exception:  # as component functions do
        return "1"


def swallow_value_error(x: Any) -> str:
    try:
        return str(int(str(x)))
    except ValueError:
        return "1"


def made(kind: str, body: str) -> Callable[..., specs.AppDef]:
    """Return a function of a parameter ``x`` of a type, which consists of an expression."""
    modules = {"copy": copy, "re": re, "shlex": shlex, "urllib": urllib, "PurePosixPath": PurePosixPath}
    names = {**globals(), **modules}
    exec(f"def function(x: {kind}):\n    return {body}", names)  # noqa: S102 - the bodies below
    function: Callable[..., specs.AppDef] = names["function"]
    return function


#: By the type of the parameter, expressions that need its value, and what the message says of some of them.
NEED_VALUES: dict[str, dict[str, str]] = {
    "str": {
        "show('a' if x == 'fast' else 'b')": "the operation eq",
        "show('x', image=x.split(':')[0])": "its .split()",
        "show(str(Path(x).name), str(x)[3:])": "the operation bool",
        "changed(app_name=x)": "where no channel can be: '7'",
        "show('x', env={f'{x}': '1'})": "the operation hash",
        **dict.fromkeys(
            [
                "show(*shlex.split(x))",
                "show(OPTIONS.get(x, 'none'))",
                "show('known' if x in {'adam'} else 'unknown')",
                "show(*str(x).split(','))",
                "show(*(x + ',b').split(','))",
                "show(str(x).replace('-', '_'))",
                "show(f' {x}'.strip().title())",
                "show('yes' if isinstance(x, Path) or type(x) is str else 'no')",
                "show(f'{x!r}')",
                "show(f'{[x]}')",
                "show('%.3s' % (x,))",
                "show(f'{x!s:>60}')",
                "show(re.sub(r'[^a-z0-9]', '-', x))",
                "show('digits' if re.match(r'\\d+', x) else 'none')",
                "show(bytes(x, 'utf8').hex())",
                "show(urllib.parse.quote(x))",
                "show(json.dumps({'x': x}))",
                "show(swallow(x))",
                "show(swallow_value_error(x))",
                "show(image='a:1' if str(x) == '7' else 'b:1')",
                "show(OPTIONS.get(f'{x}', x))",
                "show('prod' if f'{x}' == 'production' else 'dev')",
                "show(str(x).replace('s3://', 's3a://'), f'{x}'[:63])",
                "show(f'--x={x}'.strip(), f'--x={x}'.replace('ü', 'u'))",
                "show(str(PurePosixPath('/data') / x))",
                "show([x, str(len(x))][f'{x}' == 'a'])",
            ],
            "",
        ),
    },
    "int": {
        "show(f'{x * 100}')": "the operation mul",
        "changed(num_replicas=x)": "where no channel can be: 1000000",
        "changed(resource=specs.Resource(cpu=x, gpu=0, memMB=-1))": "where no channel can be: 1000000",
        "show(f'{x!r}')": "",
        "show(f'{[x]}')": "",
        "show({1: 'one'}.get(x, 'many'))": "",
        "show(swallow(x))": "",
    },
    "float": {
        "show(f'{x:.3f}')": "the format '.3f'",
        "show('float' if isinstance(x, float) else 'other')": "",
        "show(json.dumps({'n': x}))": "",
    },
    "bool": {
        "show(*(['--flag'] if x else []))": "the operation bool",
        "show('yes' if x is True else 'no')": "",
        "show('yes' if str(x) == 'True' else 'no')": "",
    },
    "List[int]": {"show(*[str(item) for item in x])": "the operation iter", "show(*map(str, x))": ""},
    "Dict[str, str]": {"show(env=x)": ""},
}
CONSTANTS: dict[str, Any] = {"str": "a", "int": 1, "float": 0.5, "bool": True, "List[int]": [1], "Dict[str, str]": {}}


@pytest.mark.parametrize(("kind", "body"), [(kind, body) for kind, bodies in NEED_VALUES.items() for body in bodies])
def test_a_parameter_is_text_or_a_constant(kind: str, body: str) -> None:
    """Nothing is silently built of a placeholder, whatever operation asks for the value."""
    function = made(kind, body)
    with pytest.raises(AppDefError, match=r"- 'x': |It was called with placeholders for its inputs \(x\)") as caught:
        component_from_function(function)
    assert NEED_VALUES[kind][body] in str(caught.value)
    assert not inputs_of(component_from_function(function, x=CONSTANTS[kind]))


def several(a: int = 1, b: int = 2, c: str = "x") -> specs.AppDef:
    steps = a * 100
    return show(str(steps), str(b * 2), c)


def placed(a: int = 1, b: int = 2, c: str = "x") -> specs.AppDef:
    return changed(num_replicas=a, max_retries=b, args=[c])


def test_the_message_has_the_line_and_the_call_that_works() -> None:
    first = several.__code__.co_firstlineno
    begins = r"^The function '{}' uses parameters for more than text, so KFP cannot fill them in at run time:\n"
    with pytest.raises(
        AppDefError,
        match=begins.format("several")
        + rf"- 'a': the operation mul, {__file__}:{first + 1}\n- 'b': the operation mul, {__file__}:{first + 2}\n"
        r"Give them as constants: component_from_function\(several, a=1, b=2, c='y'\)\.$",
    ):
        component_from_function(several, c="y")
    with pytest.raises(
        AppDefError,
        match=begins.format("placed")
        + r"- 'a': .* where no channel can be: 1000000\n- 'b': .* where no channel can be: 1000000\n"
        r"Give them as constants: component_from_function\(placed, a=1, b=2\)\.$",
    ):
        component_from_function(placed)


@pytest.mark.parametrize(
    "body",
    [
        "show(x, f'--x={x}', '--x=' + x, '--x=%s' % x, '{}'.format(x), ''.join([x, '/y']), str(x))",
        "show(copy.deepcopy([x])[0])",
        "show(env={'X': x}, image=x)",
        "utils.sh('echo', x, f'--x={x}')",
        "specs.AppDef('a', roles=[specs.Role('a', 'i', entrypoint='sh', args=['-c', 'echo ' + shlex.quote(x)])])",
    ],
)
def test_text_in_every_way(body: str) -> None:
    component = component_from_function(made("str", body))
    assert "x" in inputs_of(component)
    if "sh" in (command := component.component_spec.implementation.container.command)[:3]:
        assert '"${TORCHX_KFP_X}"' in command[-1], "no code, whatever it contains: see test_inline_code"


ENV = {"A": "1"}
ROLE = specs.Role("shared", image="i", entrypoint="e")


def changes_what_it_has(x: str, *, env: Dict[str, str], args: List[str]) -> specs.AppDef:
    env["X"] = ENV["X"] = x
    args += ["--x", x]
    ROLE.args = args
    return specs.AppDef("a", roles=[dataclasses.replace(ROLE, env={**ENV, **env})])


def test_a_function_may_change_what_it_is_given() -> None:
    """It is called several times, and values that it was tried with do not stay in the component."""
    constants = {"env": {"A": "1"}, "args": ["a"]}
    component = component_from_function(changes_what_it_has, **copy.deepcopy(constants))
    command = component.component_spec.implementation.container.command
    assert command == ["env", "A=1", "X={{$.inputs.parameters['x']}}", "e", "a", "--x", "{{$.inputs.parameters['x']}}"]
    given = copy.deepcopy(constants)
    component_from_function(changes_what_it_has, **given)
    assert given == constants


def test_an_image_in_text() -> None:
    def tagged(tag: str = "1") -> specs.AppDef:
        return show("x", image=f"repo/app:{tag}")

    with pytest.raises(AppDefError, match="The image has 'tag' inside text"):
        component_from_function(tagged)
    spec, _ = load(compile_pipeline(lambda: component_from_function(tagged, tag="7")() and None))
    (executor,) = spec["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == "repo/app:7"


def test_types_come_from_defaults_too() -> None:
    def untyped(a, b=3, c=0.5, d=True, e="x"):
        return show(f"{a}{b}{c}{d}{e}")

    assert {name: kind for name, (kind, _) in inputs_of(component_from_function(untyped)).items()} == {
        "a": "String",
        "b": "Integer",
        "c": "Float",
        "d": "Boolean",
        "e": "String",
    }


class Trains:
    def __call__(self, lr: float, /, image: str = "i:1") -> specs.AppDef:
        return show(str(lr), image=image)


class Wraps:
    """A decorator, whose objects have the annotations of the function."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> specs.AppDef:
        function: Any = inspect.unwrap(self)
        return function(*args, **options)


@pytest.mark.parametrize(
    "function", [Trains(), Trains().__call__, functools.partial(Trains()), Wraps(Trains().__call__)]
)
def test_whatever_can_be_called_is_a_function_also_with_positional_only_parameters(function: Any) -> None:
    component = component_from_function(function)
    assert inputs_of(component) == {"lr": ("Float", None), "image": ("String", "i:1")}
    assert component.component_spec.implementation.container.command[-1] == "{{$.inputs.parameters['lr']}}"


@pytest.mark.parametrize(
    "default", ["float = float('nan')", "float = float('-inf')", "int = 2**70", "int = 'x'", "str = 5", "bool = 1"]
)
def test_defaults_that_kfp_cannot_pass_on(default: str) -> None:
    function = made(default, "show(f'{x}')")
    facts = ["'x'", "'function'", "parameter", "component_from_function"]
    check_refusal(AppDefError, lambda: component_from_function(function), facts)


def test_what_a_function_raises_is_said_with_its_line() -> None:
    def fails(x: str) -> specs.AppDef:
        return show({"a": "b"}["c"], x)

    with pytest.raises(
        AppDefError,
        match=says("'fails'", "KeyError: 'c'", f"{__file__}:", "(x)", "component_from_function(fails, NAME=...)"),
    ):
        component_from_function(fails)


def takes_a_path(path: Path) -> specs.AppDef:
    return show(str(path))


def takes_replicas(count: int) -> specs.AppDef:
    return changed(num_replicas=count)


def nothing() -> None:
    return None


CALLS: list[str] = []


def builds_another_one(x: str = "a") -> specs.AppDef:
    CALLS.append("")
    return show(x, f"{len(CALLS)}")


WRONG_CALLS: dict[type[Exception], list[Row]] = {
    AppDefError: [
        (lambda: component_from_function(train, rate=1), "'train'", "'rate'"),
        (lambda: component_from_function(show, args="a"), "args='a'", "'show'"),
        (lambda: component_from_function(takes_replicas, count=2), "num_replicas=2"),
        *(
            (
                lambda constants=constants: component_from_function(builds_another_one, **constants),
                *("'builds_another_one' builds a different AppDef each time", "constants", "NAME=..."),
            )
            for constants in ({}, {"x": "a"})
        ),
        (lambda: component_from_function(takes_a_path), "'path'", "'takes_a_path'", "Path'", "path="),
        (lambda: component_from_function(nothing), "'nothing'", "None"),
        (
            lambda: component_from_function(utils.booth, tracked=True),
            "the parameter 'tracker_base'",
            "already has",
            "give",
        ),
        *(
            (
                lambda option=option: component_from_function(dist.ddp, script="train.py", **{option: "job"}),
                *(f"no parameter {option!r}", f"Did you mean {meant!r}?", "options"),
            )
            for option, meant in [
                *(("engin", "engine"), ("replica", "replicas"), ("result", "results"), ("imag", "image"))
            ]
        ),
        (lambda: component_from_function(train, reads=["lr"]), "'lr'", "input", "'tracker_base'", "'run_id'"),
    ],
}


@refused(WRONG_CALLS)
def test_a_wrong_call_is_refused(error: Any, call: Callable[[], object], facts: Any) -> None:
    check_refusal(error, call, facts)


def test_names_of_options_are_the_functions_own() -> None:
    def keeps(results: str, artifacts: str = "") -> specs.AppDef:
        return show(results, artifacts)

    component = component_from_function(keeps, artifacts="s3://b", tracked=True)
    assert set(inputs_of(component)) == {"results", "tracker_base", "stage"}


def test_arguments_of_a_partial_are_defaults() -> None:
    component = component_from_function(functools.partial(train, image="i:1"))
    assert inputs_of(component)["image"] == ("String", "i:1")
    assert "partial" not in component.description
