"""Folders of runs that are damaged, or come from somebody else: commands that read them end, and show no other file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from kfp import compiler, dsl

from tests.entrypoints.cli import conftest
from tests.entrypoints.cli.pages import all_pages
from tests.execution.local.components import shell, write
from tests.execution.report.runs import write_events
from tests.hostile import REPLACEMENTS, SECRET, make_hostile
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, State, Watch, run

#: The number of damaged folders: more of them find more errors.
SEEDS = int(os.environ.get("TORCHX_KFP_SEEDS", "10"))


@dsl.pipeline(name="mine")
def pipeline(x: str = "v", items: list = ["a"], rates: dict = {"lr": 0.1}):  # noqa: B006 - KFP's way
    with dsl.ParallelFor(["a", "b"]) as item:
        write(x=item)
    shell(script="echo out; exit 1").set_retry(1, backoff_duration="0s")
    write(x=x)


def run_of(pipeline: Any, folder: Path) -> Path:
    """Return the folder of a run of the compiled pipeline."""
    compiler.Compiler().compile(pipeline, str(folder / "p.yaml"))
    return cast("Path", run(folder / "p.yaml", output_dir=folder / "runs", watch=Watch()).folder)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that has failed."""
    return run_of(pipeline, tmp_path_factory.mktemp("good"))


def invoke(*words: str) -> str:
    done = conftest.invoke(*words)
    assert SECRET not in done.stdout + done.stderr, words
    return done.stdout + done.stderr


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file outside of the folders of runs, which has the name of a log."""
    path = tmp_path / "private" / "log.txt"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


def test_a_bad_folder_does_not_hide_the_others(good: Path, secret: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(good, runs / good.name)
    for name in ("events.jsonl", "run.json", "lock"):
        for number, replace in enumerate(REPLACEMENTS):
            folder = runs / f"{name}-{number}"
            shutil.copytree(good, folder)
            (folder / name).unlink()
            replace(folder / name, secret)
    (runs / "events.jsonl-0" / "run.json").unlink()
    said = invoke("runs", "--output-dir", str(runs))
    assert f"\n{good.name} " in said
    assert (
        f"Left out: The run in '{runs}/events.jsonl-0' is unreadable: {runs}/events.jsonl-0/events.jsonl is a" in said
    )


@pytest.mark.parametrize("cached_from", ["", "private", "..", "../private", "gone", "0" * 300])
def test_events_cannot_name_other_files(cached_from: str, secret: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    logs = [secret, secret.parent / ".." / "private" / "log.txt", folder / "a_1" / ".." / ".." / "private" / "log.txt"]
    stages = [
        StageResult(f"s{number}", "s", State.FAILED, attempts=1, pod_name="s_1", log_file=log, cached_from=cached_from)
        for number, log in enumerate(logs)
    ]
    events = [RunStarted("p", "mine", Path("/")), *map(StageFinished, stages), RunFinished("mine", State.FAILED, 1.0)]
    write_events(folder, events)
    (folder / "private").symlink_to(secret.parent)
    invoke("logs", str(folder))
    invoke("watch", str(folder))
    invoke("report", str(folder))
    assert SECRET not in (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(secret)
    assert "is a symbolic link" in invoke("report", str(folder))
    assert secret.read_text() == SECRET
    (folder / "report.html").unlink()
    os.mkfifo(folder / "report.html")
    assert "or a special file" in invoke("report", str(folder))


def test_a_report_reads_no_pipeline_elsewhere(good: Path, tmp_path: Path) -> None:
    folder, elsewhere = shutil.copytree(good, tmp_path / "mine"), tmp_path / "elsewhere.yaml"
    pipeline = folder / "pipeline.yaml"
    invoke("report", str(folder), "-o", str(tmp_path / "whole.html"))
    elsewhere.write_text(pipeline.read_text())
    pipeline.unlink()
    pipeline.symlink_to(elsewhere)
    invoke("report", str(folder), "-o", str(tmp_path / "page.html"))
    pages = [(tmp_path / name).read_text() for name in ("whole.html", "page.html")]
    assert ['id="graph"' in page for page in pages] == [True, False]


#: Calls commands for a run, and writes the paths that are opened or listed meanwhile.
OPENED = """
import contextlib, json, os, sys

def hear(event, given):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(given[0], str):
        opened.add(os.path.abspath(given[0]))

run, written, repository = sys.argv[1:]
sys.path.append(repository)
from tests.entrypoints.cli.pages import all_pages
from torchx_kfp.entrypoints.cli import cli
opened = set()
sys.addaudithook(hear)
for command in ("report", "show", "logs", "watch", "runs"):
    with contextlib.suppress(SystemExit):
        cli([command, *(["--output-dir", os.path.dirname(run)] if command == "runs" else [run])])
