"""Each digits application in a separate process, started by hand as a stage.

The pipeline ``examples.digits`` starts an interpreter for each; here, they are forks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from components.digits import component as apps
from tests.components.stages import REPOSITORY, run_app
from tests.facts import says
from tests.modules import needs
from tests.programs import Program, imported
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = [pytest.mark.examples, needs("sklearn", "the digits applications need the extra `examples`")]


def _load(uri: str) -> dict[str, Any]:
    import numpy

    with fsspec.open(uri, "rb") as file:
        return dict(numpy.load(file))


@pytest.fixture(scope="module")
def python() -> Iterator[Program]:
    """An interpreter that has imported what the applications do."""
    modules = ("joblib", "s3fs", "sklearn.datasets", "sklearn.model_selection", "sklearn.svm", "torchx_kfp.tracking")
    with imported(modules=modules) as server:
        yield Program(server, REPOSITORY, program=sys.executable)


Stage = Callable[..., dict[str, Any]]


@pytest.fixture
def stage(python: Program) -> Stage:
    """Run an application as a stage, and return its results."""

    def run(app: apps.specs.AppDef, base: str, run_id: str = "", **parents: str | tuple[str, ...]) -> dict[str, Any]:
        done = run_app(app, tracker_base=base, parents=parents, run_id=run_id or None, python=python)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout
        return FsspecResultTracker(base)[run_id or f"run/{app.name}/1"]

    return run


@pytest.mark.s3
def test_one_after_the_other(s3_base: str, stage: Stage) -> None:
    import joblib

    bucket, tracker_base = s3_base.rpartition("/")[0], s3_base
    prepared = stage(apps.prepare(f"{bucket}/artifacts/"), tracker_base)
    parts = {name: prepared.pop(f"{name}_size") for name in ("train", "valid", "test")}
    assert sum(parts.values()) == 1797
    assert parts["train"] > parts["valid"] > 300
    assert prepared["data"] == f"{bucket}/artifacts/run/prepare/1/digits.npz"
    data = _load(prepared["data"])
    assert {name: len(data[f"y_{name}"]) for name in parts} == parts
    assert {name: data[f"x_{name}"].shape for name in parts} == {name: (size, 64) for name, size in parts.items()}

    bad = stage(apps.train(0.1, 0.01), tracker_base, "run/train/0", prepare="run/prepare/1")
    good = stage(apps.train(10, 0.01), tracker_base, "run/train/1", prepare="run/prepare/1")
    assert 0 < bad["accuracy"] < 0.9 < good["accuracy"] <= 1
    assert (good["C"], good["gamma"]) == (10, 0.01)
    assert 0 < good["fit_seconds"] < 60

    trials = ("run/train/0", "run/train/1")
    selected = stage(apps.select(), tracker_base, train=trials)
    assert selected == {"best": "run/train/1", "accuracy": good["accuracy"], "model": good["model"], "trials": 2}

    evaluated = stage(apps.evaluate(), tracker_base, prepare="run/prepare/1", select="run/select/1")
    with fsspec.open(good["model"], "rb") as file:
        model = joblib.load(file)
    assert evaluated == {"test_accuracy": model.score(data["x_test"], data["y_test"]), "model": good["model"]}

    both = {"select": "run/select/1", "evaluate": "run/evaluate/1"}
    record = {"accuracy": good["accuracy"], "model": good["model"]}
    at = good["accuracy"]
    assert stage(apps.deploy(at), tracker_base, **both) == {**record, "threshold": at, "deployed": True}
    above = at + 0.001
    assert stage(apps.deploy(above), tracker_base, **both) == {**record, "threshold": above, "deployed": False}


def test_data_depends_on_the_seed_alone(tmp_path: Path, stage: Stage) -> None:
    def labels(base: str, seed: int) -> list[int]:
        prepared = stage(apps.prepare(seed=seed), str(tmp_path / base))
        assert prepared["data"] == f"file://{tmp_path / base}-artifacts/run/prepare/1/digits.npz"
        return list(_load(prepared["data"])["y_test"])

    first = labels("a", 0)
    assert labels("b", 0) == first
    assert labels("c", 1) != first


@pytest.mark.parametrize(
    ("tracker_base", "folder"),
    [
        ("s3://bucket/results/", "s3://bucket/results-artifacts"),
        ("file:///results", "file:///results-artifacts"),
        ("demo-results/tracker", "demo-results/tracker-artifacts"),
        *((base, None) for base in ("s3://bucket", "s3://bucket/", "/")),
    ],
)
def test_the_folder_beside_a_tracker_base(tracker_base: str, folder: str | None) -> None:
    from components.digits.prepare import folder_beside

    if folder is not None:
        assert folder_beside(tracker_base, "--artifacts") == folder
        return
    with pytest.raises(SystemExit, match=says(tracker_base, "--artifacts")):
        folder_beside(tracker_base, "--artifacts")


def test_outside_of_a_stage_the_message_says_what_is_missing(python: Program) -> None:
    for app in (apps.train(1, 0.1), apps.select()):
        done = run_app(app, python=python)
        assert done.returncode == 1
        assert "TORCHX_TRACKER_BASE and TORCHX_JOB_ID are not set" in done.stderr


def test_missing_results_of_a_parent_fail_the_stage(tmp_path: Path) -> None:
    done = run_app(apps.select(), tracker_base=tmp_path, parents={"train": ("run/train/0",)})
    assert done.returncode == 1
    assert "The run 'run/train/0' has recorded no results" in done.stderr


def test_deploy_needs_no_torchx_kfp(tmp_path: Path) -> None:
    FsspecResultTracker(str(tmp_path))["run/select/1"] = {"accuracy": 0.97, "model": "file:///model"}
    # None in sys.modules makes imports of the name fail.
    code = "import runpy, sys; sys.modules['torchx_kfp'] = None; runpy.run_module({!r}, run_name='__main__')"
    app = apps.deploy(0.9)
    module = app.roles[0].args[1]
    app.roles[0].args[:2] = ["-c", code.format(module)]
    done = run_app(app, tracker_base=tmp_path, parents={"select": "run/select/1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert FsspecResultTracker(tmp_path)["run/deploy/1"]["deployed"] is True

    app = apps.select()
    app.roles[0].args[:2] = ["-c", code.format(app.roles[0].args[1])]
    assert "No module named 'torchx_kfp" in run_app(app, tracker_base=tmp_path).stderr


def test_runs_by_path_from_any_folder(tmp_path: Path) -> None:
    script = REPOSITORY / "components" / "digits" / "train.py"
    done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--gamma" in done.stdout


def test_importing_the_package_loads_neither_torchx_nor_kfp() -> None:
    """`python -m components.digits.train` imports it in the application's image."""
    code = "import sys, components.digits; print([name for name in ('torchx', 'kfp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
