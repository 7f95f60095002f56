"""Results of runs on KFP are read where that is possible; otherwise one sentence says why not."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.execution.host.calling import wait_until
from tests.facts import says
from torchx_kfp.execution.host import results
from torchx_kfp.execution.host.results import ResultReader
from torchx_kfp.execution.runs.record import why_not_read
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker

KEY = "f19b6e98-51e7-4b62-ae0c-601f7270d2b4/train/pod-1"


def test_results_are_read(tmp_path: Path) -> None:
    FsspecResultTracker(tmp_path).put(KEY, loss=0.5)
    for base in (str(tmp_path), f"file://{tmp_path}"):
        reader = ResultReader([str(tmp_path)])
        assert reader.read(base, [KEY, "run/other/pod"]) == {
            KEY: (KEY, {"loss": 0.5}),
            "run/other/pod": ("run/other/pod", {}),
        }
        assert reader.problems == ()


def test_a_file_that_is_damaged_does_not_hide_others(tmp_path: Path) -> None:
    FsspecResultTracker(tmp_path).put(KEY, loss=0.5)
    (tmp_path / "broken" / "x").mkdir(parents=True)
    (tmp_path / "broken" / "x" / "y").write_text("{")
    reader = ResultReader([f"file://{tmp_path}/"])
    assert reader.read(str(tmp_path), ["broken/x/y", KEY]) == {KEY: (KEY, {"loss": 0.5})}
    [problem] = reader.problems
    assert str(tmp_path / "broken" / "x" / "y") in problem


def test_the_attempt_of_a_pod_is_found(tmp_path: Path) -> None:
    """The host names the pod; the run id has the beginning of its UID as well, and the attempt in it."""
    tracker = FsspecResultTracker(tmp_path)
    for place, execution in enumerate(("_0b5a1f3c", "_0b5a1f3c_2", "_99999999")):
        tracker.put(f"{KEY}{execution}", attempt=place)
        os.utime(tmp_path / f"{KEY}{execution}", (1000 + place, 1000 + place))
    tracker.put(f"{KEY}0_0b5a1f3c", of="another pod")
    reader = ResultReader([str(tmp_path)])
    assert reader.read(str(tmp_path), [KEY]) == {KEY: (f"{KEY}_99999999", {"attempt": 2})}
    (tmp_path / f"{KEY}_99999999").unlink()
    assert reader.read(str(tmp_path), [KEY]) == {KEY: (f"{KEY}_0b5a1f3c_2", {"attempt": 1})}
    # An attempt that has recorded no results hides those before it.
    RecordTracker(str(tmp_path), patience=SHORT_PATIENCE).add(f"{KEY}_0b5a1f3c_3", {"metadata": {"a": "b"}})
    assert reader.read(str(tmp_path), [KEY]) == {KEY: (f"{KEY}_0b5a1f3c_3", {})}


def test_of_earlier_executions_the_last_one_counts_that_has_recorded_something(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(tmp_path)
    names = [KEY.replace("pod-1", f"pod-{number}") for number in range(4)]
    for number in (0, 1):
        tracker.put(names[number], attempt=number)
    reader = ResultReader([str(tmp_path)])
    read = reader.read(str(tmp_path), [names[3]], {names[3]: names[:3]})
    assert read == {names[3]: (names[1], {"attempt": 1})}
    tracker.put(names[3], attempt=3)
    assert reader.read(str(tmp_path), [names[3]], {names[3]: names[:3]}) == {names[3]: (names[3], {"attempt": 3})}


@pytest.mark.parametrize(
    ("base", "facts"),
    [
        ("/nowhere/results", ("no such directory", "s3://")),
        ("file:///nowhere/results", ("no such directory",)),
        ("results", ("relative",)),
        ("memory://x", ("memory",)),
        ("nothing://x", ("nothing",)),
    ],
)
def test_a_base_that_is_not_here(base: str, facts: tuple[str, ...]) -> None:
    reader = ResultReader([base])
    assert reader.read(base, [KEY]) == {}
    [problem] = reader.problems
    for fact in (repr(base), *facts):
        assert fact in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "base",
    [
        "{folder}",
        "file://{folder}",
        "local://{folder}",
        "{folder}/../{name}",
        "silent://x",
        "http://127.0.0.1:1/x",
        "s3://bucket::silent://x",
        "simplecache::file:///",
        "s3://silent:1@host/x",
        "abfs://container@evil.example.com/x",
        "abfs://container@account.dfs.core.windows.net.example.com/x",
        "s3a://buc ket/x",
    ],
)
def test_a_base_that_only_the_run_names_is_not_read(tmp_path: Path, silent: str, base: str) -> None:
    FsspecResultTracker(tmp_path).put(KEY, secret=1)
    base = base.format(folder=tmp_path, name=tmp_path.name)
    reader = ResultReader(["", "/", str(tmp_path.parent), f"{tmp_path}x", "s3://bucket"])
    assert reader.read(base, [KEY]) == {}
    [problem] = reader.problems
    assert re.search(says(base, "only the run names it", "TORCHX_KFP_TRACKER_BASE", "s3://bucket/results"), problem)
    assert Silent.asked == 0


STORES = ["s3://b/x", "s3a://b.c-d/x", "gs://b", "gcs://b/x/y", "az://c/x", "abfs://c@account.dfs.core.windows.net/x"]
DIRECTORIES = ["results", "/results", "file:///results", "local:///results", "memory://results"]
SERVERS = ["http://127.0.0.1:1/x", "FTP://host/x"]
#: fsspec may find the name of any server in a file.
CHAINS = [
    "simplecache::http://host/x",
    "s3://b::http://host",
    "file://a::http://b",
    "memory://a::http://b",
    "reference::/x",
]


@pytest.mark.parametrize("base", [*STORES, *DIRECTORIES, *SERVERS, *CHAINS])
def test_who_names_a_base_decides_whether_it_is_read(base: str) -> None:
    assert why_not_read(base, [base], ran_locally=True) == ""
    assert (why_not_read(base, ()) == "") is (base in STORES)
    refused = why_not_read(base, (), ran_locally=True)
    assert (refused == "") is (base in STORES + DIRECTORIES)
    assert not refused or re.search(says("only the run names it", "TORCHX_KFP_TRACKER_BASE"), refused)


class Silent(MemoryFileSystem):
    protocol = "silent"
    asked = 0
    released = threading.Event()

    def _open(self, *arguments: object, **options: object) -> object:
        Silent.asked += 1
        self.released.wait(120)
        raise RuntimeError("over")

    cat_file = _open


@pytest.fixture
def silent() -> object:
    fsspec.register_implementation("silent", Silent, clobber=True)
    Silent.asked = 0
    Silent.released.clear()
    yield "silent://results"
    Silent.released.set()


def test_a_store_that_hangs_costs_one_deadline(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "DEADLINE", 0.1)
    reader = ResultReader([silent])
    begun = time.monotonic()
    for _ in range(5):
        assert reader.read(silent, [KEY]) == {}
    assert time.monotonic() - begun < 30
    wait_until(lambda: Silent.asked)  # a thread asks, when the machine lets it
    assert Silent.asked == 1
    [problem] = reader.problems
    assert "0.1 s" in problem
    monkeypatch.setattr(results, "AGAIN", 0.0)
    reader.read(silent, [KEY])
    wait_until(lambda: Silent.asked == 2)


def test_a_base_that_can_be_read_later_has_no_problem_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "results"
    reader = ResultReader([str(base)])
    assert reader.read(str(base), [KEY]) == {}
    assert reader.problems
    FsspecResultTracker(base).put(KEY, loss=0.5)
    monkeypatch.setattr(results, "AGAIN", 0.0)
    assert reader.read(str(base), [KEY]) == {KEY: (KEY, {"loss": 0.5})}
    assert reader.problems == ()


def test_nothing_is_asked_for_no_runs() -> None:
    reader = ResultReader()
    assert reader.read("/nowhere", []) == {}
    assert reader.problems == ()
