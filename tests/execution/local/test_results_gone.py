"""The cache reuses results only if they still exist: in a local directory, and on S3 over HTTP."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.local.components import states
from tests.s3 import S3Server
from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult, Watch, run
from torchx_kfp.tracking import FsspecResultTracker

RECORD = "from torchx_kfp.tracking import current_run; current_run().put(value=1)"
READ = "from torchx_kfp.tracking import current_run as run; print(run().parent.results()); run().put(read=True)"


def task(name: str, program: str, **options: Any) -> Any:
    roles = [Role("role", image="x", entrypoint="python", args=["-c", program])]
    return task_from_app(AppDef(name, roles=roles), **options)


def pipeline_with(last: str = READ, stages: int = 1) -> Any:
    """Return a pipeline with stages that record results, and one that reads the first of them."""

    @dsl.pipeline(name="gone")
    def pipeline(tracker_base: str):
        recorded = [task(f"record-{number}", RECORD, tracker_base=tracker_base) for number in range(stages)]
        task("read", last, tracker_base=tracker_base, reads=recorded[0]).after(*recorded)

    return pipeline


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def attempt(pipeline: Any, base: str) -> RunResult:
    return run(pipeline, {"tracker_base": base}, output_dir="runs", watch=Watch())


def remove_runs(base: str) -> None:
    """Remove all runs under a base, as docs/guides/storage.md says, and check that nothing of them is left."""
    store = FsspecResultTracker(base).store
    folder = Path(store.location("x")).parent
    for name in {key.partition("/")[0] for key in FsspecResultTracker(base).keys()}:  # noqa: SIM118 (not a mapping)
        for place in (name, f".torchx_kfp/runs/{name}", f".torchx_kfp/files/{name}"):
            shutil.rmtree(folder / place, ignore_errors=True)
    assert store.list_files() == []


def test_a_stage_whose_results_are_gone_runs_again(tmp_path: Path) -> None:
    base = str(tmp_path / "base")
    assert states(attempt(pipeline_with(), base)) == {"record-0": "succeeded", "read": "succeeded"}
    assert states(attempt(pipeline_with(), base))["record-0"] == "cached"
    remove_runs(base)
    again = attempt(pipeline_with(), base)
    again.raise_for_failure()
    assert states(again)["record-0"] == "succeeded"
    assert FsspecResultTracker(base)[str(again["record-0"].execution_id)] == {"value": 1}


@pytest.mark.s3
def test_s3_is_asked_once_for_a_whole_run(s3_base: str, s3_server: S3Server) -> None:
    pipeline = pipeline_with(last="pass", stages=2)
    attempt(pipeline, s3_base)
    listings = [line for line in s3_server.requests(lambda: attempt(pipeline, s3_base)) if "list-type" in line]
    assert len(listings) == 1, listings
    assert set(states(attempt(pipeline, s3_base)).values()) == {"cached"}


REGISTER = """
from torchx_kfp.tracking import current_run
open("data.txt", "a").write("1")
current_run().add_artifact("data", "data.txt")
"""
OPEN = """
import os, sys
from torchx_kfp.tracking import current_run
open(current_run().parent.artifact("data").path)
sys.exit(os.path.exists("broken"))
"""


@dsl.pipeline(name="registers")
def registers(tracker_base: str) -> None:
    made = task("make", REGISTER, tracker_base=tracker_base)
    task("use", OPEN, tracker_base=tracker_base, reads=made)


def test_a_stage_whose_registered_file_is_gone_or_changed_runs_again(tmp_path: Path) -> None:
    base, data = str(tmp_path / "base"), tmp_path / "data.txt"
    assert attempt(registers, base)["make"].files == (str(data),)
    assert states(attempt(registers, base))["make"] == "cached"
    data.unlink()
    assert states(attempt(registers, base)) == {"make": "succeeded", "use": "succeeded"}
    data.write_text("changed")
    (tmp_path / "broken").touch()
    failed = attempt(registers, base)
    assert states(failed) == {"make": "succeeded", "use": "failed"}
    data.unlink()
    (tmp_path / "broken").unlink()
    assert states(attempt(registers, base)) == {"make": "succeeded", "use": "succeeded"}


STORE = """
from torchx_kfp.tracking import current_run
open("data.txt", "w").write("1")
current_run().add_artifact("data", "data.txt", store=True)
current_run().put(made=True)
"""
FETCH = """
from torchx_kfp.tracking import current_run
with current_run().parent.artifact("data").open() as file:
    assert file.read() == b"1"
current_run().put(read=True)
"""


@dsl.pipeline(name="stores")
def stores(tracker_base: str) -> None:
    made = task("make", STORE, tracker_base=tracker_base, artifacts={"data": dsl.Dataset})
    task("use", FETCH, tracker_base=tracker_base, reads=made)


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_stage_whose_stored_file_is_gone_runs_again(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = str(tmp_path / "base") if store == "disk" else request.getfixturevalue("s3_base")
    (tmp_path / ".torchxignore").write_text("/data.txt")  # otherwise, it may be code of "use"
    first = attempt(stores, base)
    assert states(first) == {"make": "succeeded", "use": "succeeded"}
    declared: Any = first["make"].artifacts["data"]
    if store == "s3":  # KFP's artifact names the place, instead of a second copy
        assert declared.location == json.loads(Path(declared.path).read_text())["path"]
        assert declared.location.startswith(f"{base}/.torchx_kfp/files/")
    else:
        assert Path(declared.path).read_text() == "1"
    (tmp_path / "data.txt").unlink()
    assert states(attempt(stores, base)) == {"make": "cached", "use": "cached"}
    kept = FsspecResultTracker(base).store
    for file in kept.list_files(".torchx_kfp/files"):
        kept.remove(file.key)
    assert states(attempt(stores, base)) == {"make": "succeeded", "use": "succeeded"}
