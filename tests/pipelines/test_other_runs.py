"""The pipelines functions and sized as processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents import documents
from tests.pipelines import regenerate
from torchx_kfp import local
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker


@pytest.fixture(autouse=True)
def _repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(regenerate.REPOSITORY))


def run(name: str, folder: Path, **arguments: object) -> local.RunResult:
    pipeline = regenerate.load_pipeline(regenerate.REPOSITORY / "pipelines" / f"{name}.py")
    arguments["tracker_base"] = str(folder / "tracker")
    done = local.run(pipeline, arguments, output_dir=folder / "logs", watch=Watch())
    done.raise_for_failure()
    return done


def test_functions(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits applications need the extra `examples`")
    stages = {stage.name: stage for stage in run("functions", tmp_path, x1=3.0, x2=1.0).stages}
    assert json.loads((tmp_path / "tracker" / "booth" / "7").read_text()) == {"booth_eval": 8.0}
    size = stages["prepare"].outputs["train_size"]
    assert FsspecResultTracker(tmp_path / "tracker")[str(stages["prepare"].run_id)]["train_size"] == size > 1000
    assert stages["echo"].last_lines() == [f"{size} images"]


@pytest.mark.parametrize(
    ("rows", "memory", "cpu", "gpus", "image"),
    [(1000, "257M", "1", "0", "torchx-kfp-examples:1"), (10**7, "15616M", "4", "1", "torchx-kfp-examples:1-gpu")],
)
def test_sized(tmp_path: Path, rows: int, memory: str, cpu: str, gpus: str, image: str) -> None:
    done = run("sized", tmp_path, rows=rows)
    decided, fit = done.stages
    outputs = {name: value for name, value in decided.outputs.items() if name != "run_id"}
    assert outputs == {"memory": memory, "cpu": cpu, "gpus": gpus, "image": image}
    assert fit.last_lines() == [f"Training with {memory}"]


def test_sized_asks_for_what_is_decided() -> None:
    """KFP compiles the channels into settings; an accelerator whose count is not a str would be dropped."""
    text = regenerate.compile_text(regenerate.REPOSITORY / "pipelines" / "sized.py")
    executors = documents(text)[0]["deploymentSpec"]["executors"]
    resources = executors["exec-fit"]["container"]["resources"]
    asked = (
        resources["resourceCpuLimit"],
        resources["resourceMemoryLimit"],
        resources["accelerator"]["resourceCount"],
    )
    assert asked == tuple(
        f"{{{{$.inputs.parameters['pipelinechannel--size-{name}']}}}}" for name in ("cpu", "memory", "gpus")
    )
    assert executors["exec-fit"]["container"]["image"] == "{{$.inputs.parameters['image']}}"
