"""``get`` and ``show RUN/STAGE`` of stages without a tracker base: the run's own events have their artifacts."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.entrypoints.cli.conftest import Call
from tests.execution.local.components import shell
from torchx_kfp import task_from_app
from torchx_kfp.local import Watch, run


@dsl.container_component
def load(rows: int, count: dsl.OutputPath(int), out: dsl.Output[dsl.Dataset], folder: dsl.Output[dsl.Model]):
    program = 'echo data > "$0"; mkdir -p "$1/deep"; echo a > "$1/deep/a"; ln -s a "$1/deep/b"; printf %s "$2" > "$3"'
    return dsl.ContainerSpec(image="x", command=["sh", "-c", program, out.path, folder.path, rows, count])


@dsl.container_component
def use(data: dsl.Input[dsl.Dataset], item: str):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'cat "$0"', data.path, item])


@dsl.pipeline(name="plain")
def plain():
    loaded = load(rows=3)
    with dsl.ParallelFor(["a", "b"]) as item:
        use(data=loaded.outputs["out"], item=item)
    shell(script="true")


WRITE = 'file=$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID; mkdir -p "${file%/*}"; echo "{\\"x\\": 1}" > "$file"'


@dsl.pipeline(name="mixed")
def mixed(tracker_base: str):
    task_from_app(AppDef("fit", [Role("r", image="x", entrypoint="sh", args=["-c", WRITE])]), tracker_base=tracker_base)
    load(rows=3)


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    result = run(plain, output_dir=project / "local_outputs", watch=Watch())
    assert result.folder is not None
    return result.folder


def test_artifacts_of_stages_without_a_tracker_base(folder: Path, call: Call) -> None:
    listed = call("get", "latest", "--list")
    assert listed.returncode == 0, listed.stderr
    assert "load" in listed.stdout
    assert "Dataset" in listed.stdout
    rows = json.loads(call("get", "latest/load", "--json").stdout)
    assert [(row["stage"], row["name"]) for row in rows] == [("load", "folder"), ("load", "out")]
    for _ in range(2):  # the same content stays
        got = call("get", "latest/load/out", "copies")
        assert (got.returncode, Path(got.stdout.strip()).read_text()) == (0, "data\n"), got.stderr
    assert Path(call("get", "latest/load/folder", "copies").stdout.strip(), "deep", "b").read_text() == "a\n"
    Path("copies/out").write_text("mine")
    assert "--overwrite" in call("get", "latest/load/out", "copies").stderr
    assert Path("copies/out").read_text() == "mine"
    assert call("get", "latest/load/out", "copies", "--overwrite").returncode == 0
    assert Path("copies/out").read_text() == "data\n"
    assert sorted(os.listdir("copies")) == ["folder", "out"]


def test_what_a_run_without_a_tracker_base_has(folder: Path, call: Call) -> None:
    for word, wanted in {
        "latest/load/ouT": "It has 'load/folder', 'load/out'",
        "latest": "Name an artifact",
        "latest/load/count": "torchx-kfp show",
    }.items():
        error = call("get", word).stderr
        assert wanted in error
        assert "tracker" not in error
    error = call("show", "latest/lod").stderr
    assert "'load'" in error
    assert "tracker" not in error
    assert "use[0], use[1]" in call("show", "latest/use").stderr
    assert "has no artifacts" in call("get", "latest/use", "--list").stderr


def test_the_command_in_a_message_finds_the_run(folder: Path, call: Call) -> None:
    folder.parent.rename("others")
    error = call("get", "latest/load/count", "--output-dir", "others").stderr
    [command] = re.findall(r"To see it: \S+ (.*)", error)
    assert "rows" in call(*shlex.split(command)).stdout


def test_a_stage_without_a_tracker_base(folder: Path, call: Call) -> None:
    shown = call("show", "latest/load")
    assert shown.returncode == 0, shown.stderr
    for words in ("succeeded", "rows", "count", "Dataset", "log.txt"):
        assert words in shown.stdout
    found = json.loads(call("show", "latest/use[1]", "--json").stdout)
    assert (found["stage"], found["inputs"]["item"], found["state"]) == ("use[1]", "b", "succeeded")
    assert found["inputs"]["data"][0]["path"].startswith(str(folder))


def test_only_files_of_runs_are_copied(folder: Path, call: Call) -> None:
    (folder.parent / "private").mkdir()
    for secret in (folder.parent.parent / "secret", folder.parent / "private" / "secret"):
        secret.write_text("SECRET")
        events = folder / "events.jsonl"
        before = events.read_text()
        [uri] = {row["path"] for row in json.loads(call("get", "latest/load", "--json").stdout) if row["name"] == "out"}
        events.write_text(before.replace(uri, str(secret)))
        done = call("get", "latest/load/out", "copies")
        assert done.returncode == 2
        assert str(secret) in done.stderr
        assert not Path("copies/secret").exists()
        events.write_text(before)
        os.unlink(uri)
        os.symlink(secret, uri)
        done = call("get", "latest/load/out", "copies")
        assert done.returncode == 2
        assert not Path("copies/out").exists()
        os.unlink(uri)
        assert "out" in call("get", "latest/load/out", "copies").stderr
        os.mkfifo(uri)
        assert "FIFO" in call("get", "latest/load/out", "copies").stderr
        os.unlink(uri)
        Path(uri).write_text("data\n")


@pytest.mark.parametrize("path", ["\0", "round", "deep"])
def test_artifacts_that_cannot_be_copied(folder: Path, call: Call, path: str) -> None:
    (folder / "round").symlink_to("round")
    deepest = folder / "deep" / "/".join("d" * 150)
    deepest.mkdir(parents=True)
    events = folder / "events.jsonl"
    [uri] = {row["path"] for row in json.loads(call("get", "latest/load", "--json").stdout) if row["name"] == "out"}
    other = json.dumps(path if path == "\0" else str(folder / path))
    events.write_text(events.read_text().replace(json.dumps(uri), other))
    done = call("get", "latest/load/out", "copies")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr
    assert not Path("copies").exists() or not os.listdir("copies")


def test_a_run_in_which_some_stages_have_a_tracker_base(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run(mixed, {"tracker_base": str(project / "base")}, output_dir=project / "local_outputs", watch=Watch())
    assert "result" in call("show", "latest/fit").stdout
    assert "Dataset" in call("show", "latest/load").stdout
    for word in ("latest", "latest/load"):
        assert {row["name"] for row in json.loads(call("get", word, "--json").stdout)} == {"folder", "out"}
    assert Path(call("get", "latest/load/out").stdout.strip()).read_text() == "data\n"
    for wanted in ("fit/out", "load/ouT"):
        error = call("get", f"latest/{wanted}").stderr
        assert f"has no artifact '{wanted}'" in error
        assert "It has 'load/folder', 'load/out'." in error
