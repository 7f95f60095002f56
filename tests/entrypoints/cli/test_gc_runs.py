"""``torchx-kfp gc --output-dir``: folders of runs on this machine."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call

DAY = 86400
PIPELINE = """\
from kfp import dsl

@dsl.container_component
def write(text: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="i", command=["sh", "-c", 'printf "$0" > "$1"; echo "$0"', text, out])

@dsl.pipeline(name="one")
def one(text: str = "a", times: int = 1):
    write(text=text)
    write(text="always").set_caching_options(False)
"""


@pytest.fixture
def runs(project: Path, call: Call) -> list[Path]:
    """Four runs, the newest first, 1 to 4 days old. The newest has a stage of the oldest from the cache."""
    (project / "one.py").write_text(PIPELINE)
    for text in ("a", "b", "c", "a"):
        done = call("run", "one.py", "-p", f"text={text}")
        assert done.returncode == 0, done.stderr
    folders = sorted((each for each in (project / "local_outputs").glob("one-*")), key=lambda it: it.stat().st_mtime_ns)
    for days, folder in enumerate(reversed(folders), start=1):
        for path in (folder / "events.jsonl", folder):
            os.utime(path, (time.time() - days * DAY,) * 2)
    return folders[::-1]


def names(project: Path) -> set[str]:
    return {each.name for each in (project / "local_outputs").iterdir()}


def test_old_runs_are_removed_but_for_those_in_use(project: Path, call: Call, runs: list[Path]) -> None:
    newest, second, third, oldest = (each.name for each in runs)
    shown = call("gc", "--yes", "--output-dir", "local_outputs", "--older-than", "36h", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert f"kept: used by {newest}" in next(line for line in shown.stdout.splitlines() if oldest in line)
    assert "Would remove 2 runs" in shown.stdout
    assert names(project) >= {newest, second, third, oldest}
    entries = list((project / "local_outputs/.cache").glob("*/*.json"))

    done = call("gc", "--yes", "--output-dir", "local_outputs", "--older-than", "36h")
    assert "Removed 2 runs" in done.stdout
    assert names(project) == {".cache", newest, oldest}
    left = list((project / "local_outputs/.cache").glob("*/*.json"))
    assert len(entries) == 3
    assert len(left) == 1
    again = call("run", "one.py")
    assert "cached" in again.stdout


def test_replays_and_resumed_runs(project: Path, call: Call, runs: list[Path]) -> None:
    replayed = call("replay", f"{runs[2].name}/write")
    assert replayed.returncode == 0, replayed.stderr
    resumed = call("run", "one.py", "--resume", runs[1].name, "--from", "write-2")
    assert resumed.returncode == 0, resumed.stderr
    done = call("gc", "--yes", "--output-dir", "local_outputs", "--keep", "1")
    assert f"{runs[1].name}" in names(project)
    assert done.stdout.count("kept: used by") == 1
    assert len(list((project / "local_outputs/replays").iterdir())) == 1
    call("gc", "--yes", "--output-dir", "local_outputs", "--keep", "0")
    assert not list((project / "local_outputs/replays").iterdir())


def test_a_number_is_kept(project: Path, call: Call, runs: list[Path]) -> None:
    words = ["gc", "--yes", "--output-dir", "local_outputs", "--keep", "0"]
    with (runs[1] / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = call(*words)
        assert "kept: it is running" in done.stdout
        assert names(project) == {".cache", runs[1].name}
    call(*words)
    assert names(project) == {".cache"}


def test_one_run_goes(project: Path, call: Call, runs: list[Path]) -> None:
    words = ["gc", "--output-dir", "local_outputs", "--run"]
    before = names(project)
    unasked = call(*words, runs[1].name)
    assert "nobody can be asked. Give --yes." in unasked.stderr
    assert names(project) == before
    assert "kept: used by" in call(*words, runs[3].name, "--yes").stdout
    assert "Removed 1 run" in call(*words, runs[1].name[-6:], "--yes").stdout
    assert names(project) == before - {runs[1].name}


def test_a_size_is_left(project: Path, call: Call, runs: list[Path]) -> None:
    (runs[2] / "large").write_bytes(b"x" * 3_000_000)
    done = call("gc", "--yes", "--output-dir", "local_outputs", "--max-size", "1MB")
    assert done.stdout.count("used by") == 1
    assert names(project) == {".cache", *(runs[number].name for number in (0, 1, 3))}


def test_an_interrupted_removal_is_finished(project: Path, call: Call, runs: list[Path]) -> None:
    runs[1].rename(runs[1].with_name(f".{runs[1].name}.removed"))
    call("gc", "--yes", "--output-dir", "local_outputs", "--keep", "9")
    assert names(project) == {".cache", *(runs[number].name for number in (0, 2, 3))}
