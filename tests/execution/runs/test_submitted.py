"""What a dry run of a submission says, compared with what earlier ones recorded under the tracker base."""

from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp import Stages
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.runs.prepared_run import PreparedRun, forecast_submission, prepare
from torchx_kfp.tracking import FsspecResultTracker

RUN = "4b5d1d5e-0f0e-4c55-9a6e-7d1f8f2b3c4d"


def python(name: str, *args: str) -> AppDef:
    return AppDef(name, [Role("r", image="x", entrypoint="python", args=[*args])])


@dsl.pipeline(name="submitted")
def submitted(tracker_base: str, workspace: str = "", rate: float = 0.1) -> None:
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    prepared = stages.task(python("prepare", "prepare.py"))
    with dsl.ParallelFor([1, 2]) as item:
        stages.task(python("train", "train.py", f"{rate}", f"{item}"), reads=prepared)
    stages.task(python("other", "other.py"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    folder = tmp_path / "code"
    folder.mkdir()
    for name in ("prepare", "train", "other"):
        (folder / f"{name}.py").write_text("import data\n" if name != "other" else "")
    (folder / "data.py").touch()
    (folder / "NOTES.md").touch()
    return folder


def test_what_would_run_and_why(folder: Path) -> None:
    base = str(folder.parent / "base")

    def prepared(pipeline: Any = submitted, *, fresh: tuple[str, ...] = (), **arguments: Any) -> PreparedRun:
        return prepare(load_pipeline(pipeline), {"tracker_base": base, **arguments}, workspace=folder, fresh=fresh)

    def said(cache: bool = True, **arguments: Any) -> dict[str, str]:
        return dict(forecast_submission(prepared(**arguments), cache=cache))

    new = "runs: it has not been submitted yet"
    assert said() == {"prepare": new, "train": "runs: it reads prepare", "other": new}
    prepared().record(RUN, pytest.fail)
    tracker = FsspecResultTracker(base)
    tracker[f"{RUN}/prepare/pod_1"] = {"n": 1}
    known = f"cached (from {RUN})"
    cached = {
        "prepare": known,
        "train": f"cached (from {RUN}, if it succeeded there)",
        "other": f"{known[:-1]}, if it succeeded there)",
    }
    assert said() == cached
    (folder / "NOTES.md").write_text("notes")
    assert said() == cached
    assert said(rate=0.5) == {**cached, "train": "runs: rate 0.1 -> 0.5"}
    assert said(cache=False) == dict.fromkeys(cached, "runs: --no-cache")
    assert said(fresh=("prepare",)) == {**cached, "prepare": "runs: --fresh", "train": "runs: it reads prepare"}
    (folder / "train.py").write_text("import data  # changed\n")
    assert said() == {**cached, "train": "runs: train.py changed"}
    (folder / "data.py").write_text("V = 1\n")
    assert said() == {**cached, "prepare": "runs: data.py changed", "train": "runs: it reads prepare"}
    # Another run, and what somebody else has written.
    prepared().record(RUN.replace("4", "5"), pytest.fail)
    assert said()["other"] == f"cached (from {RUN.replace('4', '5')}, if it succeeded there)"
    for file in (folder.parent / "base" / ".torchx_kfp" / "runs").rglob("*.submitted"):
        file.write_text('{"submitted": {"pipeline": "submitted", "stages": {"other": 3}}}')
    assert said()["other"] == new
