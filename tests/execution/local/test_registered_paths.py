"""Executions that write and register the same path at the same time: each may have stored the other's file."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp import Stages
from torchx_kfp.local import RunResult, Watch, run

#: Writes its word into the first path, waits for the others, and registers both paths.
PROGRAM = """
import pathlib, sys, time
from torchx_kfp.tracking import current_run

word, path, data = sys.argv[1:]
pathlib.Path(path).write_text(word)
pathlib.Path(f"began-{word}").touch()
deadline = time.monotonic() + 120
while len(list(pathlib.Path().glob("began-*"))) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
current_run().add_artifact("model", path, store=STORE)
current_run().add_artifact("data", data)
"""


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("the same for all")
    os.utime(tmp_path / "data.csv", (1, 1))

    def function(paths: list[str], *, store: bool = True, **options: Any) -> RunResult:
        program = PROGRAM.replace("STORE", str(store))

        @dsl.pipeline(name="writes")
        def pipeline():
            stages = Stages(tracker_base=str(tmp_path / "base"))
            with dsl.ParallelFor([{"word": word, "path": path} for word, path in zip("ab", paths, strict=True)]) as it:
                role = Role("write", image="i", entrypoint=sys.executable, args=["-c", program])
                role.args += [it.word, it.path, "data.csv"]
                stages.task(AppDef("write", [role]))

        return run(pipeline, watch=Watch(), output_dir="runs", **options)

    return function


@pytest.mark.parametrize("store", [True, False])
def test_the_same_path_at_the_same_time_is_an_error_that_names_both(execute: Any, tmp_path: Path, store: bool) -> None:
    result = execute(["model", "./model"], store=store)
    assert sorted(stage.state for stage in result.stages) == ["failed", "succeeded"]
    (failed,) = (stage for stage in result.stages if stage.state == "failed")
    (other,) = {"write[0]", "write[1]"} - {failed.name}
    assert failed.reason.startswith(f"wrote and registered {tmp_path}/model, and so did {other} at the same time")
    assert "--workspace" in failed.reason
    # What the other one has may be wrong as well, so it is not taken from the cache.
    assert "cached" not in [stage.state for stage in execute(["model", "./model"], store=store).stages]


def test_other_paths_and_files_that_nobody_writes_are_not(execute: Any) -> None:
    assert execute(["model-a", "model-b"]).state == "succeeded"


def test_one_after_the_other_may_use_a_path(execute: Any, tmp_path: Path) -> None:
    (tmp_path / "began-x").touch()
    result = execute(["model", "model"], parallelism=1)
    result.raise_for_failure()
    models = [path.read_text() for path in (tmp_path / "base").rglob("model")]
    assert sorted(models) == ["a", "b"]
