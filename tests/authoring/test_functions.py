"""TorchX component functions as KFP components."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035, UP045
# No annotations from __future__: TorchX and KFP read the annotations of functions.

import copy
import fnmatch
import functools
import json
import re
import shlex
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from kfp import compiler, components, dsl
from torchx import specs
from torchx.components import dist, utils

from tests.authoring.apps import compile_pipeline, load
from tests.facts import says
from torchx_kfp import component_from_function, local
from torchx_kfp.errors import AppDefError, ChannelError, ReadsError
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


def test_every_type() -> None:
    assert {name: kind for name, (kind, _) in inputs_of(component_from_function(types)).items()} == {
        "text": "String",
        "number": "Integer",
        "ratio": "Float",
        "flag": "Boolean",
        "items": "List",
        "table": "Dict",
        "name": "String",
    }


def run(tmp_path: Path, pipeline: Any, **arguments: Any) -> dict[str, Any]:
    done = local.run(dsl.pipeline(pipeline), arguments, output_dir=tmp_path / "runs", watch=Watch())
    done.raise_for_failure()
    return {stage.name: json.loads(stage.log_file.read_text()) for stage in done.stages if stage.log_file}


def test_values_arrive(tmp_path: Path) -> None:
    component = component_from_function(train)

    def pipeline(rate: float = 0.5) -> None:
        component(lr=rate, image="a:1")
        component(lr=0.25, epochs=7, verbose=True, image="b:2")

    shown = run(tmp_path, pipeline)
    assert shown == {
        "show": [["--lr", "0.5", "--epochs=3", "false"], "0.5", "rate-a:1"],
        "show-2": [["--lr", "0.25", "--epochs=7", "true"], "0.25", "rate-b:2"],
    }


def test_values_of_every_type_arrive(tmp_path: Path) -> None:
    component = component_from_function(types)

    def pipeline(text: str = "it's $HOME") -> None:
        component(text=text, number=3, ratio=0.5, flag=True, items=[1, 2], table={"a": 0.5})

    assert run(tmp_path, pipeline)["show"][0] == ["it's $HOME", "3", "0.5", "true", "[1,2]", '{"a":0.5}', "x"]


def test_every_input_is_passed_defaults_too() -> None:
    component = component_from_function(train)
    spec, _ = load(compile_pipeline(lambda: component(lr=0.5, image="i") and None))
    passed = spec["root"]["dag"]["tasks"]["show"]["inputs"]["parameters"]
    assert {name: value["runtimeValue"]["constant"] for name, value in passed.items()} == {
        "lr": 0.5,
        "epochs": 3.0,
        "verbose": False,
        "image": "i",
    }


def test_an_input_that_nothing_uses_is_there() -> None:
    def unused(seed: int = 1) -> specs.AppDef:
        return show("x")

    component = component_from_function(unused)
    spec, _ = load(compile_pipeline(lambda: component(seed=2) and None))
    assert "seed" in spec["components"]["comp-show"]["inputDefinitions"]["parameters"]


def test_constants(tmp_path: Path) -> None:
    component = component_from_function(train, lr=0.125, image="i:1")
    assert set(inputs_of(component)) == {"epochs", "verbose"}
    assert run(tmp_path, lambda: component() and None)["show"][0] == ["--lr", "0.125", "--epochs=3", "false"]


def test_star_args_are_constants() -> None:
    component = component_from_function(show, args=["a b", "$$"])
    assert set(inputs_of(component)) == {"image"}
    assert component.component_spec.implementation.container.command[-2:] == ["a b", "\\0044$"]


def test_a_default_of_none_stays_none() -> None:
    def optional(name: Optional[str] = None) -> specs.AppDef:
        return show("anonymous" if name is None else name)

    assert inputs_of(component_from_function(optional)) == {}
    assert "me" in component_from_function(optional, name="me").component_spec.implementation.container.command


def test_the_file_of_a_component_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    compiler.Compiler().compile(component_from_function(train, results={"accuracy": float}), str(path))
    loaded = components.load_component_from_file(str(path))
    assert inputs_of(loaded) == {"tracker_base": ("String", None), **inputs_of(component_from_function(train))}
    assert set(loaded.component_spec.outputs) == {"run_id", "accuracy", "metrics"}


@pytest.mark.usual
def test_a_tracked_component(tmp_path: Path) -> None:
    def record(value: float) -> specs.AppDef:
        code = "import sys; from torchx_kfp.tracking import current_run as r; r().put(accuracy=float(sys.argv[1]))"
        role = specs.Role("record", "image:1", entrypoint="python", args=["-c", code, f"{value}"])
        return specs.AppDef("record", roles=[role])

    first = component_from_function(record, results={"accuracy": float})
    second = component_from_function(record, reads=["before"])

    @dsl.pipeline
    def pipeline(tracker_base: str) -> float:
        before = first(tracker_base=tracker_base, value=0.75)
        second(tracker_base=tracker_base, value=before.outputs["accuracy"], before=before.outputs["run_id"])
        return before.outputs["accuracy"]

    done = local.run(pipeline, {"tracker_base": str(tmp_path / "t")}, output_dir=tmp_path / "runs", watch=Watch())
    done.raise_for_failure()
    assert done.outputs == {"Output": 0.75}


# TorchX's own


@pytest.mark.parametrize(
    ("function", "constants", "inputs"),
    [
        (utils.echo, {"num_replicas": 1}, {"msg", "image"}),
        (utils.touch, {}, {"file", "image"}),
        (
            utils.sh,
            {"args": ["echo", "it's"], "num_replicas": 1, "cpu": 1, "gpu": 0, "memMB": 64, "max_retries": 0},
            {"image"},
        ),
        (
            utils.python,
            {"m": "app", "args": ["--x"], "name": "app", "num_replicas": 1, "cpu": 1, "gpu": 0, "memMB": 64},
            {"image"},
        ),
        (utils.copy, {}, {"src", "dst", "image"}),
        (utils.booth, {}, {"x1", "x2", "trial_idx", "tracker_base", "image"}),
        (
            dist.ddp,
            {
                "script": "train.py",
                "script_args": ["--lr", "0.1"],
                "j": "1x2",
                "name": "train",
                "cpu": 2,
                "gpu": 0,
                "memMB": 64,
                "max_retries": 0,
                "rdzv_port": 29500,
                "rdzv_backend": "c10d",
                "debug": False,
            },
            {"image", "tee"},
        ),
    ],
)
def test_torchxs_components(function: Callable[..., specs.AppDef], constants: dict[str, Any], inputs: set[str]) -> None:
    component = component_from_function(function, **constants)
    assert set(inputs_of(component)) - {"rdzv_conf"} == inputs
    assert component.component_spec.description
    values = {
        name: {"String": "x", "Float": 1.5, "Integer": 2}[kind] for name, (kind, _) in inputs_of(component).items()
    }
    compile_pipeline(lambda: component(**values) and None)


@pytest.mark.parametrize("function", [utils.echo, utils.sh, utils.python, dist.ddp])
def test_the_error_has_the_call_that_works(function: Callable[..., specs.AppDef]) -> None:
    needed = {utils.python: {"m": "app"}, dist.ddp: {"script": "train.py", "j": "1x1"}}.get(function, {})
    with pytest.raises(AppDefError) as error:
        component_from_function(function, **needed)
    call = str(error.value).rpartition("Give them as constants: ")[2].rstrip(".")
    assert eval(call, {"component_from_function": component_from_function, function.__name__: function})  # noqa: S307 - the error's own text


def test_booth_runs(tmp_path: Path) -> None:
    booth = component_from_function(utils.booth)

    def pipeline(x1: float, base: str) -> None:
        booth(x1=x1, x2=3.0, trial_idx=4, tracker_base=base)

    done = local.run(
        dsl.pipeline(pipeline), {"x1": 2.0, "base": str(tmp_path / "t")}, output_dir=tmp_path / "runs", watch=Watch()
    )
    done.raise_for_failure()
    assert json.loads((tmp_path / "t" / "4").read_text()) == {"booth_eval": 5.0}


@pytest.mark.parametrize("value", ["it's", "'; echo INJECTED; '", "$(echo INJECTED)", "a  b", '"`id`"'])
def test_no_value_breaks_out_of_the_quotes_of_a_function(tmp_path: Path, value: str) -> None:
    """``utils.sh`` and ``dist.ddp`` quote their arguments into one text for a shell, which contains stand-ins here."""

    def say(text: str) -> specs.AppDef:
        return utils.sh("python", "-c", SHOW, text, f"--x={text}", image="image:1")

    def launch(text: str) -> specs.AppDef:
        app = dist.ddp("--x", text, script="train.py", j="1x1", image="image:1")
        # torchrun is not installed here, so its arguments are shown instead.
        app.roles[0].args[1] = app.roles[0].args[1].replace("torchrun", f"python -c '{SHOWN}'", 1)
        return app

    def pipeline() -> None:
        component_from_function(say)(text=value)
        component_from_function(launch)(text=value)

    shown = run(tmp_path, pipeline)
    assert shown["sh"][0] == [value, f"--x={value}"]
    assert shown["train"][0][-2:] == ["--x", value]


SHOWN = SHOW.replace("'RATE'", '"RATE"').replace("'NAME'", '"NAME"')


# What is rejected


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def arithmetic(epochs: int, lr: float = 0.1) -> specs.AppDef:
    steps = epochs * 100
    return show(f"{steps}", f"{lr}")


def replicas(count: int = 2) -> specs.AppDef:
    app = show("x")
    app.roles[0].num_replicas = count
    return app


def comparison(mode: str = "fast") -> specs.AppDef:
    return show("a" if mode == "fast" else "b")


def truth(flag: bool = False) -> specs.AppDef:
    return show(*(["--flag"] if flag else []))


def pieces(image: str) -> specs.AppDef:
    return show("x", image=image.split(":")[0])


def cut(path: str) -> specs.AppDef:
    return show(str(Path(path).name), str(path)[3:])


def formatted(lr: float) -> specs.AppDef:
    return show(f"{lr:.3f}")


def iterated(items: List[int]) -> specs.AppDef:
    return show(*[str(item) for item in items])


def named(name: str) -> specs.AppDef:
    app = show("x")
    app.name = name
    return app


def resource(memory: int = 100) -> specs.AppDef:
    app = show("x")
    app.roles[0].resource = specs.Resource(cpu=1, gpu=0, memMB=memory)
    return app


def as_key(name: str) -> specs.AppDef:
    return show("x", env={f"{name}": "1"})


OPTIONS = {"adam": "fast", "sgd": "slow"}
LARGE = re.compile("^p4d[.]")


@pytest.mark.parametrize(
    "body",
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
        "show(Path(x).name)",
        "show(bytes(x, 'utf8').hex())",
        "show(urllib.parse.quote(x))",
        "show(str(hash(x)))",
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
        "show('big' if re.match('gpu-', x) else 'small')",
        "show('big' if re.fullmatch(r'(a100|h[0-9]+)-\\d+.*$', f'{x}') else 'small')",
        "show('big' if is_large(x) else 'small')",
        "show('table' if fnmatch.fnmatch(x, '*.csv') else 'other')",
    ],
)
def test_nothing_is_silently_built_of_a_placeholder(body: str) -> None:
    """Everything that is not used as text is rejected, whatever operation asks for it."""
    names = {**globals(), "shlex": shlex, "re": re, "urllib": urllib, "fnmatch": fnmatch}
    exec("def is_large(x):\n    return LARGE.search(x)", names)  # noqa: S102 - a function of the same module
    exec(f"def function(x: str):\n    return {body}", names)  # noqa: S102 - the bodies above
    with pytest.raises(AppDefError, match=r"- 'x': |It was called with stand-ins for its inputs \(x\)"):
        component_from_function(names["function"])


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


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("int", "show(f'{n!r}')"),
        ("int", "show(f'{[n]}')"),
        ("int", "show({1: 'one'}.get(n, 'many'))"),
        ("float", "show('float' if isinstance(n, float) else 'other')"),
        ("bool", "show('yes' if n is True else 'no')"),
        ("bool", "show('yes' if str(n) == 'True' else 'no')"),
        ("int", "show(swallow(n))"),
        ("int", "show('eight' if re.match('8', str(n)) else 'other')"),
        ("float", "show(json.dumps({'n': n}))"),
        ("list", "show(*map(str, n))"),
        ("dict", "show(env=n)"),
    ],
)
def test_nor_of_other_types(kind: str, body: str) -> None:
    names = dict(globals())
    exec(f"def function(n: {kind}):\n    return {body}", names)  # noqa: S102 - the bodies above
    with pytest.raises(AppDefError, match=r"- 'n': |It was called with stand-ins for its inputs \(n\)"):
        component_from_function(names["function"])


@pytest.mark.parametrize(
    "body",
    [
        "show(x, f'--x={x}', '--x=' + x, '--x=%s' % x, '{}'.format(x), ''.join([x, '/y']), str(x))",
        "show(copy.deepcopy([x])[0])",
        "show(env={'X': x}, image='repo/app:' + x)",
        "utils.sh('echo', x, f'--x={x}')",
        "specs.AppDef('a', roles=[specs.Role('a', 'i', entrypoint='sh', args=['-c', f'echo {x} && echo \"{x}\"'])])",
        "specs.AppDef('a', roles=[specs.Role('a', 'i', entrypoint='sh', args=['-c', 'echo ' + shlex.quote(x)])])",
    ],
)
def test_text_in_every_way(body: str) -> None:
    names = {**globals(), "shlex": shlex, "copy": copy}
    exec(f"def function(x: str):\n    return {body}", names)  # noqa: S102 - the bodies above
    assert "x" in inputs_of(component_from_function(names["function"]))


ENV = {"A": "1"}
ROLE = specs.Role("shared", image="i", entrypoint="e")


def changes_a_constant(x: str, *, env: Dict[str, str]) -> specs.AppDef:
    env["X"] = x
    return specs.AppDef("a", roles=[specs.Role("a", image="i", entrypoint="e", env=env)])


def changes_a_list(x: str, *, args: List[str]) -> specs.AppDef:
    args += ["--x", x]
    return show(*args)


def changes_a_module(x: str) -> specs.AppDef:
    ENV["X"] = x
    return specs.AppDef("a", roles=[specs.Role("a", image="i", entrypoint="e", env=ENV)])


def changes_a_role(x: str) -> specs.AppDef:
    ROLE.args = ["--x", x]
    return specs.AppDef("a", roles=[ROLE])


def test_a_function_may_change_what_it_is_given() -> None:
    """It is called several times, and values that it was tried with do not stay in the component."""
    for function, constants in (
        (changes_a_constant, {"env": {"A": "1"}}),
        (changes_a_list, {"args": ["a"]}),
        (changes_a_module, {}),
        (changes_a_role, {}),
    ):
        before = copy.deepcopy(constants)
        command = component_from_function(function, **constants).component_spec.implementation.container.command
        assert any("{{$.inputs.parameters['x']}}" in word for word in command), command
        assert constants == before


def test_a_function_that_builds_something_else_each_time_is_refused() -> None:
    count = iter(range(1000))

    def counts(x: str) -> specs.AppDef:
        return show(x, str(next(count)))

    with pytest.raises(AppDefError, match=r"'counts' builds a different AppDef each time|- 'x': its text is not all"):
        component_from_function(counts)


def test_an_image_in_text(tmp_path: Path) -> None:
    def tagged(tag: str = "1") -> specs.AppDef:
        return show("x", image=f"repo/app:{tag}")

    component = component_from_function(tagged)
    path = tmp_path / "tagged.yaml"
    compiler.Compiler().compile(component, str(path))
    loaded = components.load_component_from_file(str(path))
    assert inputs_of(loaded) == {"tag": ("String", "1")}
    for use in (component, loaded):

        def pipeline(tag: str) -> None:
            use(tag=tag)  # noqa: B023 - it is compiled before the next one

        done = local.run(dsl.pipeline(pipeline), {"tag": "7"}, output_dir=tmp_path / "runs", watch=Watch())
        done.raise_for_failure()
    spec, _ = load(compile_pipeline(lambda: component(tag="7") and None))
    task = spec["root"]["dag"]["tasks"]["show"]["inputs"]["parameters"]
    assert task["image_tag"]["runtimeValue"]["constant"] == "repo/app:{{$.inputs.parameters['tag']}}"
    (executor,) = spec["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == "{{$.inputs.parameters['image_tag']}}"


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


@pytest.mark.parametrize(
    "default", ["float = float('nan')", "float = float('-inf')", "int = 2**70", "int = 'x'", "str = 5", "bool = 1"]
)
def test_defaults_that_kfp_cannot_pass_on(default: str) -> None:
    names = dict(globals())
    exec(f"def function(a: {default}):\n    return show(f'{{a}}')", names)  # noqa: S102 - the defaults above
    with pytest.raises(AppDefError, match=says("'a'", "'function'", "parameter", "component_from_function")):
        component_from_function(names["function"])


def test_what_a_function_raises_is_said_with_its_line() -> None:
    def fails(x: str) -> specs.AppDef:
        return show({"a": "b"}["c"], x)

    with pytest.raises(
        AppDefError,
        match=says("'fails'", "KeyError: 'c'", f"{__file__}:", "(x)", "component_from_function(fails, NAME=...)"),
    ):
        component_from_function(fails)


@pytest.mark.parametrize(
    ("function", "parameter", "what", "line"),
    [
        (arithmetic, "epochs", "the operation mul", "steps = epochs * 100"),
        (replicas, "count", "the field num_replicas of a role", "app.roles[0].num_replicas = count"),
        (comparison, "mode", "the operation eq", 'return show("a" if mode == "fast" else "b")'),
        (truth, "flag", "the operation bool", 'return show(*(["--flag"] if flag else []))'),
        (pieces, "image", r"its \.split\(\)", 'return show("x", image=image.split(":")[0])'),
        (cut, "path", "the operation bool", "return show(str(Path(path).name), str(path)[3:])"),
        (formatted, "lr", r"the format '\.3f'", 'return show(f"{lr:.3f}")'),
        (iterated, "items", "the operation iter", "return show(*[str(item) for item in items])"),
        (named, "name", "in the name or the metadata of the AppDef", "app.name = name"),
        (resource, "memory", "the field resource of a role", None),
        (as_key, "name", "the operation hash", 'return show("x", env={f"{name}": "1"})'),
    ],
)
def test_more_than_text_is_refused(
    function: Callable[..., specs.AppDef], parameter: str, what: str, line: str | None
) -> None:
    at = rf"{__file__}:{line_of(line)}" if line else rf"{__file__}:\d+"
    with pytest.raises(
        AppDefError,
        match=rf"^The function '{function.__name__}' uses parameters for more than text, so KFP cannot fill them "
        rf"in at run time:\n- '{parameter}': {what}, {at}\n"
        rf"Give them as constants: component_from_function\({function.__name__}, {parameter}=",
    ):
        component_from_function(function)


@pytest.mark.parametrize(
    ("function", "constants"),
    [
        (arithmetic, {"epochs": 3}),
        (comparison, {"mode": "slow"}),
        (truth, {"flag": True}),
        (pieces, {"image": "a:1"}),
        (formatted, {"lr": 0.5}),
        (iterated, {"items": [1, 2]}),
        (named, {"name": "x"}),
        (resource, {"memory": 500}),
    ],
)
def test_as_constants_they_are_fine(function: Callable[..., specs.AppDef], constants: dict[str, Any]) -> None:
    assert not set(inputs_of(component_from_function(function, **constants))) & set(constants)


def test_all_of_them_are_named_at_once() -> None:
    def several(a: int = 1, b: int = 2, c: str = "x") -> specs.AppDef:
        return show(str(a + 1), str(b + 2), c)

    with pytest.raises(AppDefError, match=r"- 'a': .*\n- 'b': .*\nGive them as .*\(several, a=1, b=2\)\.$"):
        component_from_function(several)


def test_the_suggested_call_has_the_options_of_the_stage() -> None:
    options: dict[str, Any] = {"engine": "job", "results": {"loss": float}}
    with pytest.raises(AppDefError, match="Give them as constants") as error:
        component_from_function(dist.ddp, script="train.py", image="image:1", j="2x1", **options)
    call = str(error.value).rpartition("Give them as constants: ")[2]
    assert "script='train.py'" in call
    assert "engine='job', results={'loss': float}" in call or "results={'loss': float}, engine='job'" in call


def test_a_misspelled_option_of_the_stage() -> None:
    for option, meant in {"engin": "engine", "replica": "replicas", "result": "results", "imag": "image"}.items():
        with pytest.raises(AppDefError, match=says(f"no parameter {option!r}", f"Did you mean {meant!r}?", "options")):
            component_from_function(dist.ddp, script="train.py", **{option: "job"})


def test_as_many_replicas_as_the_function_says() -> None:
    with pytest.raises(AppDefError, match="replicas"):
        component_from_function(replicas, count=2)


def test_wrong_calls() -> None:
    with pytest.raises(AppDefError, match=says("'train'", "'rate'")):
        component_from_function(train, rate=1)
    with pytest.raises(AppDefError, match=says("args='a'", "'show'")):
        component_from_function(show, args="a")

    def untyped(path: Path) -> specs.AppDef:
        return show(str(path))

    with pytest.raises(AppDefError, match=says("'path'", "'untyped'", " Path,", "component_from_function", "path=")):
        component_from_function(untyped)
    with pytest.raises(AppDefError, match=says("'nothing'", "None")):
        component_from_function(lambda_named("nothing"))
    with pytest.raises(ReadsError, match=says("['tracker_base']", "inputs", "component", "Give")):
        component_from_function(utils.booth, tracked=True)
    with pytest.raises(ReadsError, match=says("'lr'", "input", "'tracker_base'", "'run_id'")):
        component_from_function(train, reads=["lr"])


def lambda_named(name: str) -> Callable[[], None]:
    def function() -> None:
        return None

    function.__name__ = name
    return function


def test_constants_that_are_channels_are_refused() -> None:
    def pipeline(lr: float = 0.1) -> None:
        component_from_function(train, lr=f"{lr}", image="i")

    with pytest.raises(ChannelError, match="contains the pipeline channel"):
        compile_pipeline(pipeline)


def test_names_of_options_are_the_functions_own() -> None:
    def keeps(results: str, artifacts: str = "") -> specs.AppDef:
        return show(results, artifacts)

    component = component_from_function(keeps, artifacts="s3://b", tracked=True)
    assert set(inputs_of(component)) == {"results", "tracker_base", "stage"}


def test_partials() -> None:
    component = component_from_function(functools.partial(train, image="i:1"))
    assert inputs_of(component)["image"] == ("String", "i:1")


@pytest.mark.usual
def test_a_function_of_a_session_has_no_file(tmp_path: Path) -> None:
    code = (
        "from torchx.specs import AppDef, Role; from torchx_kfp import component_from_function\n"
        "def f(n: int):\n return AppDef('f', roles=[Role('f', image='i', num_replicas=n)])\n"
        "try:\n component_from_function(f)\nexcept ValueError as error:\n print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "- 'n': the field num_replicas of a role, <string>:" in done.stdout


def test_an_input_that_a_component_does_not_have() -> None:
    def greets(text: str, n: int = 1) -> specs.AppDef:
        """Greet.

        Args:
            text: a text.
            n: a number.
        """
        return specs.AppDef("t", [specs.Role("t", image="i", entrypoint="e", args=[text, str(n)])])

    untracked = component_from_function(greets)
    tracked = component_from_function(greets, tracked=True)
    with pytest.raises(ReadsError, match=says("'reads'", "component_from_function(fn, tracked=True, reads=['a'])")):
        untracked(text="a", reads="b")
    with pytest.raises(ReadsError, match=says("'txt'", "Did you mean 'text'?", "Its inputs: text, n, tracker_base.")):
        tracked(txt="a")
