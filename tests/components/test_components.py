"""Each TorchX component is found and parsed by TorchX, and becomes a stage."""

from __future__ import annotations

import importlib.util
import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torchx import specs
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import get_component

from torchx_kfp import component_from_app

pytestmark = pytest.mark.versions

REPOSITORY = Path(__file__).resolve().parents[2]

#: The arguments of each component on TorchX's command line, and the application's own arguments that result from them.
COMPONENTS: Mapping[str, tuple[list[str], list[str]]] = {
    "digits.component.prepare": (["--artifacts", "/data", "--seed", "7"], ["--artifacts=/data", "--seed=7"]),
    "digits.component.train": (["--C", "10", "--gamma", "0.01"], ["--C=10.0", "--gamma=0.01"]),
    "digits.component.select": ([], []),
    "digits.component.evaluate": ([], []),
    "digits.component.deploy": (["--threshold", "0.9"], ["--threshold=0.9"]),
    "ddp.component.train": (
        ["--epochs", "3", "--rate", "0.2", "--seed", "7", "--checkpoints", "s3://bucket/a folder"],
        ["--epochs=3", "--rate=0.2", "--seed=7", "--checkpoints=s3://bucket/a folder"],
    ),
    "ddp.component.report": (["--bound", "0.2"], ["--bound=0.2"]),
    "nas.component.train": (
        ["--hidden_1", "8", "--learning_rate", "0.1", "--budget", "100"],
        [
            *("--hidden-1=8", "--hidden-2=16", "--learning-rate=0.1", "--decay=0.0001", "--batch-size=64"),
            *("--epochs=8", "--budget=100"),
        ],
    ),
    "echo.component.echo": (["--message", "hello"], ["echo", "hello"]),
}
#: The component that TorchX's dist.ddp makes, whose command is a line of a shell.
DDP = "ddp.component.train"


@pytest.fixture(scope="module")
def found() -> dict[str, Callable[..., specs.AppDef]]:
    """Return every component in components/*/component.py, by `<folder>.component.<function>`."""
    components = {}
    for path in (REPOSITORY / "components").glob("*/component.py"):
        module = importlib.import_module(f"components.{path.parent.name}.component")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                components[f"{path.parent.name}.component.{name}"] = function
    return components


def test_every_component_is_tested(found: dict[str, Callable[..., specs.AppDef]]) -> None:
    assert set(found) == set(COMPONENTS)


@pytest.mark.parametrize("name", [name for name in COMPONENTS if name != DDP])
def test_torchx_finds_it_and_it_becomes_a_stage(name: str, found: dict[str, Callable[..., specs.AppDef]]) -> None:
    arguments, expected = COMPONENTS[name]
    app = materialize_appdef(found[name], [*arguments, "--image", "registry.example/image:2"])
    assert app.name == name.rpartition(".")[2]
    if name != "echo.component.echo":
        assert (app.roles[0].entrypoint, app.roles[0].args[0]) == ("python", "-m")
        assert importlib.util.find_spec(app.roles[0].args[1]) is not None
    container = component_from_app(app).component_spec.implementation.container
    assert container.image == "registry.example/image:2"
    assert container.command == [app.roles[0].entrypoint, *app.roles[0].args]
    assert container.command[len(container.command) - len(expected) :] == expected


@pytest.mark.parametrize(("j", "replicas", "processes"), [("2x1", 2, 1), ("1x2", 1, 2)])
def test_the_training_is_torchrun_in_each_replica(
    j: str, replicas: int, processes: int, found: dict[str, Callable[..., specs.AppDef]]
) -> None:
    arguments, expected = COMPONENTS[DDP]
    app = materialize_appdef(found[DDP], [*arguments, "--j", j, "--image", "registry.example/image:2"])
    (role,) = app.roles
    assert (app.name, role.image, role.num_replicas) == ("train", "registry.example/image:2", replicas)
    assert (role.entrypoint, role.args[0]) == ("bash", "-c")
    program, *words = shlex.split(role.args[1])
    module = words.index("-m")
    assert (program, words[words.index("--nproc_per_node") + 1]) == ("torchrun", str(processes))
    assert words[module + 2 :] == expected
    assert importlib.util.find_spec(words[module + 1]) is not None


@pytest.mark.parametrize("name", COMPONENTS)
def test_torchx_runs_it_from_its_file(name: str) -> None:
    """TorchX does so in `torchx run components/digits/component.py:train`, which does not import the file."""
    folder, module, function = name.split(".")
    component = get_component(f"{REPOSITORY}/components/{folder}/{module}.py:{function}")
    assert component.validation_errors == []
    app = materialize_appdef(component.fn, COMPONENTS[name][0])
    assert app.name == function
    # TorchX's help comes from the docstrings.
    assert component.description.startswith(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    assert "TIP" not in component.description
