"""After a failure: the command that goes on is printed, and ``retry`` executes the one that started a run here."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.execution.host.commands import rows
from tests.facts import says
from tests.programs import Program

PIPELINE = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import Stages


def app(name, *args):
    return AppDef(name, [Role(name, image="i", entrypoint="python", args=[f"{name}.py", *args])])


@dsl.pipeline(name="three")
def three(tracker_base: str, folder: str = ""):
    stages = Stages(tracker_base=tracker_base)
    first = stages.task(app("first", f"{folder}"))
    second = stages.task(app("second", f"{folder}"), reads=first)
    stages.task(app("third", f"{folder}"), reads=second)
"""
STAGE = """
import os, sys, time
from torchx_kfp.tracking import current_run
current_run().put(x=1)
if os.path.exists(f"{sys.argv[1]}/fail-NAME"):
    sys.exit(1)
while os.path.exists(f"{sys.argv[1]}/wait-NAME"):
    time.sleep(0.1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project, whose name a shell would take for two words."""
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "pipeline.py").write_text(PIPELINE)
    for name in ("first", "second", "third"):
        (folder / f"{name}.py").write_text(STAGE.replace("NAME", name))
    return folder


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return ["run", "pipeline.py", "--tracker-base", "results", "-p", f"folder={tmp_path}", "--name", "it's mine"]


def states(output: str) -> list[str]:
    return [row[1] for row in rows(output)]


def test_the_last_line_is_the_command_that_goes_on(
    project: Path, tmp_path: Path, call: Program, words: list[str]
) -> None:
    (tmp_path / "fail-second").touch()
    words[-1] = "mine"
    failed = call(*words, "--fresh", "first", "--fresh=third", folder=project)
    assert failed.returncode == 1, failed.stderr
    last = failed.stderr.splitlines()[-1]
    again = shlex.join([*words, "--fresh=third"])
    assert last.startswith("To continue, with finished stages from the cache: ")
    [replay] = [line for line in failed.stderr.splitlines() if " replay " in line]
    assert re.search(r"breakpoint\(\) works: \S*torchx-kfp replay mine-\S+/second$", replay)
    assert last.endswith(f"torchx-kfp {again}")
    watched = call("watch", "latest", "--output-dir", str(project / "local_outputs"), folder=tmp_path)
    there = f"cache: cd {shlex.quote(str(project))} && "
    assert (there in watched.stderr, f"torchx-kfp {again}\n" in watched.stderr) == (True, True), watched.stderr
    (tmp_path / "fail-second").unlink()
    done = call(*shlex.split(again), folder=project)
    assert states(done.stdout) == ["cached", "succeeded", "succeeded"], done.stderr


def test_a_retry_is_the_same_command_in_the_same_directory(
    project: Path, tmp_path: Path, call: Program, words: list[str]
) -> None:
    (tmp_path / "fail-second").touch()
    words[-1] = "mine"
    assert call(*words, folder=project).returncode == 1
    (tmp_path / "fail-second").unlink()
    with (project / "third.py").open("a") as file:
        file.write("print('mended')\n")
    moved = shutil.move(project / "local_outputs", tmp_path / "moved")
    retry = ["retry", "latest", "--output-dir", str(moved)]
    done = call(*retry, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        says(f"In {project}: ", f"torchx-kfp {shlex.join(words)}", "current pipeline and code"), done.stderr
    )
    assert "third | mended" in done.stderr
    assert list(project.glob("local_outputs/mine-*")), "it is as if the user had called it there"
    # A retry can be retried, and so can the run before it; it is shown as the options of the retry say.
    again = call(*retry, "-q", folder=tmp_path)
    assert states(again.stdout) == ["cached"] * 3
    assert [line.partition(":")[0] for line in again.stderr.splitlines()] == ["See the results again"]
    printed = call(*retry, "--json", folder=tmp_path).stdout
    assert json.loads(printed.splitlines()[-1])["event"] == "run_finished"
    request = json.loads(next(project.glob("local_outputs/mine-*/run.json")).read_text())
    assert request["command"] == {"words": words, "directory": str(project)}, "no defaults"


def test_what_cannot_be_retried(project: Path, tmp_path: Path, call: Program, words: list[str]) -> None:
    (tmp_path / "fail-second").touch()
    words[-1] = "mine"
    assert call(*words, folder=project).returncode == 1
    retry = ["retry", "latest", "--output-dir", str(project / "local_outputs")]

    def refused(*facts: str) -> None:
        done = call(*retry, folder=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert re.search(says(*facts), done.stderr), done.stderr

    (project / "pipeline.py").rename(project / "pipelines.py")
    refused("There is no file 'pipeline.py'", "Did you mean 'pipelines.py'?")
    project.rename(tmp_path / "other")
    retry[-1] = str(tmp_path / "other" / "local_outputs")
    refused("was started in", "my project", "no longer exists", "torchx-kfp run pipeline.py")
    (request,) = (tmp_path / "other").glob("local_outputs/mine-*/run.json")
    for command in (None, {"words": ["gc"], "directory": str(tmp_path)}, {"words": [], "directory": ""}):
        request.write_text(json.dumps({**json.loads(request.read_text()), "command": command}))
        refused("The run mine-", "was not started by a command", "Python program again", "from the cache")
