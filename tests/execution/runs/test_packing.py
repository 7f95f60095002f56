"""Code travels with runs that Python starts, here and on a host."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.facts import says
from tests.kfp_host import KfpHost
from torchx_kfp import Stages, host, local
from torchx_kfp.errors import ArgumentError, WorkspaceError
from torchx_kfp.tracking.recorder import Code, Recorder

APP = AppDef("app", [Role("app", image="i", entrypoint=sys.executable, args=["-m", "app"])])
PROGRAM = "from torchx_kfp.tracking import current_run; current_run().add_metadata(here=%d)"


@dsl.pipeline(name="one")
def one(tracker_base: str = "results", workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(APP)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "app.py").write_text(PROGRAM % 7)
    return tmp_path / "code"


def recorded(base: str | os.PathLike[str]) -> list[Any]:
    recorder = Recorder.open(os.fspath(base))
    return [recorder.metadata(run_id) for run_id in recorder.run_ids()]


@pytest.mark.parametrize("arguments", [{}, {"tracker_base": "../there"}], ids=["default", "relative"])
def test_a_local_run_starts_with_the_code(code: Path, arguments: dict[str, str]) -> None:
    (code.parent / "stages").mkdir()
    result = local.run(one, arguments, workspace=code, directory="stages", output_dir="runs", watch=local.Watch())
    assert result.state == "succeeded"
    # The base is relative to the directory of the stages, also for a stage that starts in its workspace.
    base = code.parent / ("there" if arguments else "stages/results")
    assert recorded(base) == [{"here": 7}]
    [archive] = base.glob(".torchx_kfp/workspaces/*.tar")
    again = local.run(one, {"tracker_base": str(base), "workspace": str(archive)}, watch=local.Watch())
    assert Recorder.open(str(base)).code_of([result.run_id, again.run_id]) == {
        result.run_id: [Code(archive.stem, archive.stat().st_size, 1)],
        again.run_id: [Code(archive.stem)],
    }


def test_a_run_on_a_host_starts_with_the_code(code: Path) -> None:
    base = code.parent / "mounted"

    @dsl.pipeline(name="mounted")
    def mounted(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        kubernetes.mount_pvc(stages.task(APP), "claim", str(base))

    with KfpHost(code.parent / "host") as kfp_host:
        with pytest.raises(ArgumentError, match=says(str(base), "does not have that folder", "s3://")):
            host.submit(mounted, {"tracker_base": str(base)}, workspace="code", host=kfp_host.url)
        base.mkdir()
        run = host.submit(mounted, {"tracker_base": str(base)}, workspace="code", host=kfp_host.url)
        run.wait(timeout=120).raise_for_failure()
    assert recorded(base) == [{"here": 7}]
    [[found]] = Recorder.open(str(base)).code_of([run.run_id]).values()
    assert found.files == 1


def test_what_is_refused(code: Path) -> None:
    @dsl.pipeline(name="plain")
    def plain(tracker_base: str = ""):
        Stages().task(APP)

    @dsl.pipeline(name="baseless")
    def baseless(workspace: str = "", tracker_base: str = ""):
        Stages(tracker_base="s3://b/c", workspace=workspace).task(APP)

    for pipeline, folder, arguments, error, facts in (
        (plain, "code", {}, ArgumentError, ["'code'", "'plain'", "Stages(..., workspace=workspace)"]),
        (baseless, "code", {}, ArgumentError, ["tracker base", "--tracker-base"]),
        (one, "code", {"workspace": "url"}, ArgumentError, ["given twice", "'url'"]),
        (one, "cod", {}, WorkspaceError, ["'cod'", "not a folder"]),
        (one, 5, {}, ArgumentError, ["workspace", "5"]),
    ):
        with pytest.raises(error, match=says(*facts)):
            local.run(pipeline, arguments, workspace=folder, watch=local.Watch())
    assert [path.name for path in code.parent.iterdir()] == ["code"]
