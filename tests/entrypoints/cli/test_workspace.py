"""Code travels with a run: `run --workspace DIR` and `submit --workspace DIR`."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call

PIPELINE = """\
import sys

from kfp import dsl, kubernetes
from torchx.components import dist
from torchx.specs import AppDef, Role

from torchx_kfp import Stages, hpo


def app(name, *args, **role):
    return AppDef(name, [Role("r", image="i", entrypoint=sys.executable, args=["-m", "app", *args], **role)])


@dsl.pipeline(name="one")
def one(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    first = stages.task(app("first"), results={"value": int})
    second = app("second", f"{first.outputs['value']}", max_retries=1)
    stages.task(second, reads=first, may_fail=True)
    other = AppDef("other", [Role("r", image="i", entrypoint=sys.executable, args=["other.py"])])
    Stages(tracker_base=tracker_base).task(other)


@dsl.pipeline(name="replicas")
def replicas(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(app("train", num_replicas=2), engine="job", results={})


@dsl.pipeline(name="searching")
def searching(tracker_base: str, workspace: str = ""):
    hpo.search(
        lambda p: app("trial", f"{p.x}"), {"x": hpo.int(1, 9)}, maximize="value", rounds=1, trials=2, seed=1,
        tracker_base=tracker_base, workspace=workspace,
    )


@dsl.pipeline(name="mounted")
def mounted(tracker_base: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    kubernetes.mount_pvc(stages.task(app("first")), "claim", "/mnt")


@dsl.pipeline(name="risky")
def risky(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(app("risky"), may_fail=True)


@dsl.pipeline(name="required")
def required(tracker_base: str, workspace: str):
    Stages(tracker_base=tracker_base, workspace=workspace).task(app("first"))

"""
APP = """\
import os, sys
from pathlib import Path
import helper
from torchx_kfp.tracking import current_run
if len(sys.argv) > 1 and sys.argv[1] == "7":
    sys.exit(3)
assert Path("app.py").samefile(__file__) and Path("run.sh").stat().st_mode & 0o100
print("started in", os.getcwd(), helper.VALUE, sys.argv[1:], flush=True)
current_run().put(value=helper.VALUE)
"""


@pytest.fixture
def project(project: Path) -> Path:
    (project / "code").mkdir()
    (project / "pipe.py").write_text(PIPELINE)
    (project / "other.py").touch()
    (project / "code" / "app.py").write_text(APP)
    (project / "code" / "helper.py").write_text("VALUE = 5\n")
    (project / "code" / "run.sh").write_text("exit 0\n")
    (project / "code" / "run.sh").chmod(0o755)
    return project


def test_stages_run_with_the_code(project: Path, call: Call) -> None:
    words = ["pipe.py:one", "--tracker-base", "base", "--workspace", "code"]
    done = call("run", *words)
    assert done.returncode == 0, done.stderr
    assert "Workspace code: 3 files, 20.5 kB, stored." in done.stderr
    assert "value=5" in done.stdout
    assert "second | started in" in done.stderr
    [archive] = (project / "base/.torchx_kfp/workspaces").iterdir()
    assert (archive.suffix, len(archive.stem)) == (".tar", 64)
    # What was unpacked is in the run's folder, not among the machine's temporary files.
    assert len(list((project / "local_outputs").glob("one-*/*/workspace-*/app.py"))) == 2

    again = call("run", *words)
    assert "Workspace code: 3 files, 20.5 kB, already stored." in again.stderr
    assert again.stdout.count("cached") == 3

    # A line changes: only the stages with the code run again.
    (project / "code" / "helper.py").write_text("VALUE = 7\n")
    changed = call("run", *words)
    assert changed.stdout.count("cached") == 1
    assert "other    cached" in changed.stdout
    assert "exit_code=3" in changed.stdout


def test_the_hint_after_a_failure_runs_mended_code(project: Path, call: Call) -> None:
    (project / "code" / "helper.py").write_text("raise SystemExit(7)\n")
    words = ["pipe.py:required", "--tracker-base", "base", "--workspace", "code"]
    failed = call("run", *words)
    hint = re.search("torchx-kfp (run pipe.py:required .*--workspace code)", failed.stderr)
    assert hint, failed.stderr
    (project / "code" / "helper.py").write_text("VALUE = 5\n")
    assert call(*hint[1].split()).returncode == 0


def test_only_what_travels_is_found(project: Path, call: Call) -> None:
    """A module of the pipeline's folder that does not travel is missing here, as it is on a cluster."""
    (project / "code" / "helper.py").rename(project / "helper.py")
    words = ["--tracker-base", "base", "--workspace", "code", "--quiet"]
    done = call("run", "pipe.py:required", *words)
    assert (done.returncode, "No module named 'helper'" in done.stderr) == (1, True), done.stderr
    for again in (["retry", "latest"], ["replay", "latest/first"]):
        assert "No module named 'helper'" in call(*again).stderr
    done = call("run", "pipe.py:replicas", *words)
    assert "No module named 'helper'" in done.stderr
    # For what does not travel, that folder stands for the image.
    (project / "code" / "app.py").rename(project / "app.py")
    (project / "run.sh").touch(0o755)
    assert call("run", "pipe.py:replicas", "--tracker-base", "base").returncode == 0


def test_a_dry_run_shows_what_would_go(project: Path, call: Call) -> None:
    (project / "code" / "größe 2.txt").write_text("x" * 1234)
    words = ["pipe.py:required", "--tracker-base", "base", "--workspace", "code", "--dry-run"]
    done = call("run", *words)
    assert done.returncode == 0, done.stderr
    listed = ["353  app.py", "1,234  größe 2.txt", "10  helper.py", "7  run.sh"]
    assert [line.strip() for line in done.stdout.splitlines()][2:] == ["first   runs: it has not run yet", *listed]
    assert not (project / "base").exists()
    assert not (project / "local_outputs").exists()
    found = json.loads(call("run", *words, "--json").stdout)["workspaces"]["code"]
    assert found["files"]["größe 2.txt"] == 1234
    assert re.search(rf"4 files, 1\.6 kB, [\d.]+ kB as an archive: {found['digest']}", done.stderr)
    # It is what goes.
    sent = call("run", *words[:-1])
    assert re.search(r"Workspace code: 4 files, [\d.]+ kB, stored\.", sent.stderr)
    assert (project / f"base/.torchx_kfp/workspaces/{found['digest']}.tar").stat().st_size == found["size"]


def test_a_dry_run_of_a_submission_asks_nobody(project: Path, call: Call) -> None:
    nowhere = ["--host", "http://127.0.0.1:1", "--workspace", "code"]
    done = call("submit", "pipe.py:one", "--tracker-base", "s3://no-bucket/results", *nowhere, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "helper.py" in done.stdout
    required = call("submit", "pipe.py:required", "--tracker-base", "s3://no-bucket/results", *nowhere, "--dry-run")
    assert (required.returncode, "helper.py" in required.stdout) == (0, True), required.stderr
    forgotten = call("submit", "pipe.py:one", "--tracker-base", "s3://no-bucket/results", *nowhere[:2], "--dry-run")
    assert "The pipeline's 'workspace' is empty" in forgotten.stderr
    assert "'workspace' is empty" not in done.stderr
    gone = call("submit", "pipe.py:mounted", "--tracker-base", "/mnt/gone", *nowhere)
    assert (gone.returncode, "does not have that folder" in gone.stderr) == (2, True), gone.stderr


def test_a_run_whose_code_was_forgotten_says_so_and_repeats_no_lines(project: Path, call: Call) -> None:
    done = call("run", "pipe.py:one", "--tracker-base", "base")
    assert "The run was started without --workspace" in done.stderr
    assert done.stderr.count("No module named app") == 1
    quiet = call("run", "pipe.py:one", "--tracker-base", "base", "--quiet")
    assert "Its last lines" in quiet.stderr
    assert quiet.stderr.count("No module named app") == 1


def test_folders_that_runs_write_do_not_travel(project: Path, call: Call) -> None:
    """The tracker base and the runs are often in the folder of the code: its digest must not depend on them."""
    words = ["../pipe.py:required", "--tracker-base", "results", "--output-dir", "runs", "--workspace", "."]
    first = call("run", *words, folder=project / "code")
    assert "Workspace .: 3 files, 20.5 kB, stored." in first.stderr
    assert "Workspace .: 3 files, 20.5 kB, already stored." in call("run", *words, folder=project / "code").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pipe.py:replicas"], "started in"),
        (["pipe.py:searching"], "started in"),
        (["utils.sh", "--", "cat", "helper.py", "helper.py"], "sh | VALUE = 5"),
    ],
    ids=["replicas", "trials", "component"],
)
def test_all_that_a_stage_starts_has_the_code(project: Path, call: Call, words: list[str], said: str) -> None:
    target, *more = words
    done = call("run", target, "--tracker-base", "base", "--workspace", "code", *more)
    assert (done.returncode, done.stderr.count(said)) == (0, 2), done.stderr


def test_a_component_has_its_own_workspace(project: Path, call: Call) -> None:
    """A role's own folder goes with a run, --workspace replaces it, and no compiled file can have it."""
    (project / "comp.py").write_text(
        "from torchx import specs\n\ndef show() -> specs.AppDef:\n    role = specs.Role('show', 'i')\n"
        "    role.entrypoint, role.args, role.workspace = 'cat', ['helper.py'], 'code'\n"
        "    return specs.AppDef('show', [role])\n"
    )
    (project / "other").mkdir()
    (project / "other" / "helper.py").write_text("VALUE = 6\n")
    done = call("run", "comp.py:show", "--tracker-base", "base")
    assert "show | VALUE = 5" in done.stderr
    assert f"Workspace {project}/code: 3 files" in done.stderr
    assert "show | VALUE = 6" in call("run", "comp.py:show", "--tracker-base", "base", "--workspace", "other").stderr
    for words in (["run"], ["compile", "-o", "show.yaml"]):
        refused = call(*words, "comp.py:show")
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
        assert "workspace" in refused.stderr
    assert not (project / "show.yaml").exists()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["pipe.py:one", "--workspace", "code", "--dry-run", "--tracker-base", "base", "-p", "wrong=x"], ["'wrong'"]),
        (["pipe.py:one", "--workspace", "code", "--tracker-base", "base", "--mount", "/tmp"], ["--docker"]),
        (["pipe.py:one", "--workspace", "code", "--tracker-base", "base", "-qv"], ["--quiet", "--verbose"]),
        (["pipe.py:one", "-p", "workspace=code", "--tracker-base", "base"], ["'code' is a folder", "--workspace code"]),
    ],
    ids=["dry-run", "mount", "view", "parameter"],
)
def test_a_run_that_is_refused_stores_no_code(project: Path, call: Call, words: list[str], facts: list[str]) -> None:
    done = call("run", *words)
    assert done.returncode == 2
    assert all(fact in done.stderr for fact in facts), done.stderr
    assert not list(project.glob("base/.torchx_kfp/workspaces/*"))


