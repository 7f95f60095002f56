"""Finished stages that later runs find by their keys."""

import hashlib
import json
import math
import os
import shutil
import stat
import subprocess
import sys

import pytest

from tests.facts import says
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.pipeline.spec import ArtifactType
from torchx_kfp.local import Artifact, StageResult, State

KEY = hashlib.sha256(b"a stage").hexdigest()
MODEL = ArtifactType("system.Model", "0.0.1")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "runs" / ".cache")


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
        outputs={"n": 1, "items": ["a", {"b": None}]},
        artifacts={
            "model": Artifact("model", MODEL, str(here / "model"), {"epochs": 3}),
            "all": [Artifact("all", MODEL, str(here / "folder")), Artifact("all", MODEL, "s3://bucket/model")],
            "metrics": Artifact("metrics", ArtifactType("system.Metrics"), str(here / "metrics")),
        },
        run_id="run/train/train_1",
        results={"loss": math.inf},
    )


def test_what_is_put_is_found(cache, stage):
    assert cache.get(KEY) is None
    cache.put(KEY, "run-1", stage)
    found = cache.get(KEY)
    assert repr(found) == repr(stage).replace("cached_from=''", "cached_from='run-1'")
    assert Cache(cache.folder).get(KEY) == found
    assert cache.get(KEY[::-1]) is None


def test_only_its_owner_reads_it(cache, stage):
    """Entries have results, inputs and paths."""
    cache.put(KEY, "run-1", stage)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (cache.folder, cache.folder / KEY[:2])} == {0o700}
    assert stat.S_IMODE((cache.folder / KEY[:2] / f"{KEY}.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("script", ["rm log.txt", "rm model", "rm -r folder", "echo >> model", "touch folder/new"])
def test_a_stage_whose_files_are_gone_or_were_changed_is_none(cache, stage, script):
    cache.put(KEY, "run-1", stage)
    subprocess.run(["sh", "-ec", script], cwd=stage.log_file.parent, check=True)
    assert cache.get(KEY) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"version": 3, "key"', '"version": 1, "key"'),
        lambda text: text.replace("succeeded", "lost"),
        lambda text: text.replace("stage_finished", "stage_paused"),
        lambda text: text.replace(KEY, "0" * 64),
        lambda text: json.dumps([text]),
        lambda text: "[" * 100_000,
        lambda text: "\0" * len(text),
    ],
)
def test_an_entry_that_cannot_be_read_is_none(cache, stage, change):
    cache.put(KEY, "run-1", stage)
    (path,) = cache.folder.rglob("*.json")
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    assert cache.get(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert cache.get(KEY) is None
    cache.put(KEY, "run-2", stage)
    assert cache.get(KEY).cached_from == "run-2"


def test_a_folder_that_takes_no_files(tmp_path, stage):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put(KEY, "run-1", stage)
    assert cache.get(KEY) is None


def test_files_that_go_while_they_are_looked_at(cache, stage, monkeypatch):
    """A stage that has succeeded does not fail for it: another process writes in a folder that it has registered."""
    monkeypatch.setattr(os.path, "exists", lambda path: True)  # it was there a moment ago
    shutil.rmtree(stage.log_file.parent / "folder")
    cache.put(KEY, "run-1", stage)
    assert cache.get(KEY) is None


def test_several_writers_and_a_reader_at_once(cache, stage):
    """A reader always sees a complete entry of one of them."""
    cache.put(KEY, "run-0", stage)
    code = (
        "import sys\nfrom torchx_kfp.execution.local.cache import Cache\n"
        "cache, key, run = Cache(sys.argv[1]), sys.argv[2], sys.argv[3] * 10_000\nstage = cache.get(key)\n"
        "for _ in range(200): cache.put(key, run, stage)"
    )
    words = [sys.executable, "-c", code, str(cache.folder), KEY]
    writers = [subprocess.Popen([*words, name]) for name in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        seen.add(cache.get(KEY).cached_from)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"run-0", "a" * 10_000, "b" * 10_000}
    assert len(seen) > 1
    assert [path.name for path in cache.folder.rglob("*") if path.is_file()] == [f"{KEY}.json"]


@pytest.mark.parametrize("key", ["", "short", "../../../etc/passwd", KEY.upper(), f"{KEY}\n", "g" * 64])
def test_keys_are_hexadecimal(cache, stage, key):
    with pytest.raises(ValueError, match=says("key", "8 to 128 hexadecimal digits")):
        cache.get(key)
    with pytest.raises(ValueError, match="key"):
        cache.put(key, "run-1", stage)
