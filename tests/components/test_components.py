"""Each TorchX component is found and parsed by TorchX, and becomes a stage."""

from __future__ import annotations

import importlib.util
import inspect
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
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
        ["--epochs", "3", "--rate", "0.2", "--seed", "7", "--checkpoints", "s3://bucket/a folder", "--j", "2x3"],
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
    "echo.component.echo": (["--message", "hello"], ["hello"]),
}
#: The component that TorchX's dist.ddp makes, whose command is a line of a shell.
DDP = "ddp.component.train"


def test_every_component_is_tested() -> None:
    found = set()
    for path in (REPOSITORY / "components").glob("*/component.py"):
        module = importlib.import_module(f"components.{path.parent.name}.component")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                found.add(f"{path.parent.name}.component.{name}")
    assert found == set(COMPONENTS)


@pytest.mark.parametrize("name", COMPONENTS)
def test_torchx_runs_it_from_its_file_and_it_becomes_a_stage(name: str) -> None:
    """TorchX does so in `torchx run components/digits/component.py:train`, which does not import the file."""
    folder, module, function = name.split(".")
    component = get_component(f"{REPOSITORY}/components/{folder}/{module}.py:{function}")
    assert component.validation_errors == []
    # TorchX's help comes from the docstrings.
    assert component.description.startswith(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    assert "TIP" not in component.description
    arguments, expected = COMPONENTS[name]
    app = materialize_appdef(component.fn, [*arguments, "--image", "registry.example/image:2"])
    (role,) = app.roles
    assert (app.name, role.image) == (function, "registry.example/image:2")
    if name == DDP:
        assert (role.entrypoint, role.args[0], role.num_replicas) == ("bash", "-c", 2)
        program, *words = shlex.split(role.args[1])
        assert (program, words[words.index("--nproc_per_node") + 1]) == ("torchrun", "3")
        python = words[words.index("-m") :]
    else:
        container = component_from_app(app).component_spec.implementation.container
        assert container.image == role.image
        assert container.command == [role.entrypoint, *role.args]
        python = role.args
    if name != "echo.component.echo":
        assert (role.entrypoint in ("python", "bash"), python[0]) == (True, "-m")
        assert importlib.util.find_spec(python[1]) is not None
        python = python[2:]
    assert python[len(python) - len(expected) :] == expected