def test_show_names_the_archive_with_the_code_of_a_run(project: Path, call: Call) -> None:
    (project / "code" / "lib").mkdir()
    (project / "code" / "lib" / "größe.py").symlink_to("../helper.py")
    assert call("run", "pipe.py:required", "--tracker-base", "base", "--workspace", "code").returncode == 0
    for name in ("latest", "latest/first"):
        found = re.search(r"code +archive +(\S+\.tar)\s", call("show", name).stdout)
        assert found, name
    with tarfile.open(project / "base" / found[1]) as archive:
        archive.extractall(project / "back", filter="data")
    for name in ("app.py", "helper.py", "lib/größe.py", "run.sh"):
        assert (project / "back" / name).read_bytes() == (project / "code" / name).read_bytes()
    assert (project / "back/run.sh").stat().st_mode & 0o111
    assert (project / "back/lib/größe.py").is_symlink()


def test_the_commit_of_a_run(project: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs with the same files can be from different commits, and only one of them have a change."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def git(*words: str) -> str:
        words = ("-c", "user.name=n", "-c", "user.email=e@x", *words)
        return subprocess.run(["git", "-C", project, *words], capture_output=True, check=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    git("add", "code/app.py", "code/run.sh")
    git("commit", "-qm", "first")
    words = ["run", "pipe.py:required", "--tracker-base", "base", "--workspace", "code"]
    assert call(*words).returncode == 0
    first = git("rev-parse", "--short=7", "HEAD")
    git("add", "code/helper.py")
    git("commit", "-qm", "second")
    second = git("rev-parse", "--short=7", "HEAD")
    assert call(*words, "--no-cache").returncode == 0
    runs = sorted((project / "local_outputs").glob("required-*"), key=lambda folder: folder.stat().st_mtime)
    for run, commit in zip(runs, (f"{first} on main, changed", f"{second} on main"), strict=True):
        text = f"(3 files, 20.5 kB), commit {commit}"
        for name in (run.name, f"{run.name}/first"):
            shown = call("show", name).stdout
            assert re.search(rf"code .*{re.escape(text)}( |\n)", shown), shown
        assert f"{text}" in call("report", run.name, "-o", "-").stdout
        shown = json.loads(call("show", f"{run.name}/first", "--json").stdout)
        assert json.loads(call("show", "--lineage", run.name, "--json").stdout)["nodes"][0]["code"] == shown["code"]
        assert shown["code"][0]["git"]["branch"] == "main"


@pytest.mark.parametrize("rules", [".gitignore", ".torchxignore"])
def test_a_file_that_code_names_and_that_does_not_travel_is_named(project: Path, call: Call, rules: str) -> None:
    code = project / "code"
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    (code / "data").mkdir()
    for name in ("x.csv", "y.csv", "unused.csv"):
        (code / "data" / name).touch()
    (code / "link.csv").symlink_to("data/x.csv")
    (code / "package").mkdir()
    (code / "package" / "module.py").touch()
    (code / "folder").symlink_to("package")
    (code / "helper.py").write_text("VALUE = 5\nPATH = 'data/y.csv', 'app.py', 'nowhere.csv'\n")
    words = ["run", "pipe.py:required", "--tracker-base", "base", "--workspace", "code", "--no-cache"]
    assert "Warning" not in call(*words).stderr
    (code / rules).write_text("data/\n")
    said = call(*words).stderr
    assert said.count("Warning") == 1
    assert "the workspace lacks data/y.csv (named by helper.py), data/x.csv (named by link.csv), excluded" in said