assert len(list(all_pages(os.path.dirname(run), "."))) == 2
with open(written, "w") as file:
    json.dump(sorted(opened - {written}), file)
"""


def test_nothing_elsewhere_is_read(good: Path, tmp_path: Path) -> None:
    """All paths in the records of the run exist elsewhere, with what belongs to a run."""
    folder, private = (shutil.copytree(good, tmp_path / place / good.name) for place in ("theirs", "private"))
    (private / "notes.md").write_text(SECRET)
    notes = {"name": "n", "type": "system.Markdown", "version": "", "uri": str(private / "notes.md"), "metadata": {}}
    request = json.loads((folder / "run.json").read_text())
    request["options"] |= dict.fromkeys(("directory", "kfp_workspace", "python_path", "project"), str(private))
    (folder / "run.json").write_text(json.dumps(request))
    events = (folder / "events.jsonl").read_text()
    assert f'"log_file": "{good}/' in events
    events = events.replace(str(good), str(private))
    (folder / "events.jsonl").write_text(
        events.replace('"artifacts": {}', f'"artifacts": {{"notes": {json.dumps(notes)}}}')
    )
    (tmp_path / "here").mkdir()
    words = [sys.executable, "-c", OPENED, str(folder), str(tmp_path / "opened"), str(Path(__file__).parents[3])]
    done = subprocess.run(words, cwd=tmp_path / "here", capture_output=True, text=True, timeout=120, check=True)
    opened = {Path(path) for path in json.loads((tmp_path / "opened").read_text())}
    assert folder / "report.html" in opened, done.stderr
    python = map(Path, filter(None, (*sys.path, sys.prefix, sys.base_prefix)))
    fine = (folder.parent, tmp_path / "here", *python, *map(Path, ("/dev", "/proc", "/usr/share/zoneinfo")))
    inside = {path for path in opened if any(path.is_relative_to(each) for each in fine)}
    assert opened - inside == {path for path in opened if path.is_relative_to(private)} == set()


@pytest.mark.timeout(60 * SEEDS)
def test_no_folder_harms_a_command(good: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "results"
    (base / "mine-1" / "train").mkdir(parents=True)
    (base / "mine-1" / "train" / "train_1").write_text('{"loss": 1}')
    for seed in range(SEEDS):
        name = f"bad-{seed}"
        folder = tmp_path / "local_outputs" / name
        print(name, make_hostile(good, folder, secret, Random(seed)))  # pytest shows it if a command fails
        invoke("logs", name)
        invoke("watch", name, "--json")
        invoke("report", name, "-o", "page.html")
        assert not Path("page.html").exists() or SECRET not in Path("page.html").read_text()
        invoke("cancel", name)
        invoke("show", "--tracker-base", str(base), f"{name}/train")
        invoke("show", "--lineage", "--tracker-base", str(base), f"{name}/train")
        invoke("get", f"{name}/train/model")
        invoke("check", f"{folder}/pipeline.yaml")
        assert secret.read_text() == SECRET
    assert "bad-" in invoke("runs")
    invoke("runs", "--json")
    invoke("results", "--tracker-base", str(base))
    invoke("compare", "--tracker-base", str(base), "bad-1", "bad-2")
    assert all(SECRET not in page for page in all_pages("local_outputs", str(base)))


@dsl.container_component
def save(data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'mkdir -p "${0%/*}"; echo 1 >"$0"', data.path])


@dsl.container_component
def load(text: str, data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'wc -c "$0" "$1"', text, data.path])


@dsl.pipeline(name="again")
def again(text: str = "text"):
    load(text=text, data=save().outputs["data"])


def test_a_folder_whose_name_and_options_are_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))  # which is not UTF-8
    shutil.copytree(run_of(again, tmp_path), folder)
    request = json.loads((folder / "run.json").read_text())
    for docker in (1.5, None, ["no-such-stage"]):
        request["options"]["docker"] = docker
        (folder / "run.json").write_text(json.dumps(request))
        assert "not in the image busybox" in invoke("replay", f"{folder}/load")
    monkeypatch.chdir(folder)
    invoke("replay", "./load")
    assert "replays" in os.listdir(tmp_path), "it is next to the run, not in it"
    invoke("report", str(folder), "-o", str(tmp_path / "page.html"))
    assert "%FF/load_1/log.txt" in (tmp_path / "page.html").read_text()


def test_deep_results_are_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "base/p-1/train").mkdir(parents=True)
    (tmp_path / "base/p-1/train/train_1").write_text('{"a":' * 900 + "1" + "}" * 900)
    assert "too deep" in invoke("results", "--tracker-base", str(tmp_path / "base"), "--json")
    invoke("results", "--tracker-base", str(tmp_path / "base"))
