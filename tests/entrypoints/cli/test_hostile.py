"""Folders of runs that are damaged, or come from somebody else: no command hangs, crashes, or shows other files."""

import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from kfp import compiler, dsl

from tests.execution.local.components import shell, write
from tests.hostile import REPLACEMENTS, SECRET, make_hostile
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.execution.runs.events import encode
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, State, Watch, run

#: The number of damaged folders: more of them find more errors.
SEEDS = int(os.environ.get("TORCHX_KFP_SEEDS", "10"))


@dsl.pipeline(name="mine")
def pipeline(x: str = "v", items: list = ["a"], rates: dict = {"lr": 0.1}):  # noqa: B006 - KFP's way
    with dsl.ParallelFor(["a", "b"]) as item:
        write(x=item)
    shell(script="echo out; exit 1").set_retry(1, backoff_duration="0s")
    write(x=x)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that has failed, so that it can be resumed."""
    folder = tmp_path_factory.mktemp("good")
    compiler.Compiler().compile(pipeline, str(folder / "p.yaml"))
    result = run(folder / "p.yaml", output_dir=folder / "runs", watch=Watch())
    assert result.folder is not None
    return result.folder


def invoke(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{words}: {done.exception!r}") from done.exception
    assert SECRET not in done.output, words
    return done.output


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


@pytest.mark.parametrize("cached_from", ["", "private", "..", "../private", "gone"])
def test_events_cannot_name_other_files(cached_from: str, secret: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    logs = [secret, secret.parent / ".." / "private" / "log.txt", folder / "a-0" / ".." / ".." / "private" / "log.txt"]
    stages = [
        StageResult(f"s{number}", "s", State.FAILED, attempts=1, pod_name="s-0", log_file=log, cached_from=cached_from)
        for number, log in enumerate(logs)
    ]
    events = [RunStarted("p", "mine", Path("/")), *map(StageFinished, stages), RunFinished("mine", State.FAILED, 1.0)]
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(encode(event))}\n" for event in events))
    (folder / "private").symlink_to(secret.parent)
    invoke("logs", str(folder))
    invoke("watch", str(folder))
    invoke("report", str(folder))
    assert SECRET not in (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(secret)
    assert "is a symbolic link" in invoke("report", str(folder))
    assert secret.read_text() == SECRET


@pytest.mark.timeout(120)
def test_no_folder_harms_a_command(good: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "results"
    (base / "mine-1" / "train").mkdir(parents=True)
    (base / "mine-1" / "train" / "train-0").write_text('{"loss": 1}')
    for seed in range(SEEDS):
        name = f"bad-{seed}"
        folder = tmp_path / "local_outputs" / name
        print(name, make_hostile(good, folder, secret, Random(seed)))  # pytest shows it if a command fails
        invoke("logs", name)
        invoke("watch", name, "--json")
        invoke("report", name, "-o", "page.html")
        assert not Path("page.html").exists() or SECRET not in Path("page.html").read_text()
        invoke("cancel", name)
        invoke("show", str(base), f"{name}/train")
        invoke("lineage", str(base), f"{name}/train")
        if seed % 4 == 0:
            invoke("run", "--resume", name, "--quiet")
        assert secret.read_text() == SECRET
    assert "bad-" in invoke("runs")
    invoke("runs", "--format", "json")
    invoke("results", str(base))
    invoke("compare", str(base), "bad-1", "bad-2")
    invoke("gc", str(base), "--older-than", "1d", "--dry-run")
