"""The tracker base as programs that run or show stages need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx_kfp.common.git import GitState
from torchx_kfp.errors import CorruptResultError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker, store
from torchx_kfp.tracking.recorder import Code, Recorder, is_run_id
from torchx_kfp.tracking.statements import METADATA, add_metadata


def test_a_relative_base_belongs_to_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FsspecResultTracker(tmp_path / "results")["a/b/c"] = {"x": 1}
    assert Recorder.open("results", tmp_path).keys() == ["a/b/c"]
    assert Recorder.open(str(tmp_path / "results"), "/elsewhere").keys() == ["a/b/c"]
    assert Recorder.open("memory://results", tmp_path).folder is None
    monkeypatch.chdir(tmp_path)
    assert Recorder.open("results").folder == str(tmp_path / "results")


def test_a_check_leaves_nothing_behind(base: str, tmp_path: Path) -> None:
    recorder = Recorder.open(base)
    recorder.verify_writable()
    assert recorder.store.files() == []
    (tmp_path / "file").touch()
    with pytest.raises(TrackerError, match="not a directory"):
        Recorder.open(str(tmp_path / "file")).verify_writable()


def test_all_that_is_recorded_has_a_time(base: str) -> None:
    recorder = Recorder.open(base)
    recorder["one/train/1"] = {"x": 1}
    add_metadata(recorder.store, "two/train/1", {"x": 1})
    assert (recorder.keys(), recorder.run_ids()) == (["one/train/1"], ["two/train/1"])
    assert recorder.written("one").keys() == {"one/train/1"}
    assert recorder.written("two") == {}
    times = recorder.last_written()
    assert times == {"one": recorder.written("one")["one/train/1"], "two": times["two"]}


def test_giants_are_not_read(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's base may have files of gigabytes in place of records."""
    recorder, giant, wrong = Recorder.open(base), b"{}" + b" " * 2000, list[CorruptResultError]()
    recorder["one/train/1"] = {"x": 1}
    recorder.store.write("two/train/1", giant)
    recorder.store.write(".torchx_kfp/metadata/two%2Ftrain%2F1/1", giant)
    monkeypatch.setattr(store, "LARGEST_RECORD", 1000)
    assert recorder.get_many(recorder.keys(), corrupt=wrong.append) == {"one/train/1": {"x": 1}}
    assert METADATA.read_many(recorder.store, ["two/train/1"], wrong.append) == {}
    assert all("larger than" in str(error) for error in wrong)
    assert len(wrong) == 2
    with pytest.raises(CorruptResultError, match="larger than"):
        recorder.metadata("two/train/1")
    recorder.store.fetch("two/train/1", 5, str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == giant[:5]


def test_facts_of_whole_runs(base: str) -> None:
    recorder = Recorder.open(base)
    recorder["one/train/1"] = {"x": 1}
    before = recorder.last_written()
    code = [Code("a" * 64, 10, 2, GitState("c" * 40, "main", None, changed=True)), Code("b" * 64)]
    recorder.add_start("one", code[:1], {})
    recorder.add_start("one", [Code("a" * 64), code[1]], {})
    recorder.add_facts("one", continues="none", note="first")
    recorder.add_facts("one", continues=None, note="größe")
    recorder.add_facts("two", note="not started")
    assert recorder.facts_of() == {"one": {"code": code, "note": "größe"}, "two": {"note": "not started"}}
    assert recorder.facts_of(["one", "three"]) == {"one": {"code": code, "note": "größe"}}
    # Facts are not records of stages.
    assert (recorder.keys(), recorder.run_ids(), recorder.last_written()) == (["one/train/1"], [], before)
    recorder.add_facts("three", code=[{"size": 1}])
    with pytest.raises(CorruptResultError, match="three"):
        recorder.facts_of()
    assert recorder.facts_of(corrupt=lambda error: None).keys() == {"one", "two"}


@pytest.mark.parametrize("text", ["", "a/b", "b/train/1", "a/train/1/2", "a/../1", "a/.torchx_kfp/1", "a//1"])
def test_a_host_may_call_anything_a_run_id(text: str) -> None:
    assert is_run_id("a/train/1", "a")
    assert not is_run_id(text, "a")
