"""Every file in pipelines/ compiles to its golden file; ``python -m tests.pipelines.regenerate`` rewrites them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import components, dsl
from torchx.components import dist

from tests.documents import documents
from tests.pipelines import regenerate

pytestmark = pytest.mark.versions

#: The parameters that a user must give besides the tracker base.
_NEEDED = {"trials": ("prepared",)}
#: Pipelines that compile differently with other versions: whether these are those of the golden, and why.
_DIFFERING = {
    "ddp": (
        hasattr(dsl, "TaskConfig") and not hasattr(dist, "torchrun"),
        "kfp 2.14 has no TaskConfig, and TorchX's nightly sets one more variable in dist.ddp",
    )
}
_IDS = [path.stem for path in regenerate.PIPELINES]


@pytest.fixture(scope="module", params=regenerate.PIPELINES, ids=_IDS)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def compiled(path: Path) -> str:
    return regenerate.compile_text(path)


def test_there_are_pipelines_and_no_other_goldens() -> None:
    assert {"ddp", "digits", "experiments", "functions", "hello", "search", "sized", "trials"} <= set(_IDS)
    assert sorted(golden.stem for golden in regenerate.GOLDENS.iterdir()) == _IDS


def test_compiles_to_its_golden(path: Path, compiled: str) -> None:
    comparable, reason = _DIFFERING.get(path.stem, (True, ""))
    if not comparable:
        pytest.skip(reason)
    golden = regenerate.golden_file(path)
    assert golden.exists(), f"{path.name} has no golden: run `python -m tests.pipelines.regenerate`"
    assert regenerate.normalise(compiled) == golden.read_text(encoding="utf-8"), (
        "If the change is wanted, run `python -m tests.pipelines.regenerate` and review the difference."
    )


def test_holds_no_unresolved_channel_and_no_path_of_this_machine(compiled: str) -> None:
    assert "{{channel" not in compiled
    assert str(regenerate.REPOSITORY) not in compiled
    assert sys.prefix not in compiled
    assert str(Path.home()) + "/" not in compiled


def test_loads_again_through_kfp(path: Path, compiled: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(compiled, encoding="utf-8")
    loaded = components.load_component_from_file(str(file))
    assert loaded.name == path.stem
    spec: dict[str, Any] = documents(compiled)[0]
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    assert set(loaded.component_spec.inputs) == set(parameters)
    needed = {name for name, parameter in parameters.items() if not parameter.get("isOptional")}
    assert needed == {"tracker_base", *_NEEDED.get(path.stem, ())}
