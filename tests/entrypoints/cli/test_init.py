"""``torchx-kfp init``: what it writes runs at once, here and on a host, and nothing is overwritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import pages
from tests.entrypoints.cli.conftest import Call
from tests.fake_kfp import KfpHost

FILES = {"README.md", "pipeline.py", "data.py", "prepare.py", "train.py", "Dockerfile", ".torchxignore"}
APPDEF_FILES = FILES - {"data.py"} | {"judge.py"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path


def commands(readme: Path) -> list[list[str]]:
    """Return the words of the commands in the page, without the program."""
    lines = (line.strip() for line in readme.read_text().splitlines())
    return [line.split()[1:] for line in lines if line.startswith("torchx-kfp ")]


def test_it_runs_here(project: Path, call: Call) -> None:
    done = call("init", "deep/training")
    assert done.returncode == 0, done.stderr
    assert {Path(name).name for name in done.stdout.splitlines()} == FILES
    folder = project / "deep" / "training"
    assert {path.name for path in folder.iterdir()} == FILES
    run, submit = commands(folder / "README.md")
    assert run == ["run", "pipeline.py", "--workspace", ".", "--tracker-base", "results"]
    assert submit == ["submit", "pipeline.py", "--workspace", ".", "--watch"]
    # In a fresh process, as its user does.
    ran = call(*run, "--quiet", folder=folder, PYTHONNOUSERSITE="1")
    assert ran.returncode == 0, ran.stderr
    assert "loss=" in ran.stdout
    assert "Workspace .: 7 files" in ran.stderr
    assert call("check", "pipeline.py", folder=folder).returncode == 0
    # A changed line is in the next run, and what the first one wrote is not.
    (folder / "train.py").write_text((folder / "train.py").read_text().replace("fitted y", "found y"))
    again = call(*run, folder=folder)
    assert "train | found y = " in again.stderr
    assert "Workspace .: 7 files" in again.stderr


@pytest.mark.s3
def test_it_runs_on_a_host(project: Path, call: Call, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", s3_base)
    assert call("init").returncode == 0
    with KfpHost(project.parent / f"{project.name}-host") as host:
        monkeypatch.setenv("TORCHX_KFP_HOST", host.url)
        done = call(*commands(project / "README.md")[1])
        assert done.returncode == 0, done.stderr
        assert "loss=" in done.stdout
        assert re.search(r"code +workspace +\w+ \(7 files", call("show", "latest", "--host", host.url).stdout)


def test_appdefs_run_locally(project: Path, call: Call) -> None:
    done = call("init", "--appdef")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {path.name for path in project.iterdir()} == APPDEF_FILES
    ran = call(*commands(project / "README.md")[0], "--quiet")
    assert ran.returncode == 0, ran.stderr
    assert "good=true" in ran.stdout


@pytest.mark.parametrize("name", ["prepare.py", "train.py", "pipeline.py", "judge.py"])
def test_appdefs_are_the_example_of_the_readme(name: str, project: Path, call: Call) -> None:
    assert call("init", "--appdef").returncode == 0
    readme = (pages.REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert f"```python\n# {name}\n{(project / name).read_text()}```\n" in readme


def test_nothing_is_overwritten(project: Path, call: Call) -> None:
    (project / "train.py").write_text("mine")
    (project / "Dockerfile").symlink_to("nowhere")
    done = call("init")
    assert done.returncode == 2
    assert "train.py, Dockerfile" in done.stderr
    assert {path.name for path in project.iterdir()} == {"train.py", "Dockerfile"}
    assert (project / "train.py").read_text() == "mine"
    (project / "file").touch()
    wrong = call("init", "file/below")
    assert (wrong.returncode, "file/below" in wrong.stderr, "Traceback" in wrong.stderr) == (2, True, False)
