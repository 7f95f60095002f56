"""The tracker base as programs that run or show stages need it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.facts import says
from torchx_kfp.common.git import GitState
from torchx_kfp.errors import CorruptResultError, TrackerError
from torchx_kfp.tracking import store
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, Code, Record, RecordTracker, absolute_base, is_run_id


def test_a_relative_base_belongs_to_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert absolute_base("results", tmp_path) == f"{tmp_path}/results"
    assert absolute_base(f"{tmp_path}/results", "/elsewhere") == f"{tmp_path}/results"
    assert absolute_base("memory://results", tmp_path) == "memory://results"
    monkeypatch.chdir(tmp_path)
    assert RecordTracker("results", patience=0).folder == f"{tmp_path}/results"
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    (tmp_path / "deep" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "real")
    # Those of stages:
    assert absolute_base("~/results", tmp_path) == f"{tmp_path}/home/results"
    assert absolute_base("../results", tmp_path / "link") == f"{tmp_path}/deep/results"


def test_a_check_leaves_nothing_behind(base: str, tmp_path: Path) -> None:
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    tracker.verify_writable()
    assert tracker.store.list_files() == []
    (tmp_path / "file").touch()
    with pytest.raises(TrackerError, match="not a directory"):
        RecordTracker(str(tmp_path / "file"), patience=SHORT_PATIENCE).verify_writable()


def test_all_that_is_recorded_has_a_time(base: str) -> None:
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    tracker["one/train/1"] = {"x": 1}
    tracker.add("two/train/1", {"metadata": {"x": 1}})
    assert (tracker.keys(), tracker.run_ids()) == (["one/train/1"], ["two/train/1"])
    times = tracker.written()
    assert times.keys() == {"one/train/1", "two/train/1"}
    assert [tracker.written(run) for run in ("one", "two")] == [{key: times[key]} for key in sorted(times)]
    assert tracker.last_written() == {"one": times["one/train/1"], "two": times["two/train/1"]}


def test_giants_are_not_read(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's base may have files of gigabytes in place of records."""
    tracker, giant = RecordTracker(base, patience=SHORT_PATIENCE), b"{}" + b" " * 2000
    tracker["one/train/1"] = {"x": 1}
    tracker.store.write("two/train/1", giant)
    tracker.store.write(".torchx_kfp/runs/two/train/1/1.metadata", giant)
    monkeypatch.setattr(store, "LARGEST_RECORD", 1000)
    results, records = tracker.get_many(tracker.keys()), tracker.records(["two/train/1"])
    assert (results, records) == ({"one/train/1": {"x": 1}}, {})
    assert ["larger than" in str(error) for error in results.problems + records.problems] == [True, True]


def test_records_of_whole_runs(base: str, caplog: pytest.LogCaptureFixture) -> None:
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    tracker["one/train/1"] = {"x": 1}
    code = (Code("a" * 64, 10, 2, GitState("c" * 40, "main", changed=True)), Code("b" * 64))
    tracker.add_start("one", code[:1], "p", {})
    tracker.add_start("one", [Code("a" * 64), code[1]], "p", {})
    tracker.add_start("two", code[1:], "p", {})
    tracker.add("one/train/1", {"metadata": {"x": 1}})
    one = Record(code=code)
    stage, two = Record(metadata={"x": 1}), Record(code=code[1:])
    assert tracker.records() == {"one": one, "one/train/1": stage, "two": two}
    assert tracker.records(["one", "three"]) == {"one": one, "one/train/1": stage}
    assert tracker.records(["one/train/1"]) == {"one/train/1": stage}
    assert tracker.records(["one"], "code") == {"one": Record(code=code)}
    assert tracker.records([f"run-{number}" for number in range(100)] + ["two"])["two"] == two
    assert (tracker.run_ids(), sorted(tracker.last_written())) == (["one/train/1"], ["one", "two"])
    assert caplog.text == ""
    # What cannot be understood is left out, and named once.
    tracker.add("one", {"code": [{"size": 1}], "metadata": {"lost": "x"}})
    for _ in range(2):
        records = tracker.records(["one"])
        assert records == {"one": one, "one/train/1": stage}
        [problem] = records.problems
    assert isinstance(problem, CorruptResultError)
    assert caplog.messages == [f"Left out: {problem}"]
    assert re.search(says("runs/one/", "code and metadata", "Remove it"), str(problem))


def test_files_of_others_among_the_entries_are_left_out(base: str) -> None:
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    tracker.add("one/train/1", {"metadata": {"x": 1}})
    for name in ("1.metadata", "one/train/1/notes", "one/train/1/1.unknown"):
        tracker.store.write(f".torchx_kfp/runs/{name}", b"x")
    records = tracker.records()
    assert records == {"one/train/1": Record(metadata={"x": 1})}
    assert (records.problems, tracker.run_ids()) == ([], ["one/train/1"])


@pytest.mark.parametrize("text", ["", "a/b", "b/train/1", "a/train/1/2", "a/../1", "a/.torchx_kfp/1", "a//1"])
def test_a_host_may_call_anything_a_run_id(text: str) -> None:
    assert is_run_id("a/train/1", "a")
    assert not is_run_id(text, "a")


@pytest.mark.parametrize(
    "submitted",
    [
        {"pipeline": "p", "stages": {"train": {}}, "code": {}},
        {"pipeline": "p", "stages": {"train": {"parts": 1, "code": "x"}}, "code": {"x": {}}},
        {"pipeline": "p", "stages": {"train": {"parts": {}, "code": []}}, "code": {}},
        {"pipeline": "p", "stages": [], "code": {}},
        {"stages": {}},
    ],
)
def test_a_submission_that_something_else_wrote_is_left_out(submitted: object, tmp_path: Path) -> None:
    tracker = RecordTracker(tmp_path, patience=0)
    stages = {"train": ({"image": "a"}, {"train.py": "1"}), "eval": ({}, {"train.py": "1"})}
    tracker.add_start("run-1", [], "p", stages)
    tracker.add("run-2", {"submitted": submitted})
    tracker.add_start("run-4", [], "another", stages)
    assert tracker.submitted("p") == {"run-1": stages}
