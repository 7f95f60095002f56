"""Finished stages that later runs find by their keys."""

import dataclasses
import json
import math
import os
import shutil
import stat
import subprocess
import sys

import pytest

from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.pipeline.spec import ArtifactType
from torchx_kfp.execution.pipeline.used_files import Code
from torchx_kfp.execution.runs.stage_key import StageKey
from torchx_kfp.local import Artifact, StageResult, State
from torchx_kfp.tracking import FsspecResultTracker

KEY = StageKey({"image": "a"}, Code({"train.py": "1"}))
DIGEST = KEY.digest
MODEL = ArtifactType("system.Model", "0.0.1")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "runs" / ".cache", "run-2")


@pytest.fixture
def earlier(cache):
    """The cache as an earlier run sees it."""
    return Cache(cache.folder, "run-1")


@pytest.fixture
def stage(tmp_path):
    """A stage with a log, and artifacts: a file, a folder, one elsewhere, and one without a file."""
    here = tmp_path / "run" / "train-0"
    (here / "folder").mkdir(parents=True)
    (here / "log.txt").write_text("trained")
    (here / "model").write_text("weights")
    return StageResult(
        "train[2]",
        "train",
        State.SUCCEEDED,
        exit_code=0,
        log_file=here / "log.txt",
        inputs={"lr": 0.1},
        outputs={"n": 1, "items": ["a", {"b": None}]},
        artifacts={
            "model": Artifact("model", MODEL, str(here / "model"), {"epochs": 3}),
            "all": [Artifact("all", MODEL, str(here / "folder")), Artifact("all", MODEL, "s3://bucket/model")],
            "metrics": Artifact("metrics", ArtifactType("system.Metrics"), str(here / "metrics")),
        },
        execution_id="run/train/train_1",
        results={"loss": math.inf},
    )


def test_only_its_owner_reads_it(cache, earlier, stage):
    """Entries have results, inputs and paths."""
    earlier.put(KEY, stage)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (cache.folder, cache.folder / DIGEST[:2])} == {0o700}
    assert stat.S_IMODE((cache.folder / DIGEST[:2] / f"{DIGEST}.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("script", ["rm log.txt", "rm model", "rm -r folder", "echo >> model", "touch folder/new"])
def test_a_stage_whose_files_are_gone_or_were_changed_is_none(cache, earlier, stage, script):
    earlier.put(KEY, stage)
    subprocess.run(["sh", "-ec", script], cwd=stage.log_file.parent, check=True)
    assert cache.get(KEY) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("succeeded", "lost"),
        lambda text: text.replace("stage_finished", "stage_paused"),
        lambda text: json.dumps([text]),
        lambda text: "[" * 100_000,
        lambda text: "\0" * len(text),
    ],
)
def test_an_entry_that_cannot_be_read_is_none(cache, earlier, stage, change):
    earlier.put(KEY, stage)
    (path,) = cache.folder.rglob(f"{DIGEST}.json")
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    assert cache.get(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert cache.get(KEY) is None
    Cache(cache.folder, "run-3").put(KEY, stage)
    assert repr(cache.get(KEY)) == repr(stage).replace("cached_from=''", "cached_from='run-3'")


def test_a_stage_whose_results_are_gone_or_cannot_be_looked_for_is_none(cache, earlier, stage, tmp_path):
    base = tmp_path / "base"

    def found():
        return Cache(cache.folder, "run-2", directory=str(tmp_path)).get(KEY)

    recorded = dataclasses.replace(stage, tracker_base="base", results={"loss": 0.5})
    earlier.put(KEY, recorded)
    assert found() is None
    FsspecResultTracker(base)["run/train/other"] = {"loss": 0.5}
    assert found() is None, "another stage of that run has some"
    FsspecResultTracker(base)[stage.execution_id] = {"loss": 0.5}
    assert found().cached_from == "run-1"
    earlier.put(KEY, dataclasses.replace(recorded, tracker_base="no-such-store://x"))
    assert found() is None, "a store that does not answer counts as empty"
    earlier.put(KEY, dataclasses.replace(recorded, results={}))
    assert found().cached_from == "run-1", "it has recorded nothing"


def test_a_folder_that_takes_no_files(tmp_path, stage):
    (tmp_path / "file").write_text("")
    Cache(tmp_path / "file", "run-1").put(KEY, stage)
    assert Cache(tmp_path / "file", "run-2").get(KEY) is None


def test_files_that_go_while_they_are_looked_at(cache, earlier, stage, monkeypatch):
    """A stage that has succeeded does not fail for it: another process writes in a folder that it has registered."""
    monkeypatch.setattr(os.path, "exists", lambda path: True)  # it was there a moment ago
    shutil.rmtree(stage.log_file.parent / "folder")
    earlier.put(KEY, stage)
    assert cache.get(KEY) is None


def test_several_writers_and_a_reader_at_once(cache, earlier, stage):
    """A reader always sees a complete entry of one of them."""
    Cache(cache.folder, "run-0").put(KEY, stage)
    code = (
        "import sys\nfrom torchx_kfp.execution.local.cache import Cache\n"
        "from tests.execution.local.test_cache import KEY as key\n"
        "cache = Cache(sys.argv[1], sys.argv[2] * 10_000)\nstage = cache.get(key)\n"
        "for _ in range(200): cache.put(key, stage)"
    )
    words = [sys.executable, "-c", code, str(cache.folder)]
    writers = [subprocess.Popen([*words, name]) for name in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(cache.get(KEY).cached_from)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"run-0", "a" * 10_000, "b" * 10_000}
    assert len(seen) > 1
    files = [path.relative_to(cache.folder).parts for path in cache.folder.rglob("*") if path.is_file()]
    assert sorted(parts[0] for parts in files) == sorted([DIGEST[:2], "code", "last"])


def test_how_a_stage_was_run_last(cache, earlier, stage):
    assert earlier.last("train[2]") is None
    earlier.put(KEY, dataclasses.replace(stage, state=State.FAILED))
    assert earlier.get(KEY) is None
    last = cache.last("train[2]")
    assert (last.run_id, last.state, last.parts, last.files) == (
        "run-1",
        State.FAILED,
        {"image": "a"},
        {"train.py": "1"},
    )
    assert Cache(cache.folder, "run-2", "another pipeline").last("train[2]") is None
    for path in cache.folder.rglob("*.json"):
        path.write_text("{")
    assert cache.last("train[2]") is None
