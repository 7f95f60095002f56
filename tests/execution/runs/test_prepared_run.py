"""Code travels with runs that Python starts, here and on a host."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes
from torchx import specs
from torchx.specs import AppDef, Role

from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp import Stages, component_from_app, host, local
from torchx_kfp.errors import AppDefError, ArgumentError
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, Code, RecordTracker

APP = AppDef("app", [Role("app", image="i", entrypoint=sys.executable, args=["-m", "app"])])
#: TorchX 0.7.0 has no workspaces with several projects.
_Workspace: Any = getattr(specs, "Workspace", SimpleNamespace)
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
    tracker = RecordTracker(os.fspath(base), patience=SHORT_PATIENCE)
    return [tracker.record(run_id).metadata for run_id in tracker.run_ids()]


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
    records = RecordTracker(str(base), patience=SHORT_PATIENCE).records([result.run_id, again.run_id])
    assert records[result.run_id].code == (Code(archive.stem, archive.stat().st_size, 1),)
    assert records[again.run_id].code == (Code(archive.stem),)


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
        tracker = RecordTracker(str(base), patience=SHORT_PATIENCE)
        [found] = tracker.record(run.run_id).code
        assert found.files == 1


def own(folders: Any, module: str = "app", name: str = "app", **role: Any) -> AppDef:
    """Return an AppDef whose role has a workspace: text, or projects as TorchX's nightly has them."""
    made = Role(name, image="i", entrypoint=sys.executable, args=["-m", module], **role)
    made.workspace = _Workspace(projects=folders) if isinstance(folders, dict) else folders
    return AppDef(name, [made])


def test_apps_have_workspaces_of_their_own(code: Path) -> None:
    """Two stages with different code, one of them an engine's, and the pipeline's own in a third."""
    for name, value in (("second", 8), ("third", 9)):
        (code.parent / name).mkdir()
        (code.parent / name / "app.py").write_text(PROGRAM % value)

    @dsl.pipeline(name="several")
    def several(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base)
        stages.task(own("code"), workspace=None)
        stages.task(own(f"file://{code.parent}/second", name="replicas", num_replicas=2), engine="job", results={})
        stages.task(APP, name="third", workspace=workspace)

    result = local.run(several, {"tracker_base": "base"}, workspace="third", output_dir="runs", watch=local.Watch())
    assert result.state == "succeeded"
    assert sorted(each["here"] for each in recorded("base") if each) == [7, 8, 9]
    assert len(list(Path("base/.torchx_kfp/workspaces").iterdir())) == 3
    assert "torchx-kfp-folders" not in next(Path("runs").glob("several-*/pipeline.yaml")).read_text()


def test_projects_are_merged_as_torchx_does(code: Path) -> None:
    """Folders at their places in the workspace; a later file replaces an earlier one."""
    (code / "lib").mkdir()
    (code / "lib" / "values.py").write_text("VALUE = 1")
    (code.parent / "my +lib=").mkdir()
    (code.parent / "my +lib=" / "values.py").write_text("VALUE = 2")
    (code / "app.py").write_text(f"from lib.values import VALUE; {PROGRAM.replace('%d', 'VALUE')}")
    projects = {str(code): "", str(code.parent / "my +lib="): "lib/"}

    @dsl.pipeline(name="merged")
    def merged(tracker_base: str):
        Stages(tracker_base=tracker_base).task(own(projects))

    assert local.run(merged, {"tracker_base": "base"}, output_dir="runs", watch=local.Watch()).state == "succeeded"
    assert recorded("base") == [{"here": 2}]
    (code / "lib").rename(code / "lib-folder")
    (code / "lib").touch()
    with pytest.raises(ArgumentError, match=says("'lib'", "a file of another")):
        local.run(merged, {"tracker_base": "base"}, watch=local.Watch())


ARCHIVE = f"s3://b/.torchx_kfp/workspaces/{'0' * 64}.tar"


@pytest.mark.parametrize(
    ("workspace", "options", "facts"),
    [
        ("s3://bucket/code", {}, ["'s3://bucket/code'", "local folder"]),
        ("memory://code", {}, ["memory://code"]),
        ({".": "../up"}, {}, ["'../up'", "relative path"]),
        ({".": "/abs"}, {}, ["'/abs'", "relative path"]),
        (5, {}, ["5", "torchx.specs.Workspace"]),
        ("code", {"workspace": ARCHIVE}, ["code", "workspace=None"]),  # only one of both may have one
    ],
)
def test_workspaces_of_roles_that_are_refused(workspace: Any, options: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(AppDefError, match=says("'app'", *facts)):
        component_from_app(own(workspace), **options)


def test_a_compiled_file_does_not_take_folders_of_this_machine(code: Path) -> None:
    """Whoever runs a file from elsewhere does not send their own files with it."""

    @dsl.pipeline(name="own")
    def pipeline(tracker_base: str):
        Stages(tracker_base=tracker_base).task(own("code"))

    compiler.Compiler().compile(pipeline, "own.yaml")
    with pytest.raises(ArgumentError, match=says("'own'", str(code), "Python file", "--workspace")):
        local.run("own.yaml", {"tracker_base": "base"}, watch=local.Watch())
    assert not Path("base").exists()


def test_what_is_refused(code: Path) -> None:
    @dsl.pipeline(name="plain")
    def plain(tracker_base: str = ""):
        Stages().task(APP)

    @dsl.pipeline(name="baseless")
    def baseless(workspace: str = "", tracker_base: str = ""):
        Stages(workspace=workspace).task(APP)

    for pipeline, folder, arguments, error, facts in (
        (plain, "code", {}, ArgumentError, ["'code'", "'plain'", "Stages(..., workspace=workspace)"]),
        (baseless, "code", {}, ArgumentError, ["tracker base", "--tracker-base"]),
        (one, "code", {"workspace": "url"}, ArgumentError, ["given twice", "'url'"]),
        (one, "cod", {}, ArgumentError, ["'cod'", "not a folder"]),
        (one, 5, {}, ArgumentError, ["workspace", "5"]),
    ):
        with pytest.raises(error, match=says(*facts)):
            local.run(pipeline, arguments, workspace=folder, watch=local.Watch())
    assert [path.name for path in code.parent.iterdir()] == ["code"]
