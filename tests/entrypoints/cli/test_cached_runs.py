"""Runs whose stages were cached, in the commands that show the records of runs."""

import json
import os
from pathlib import Path

import pytest
from kfp import dsl

from tests.cases.apps import python
from tests.entrypoints.cli.conftest import Call
from tests.programs import results_in
from torchx_kfp import task_from_app
from torchx_kfp.local import Watch, run

RECORD = "from torchx_kfp.tracking import current_run; import sys; current_run().put(x=float(sys.argv[1]))"


@dsl.pipeline(name="two")
def two(tracker_base: str, lr: float):
    prepared = task_from_app(python("prepare", RECORD, "1"), tracker_base=tracker_base)
    task_from_app(python("train", RECORD, f"{lr}"), tracker_base=tracker_base, reads=prepared)


@pytest.fixture
def runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run that has worked, a run with a cached stage, and a run in which everything was cached."""
    monkeypatch.chdir(project)
    ids = []
    for lr in (0.5, 0.25, 0.25):
        result = run(two, {"tracker_base": "base", "lr": lr}, watch=Watch())
        result.raise_for_failure()
        ids.append(result.run_id)
    return ids


def test_they_are_known(runs: list[str], call: Call) -> None:
    first, second, third = runs
    done = call("results", "--tracker-base", "base", second)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"Cached in {second}: prepare, from {first}.\n"
    assert [line.split() for line in done.stdout.splitlines()[3:]] == [
        ["prepare", "(cached)", "1.0"],
        ["train", "0.25"],
    ]
    whole = results_in(call("results", "--tracker-base", "base", third, "--json").stdout)
    assert whole == {f"{first}/prepare/prepare_1": {"x": 1.0}, f"{second}/train/train_1": {"x": 0.25}}
    for name in ("latest", third[-6:], third[:-1]):
        assert results_in(call("results", name, "--json").stdout) == whole
    assert results_in(call("results", "latest/train", "--json").stdout) == {f"{second}/train/train_1": {"x": 0.25}}
    listed = [line.split() for line in call("results", "--tracker-base", "base").stdout.splitlines()[2:]]
    # Runs are listed by their names, which contain the second in which they started.
    assert listed == sorted([[first, "2", "prepare", "train"], [second, "1", "train"]])

    done = call("compare", "--tracker-base", "base", first, third)
    assert done.returncode == 0, done.stderr
    values = [line.split() for line in done.stdout.splitlines() if line.startswith(("prepare", "train"))]
    assert values == [
        ["prepare", "x", "1.0", "1.0", "0"],
        ["prepare", "state", "cached"],
        ["train", "x", "0.5", "0.25", "-0.25"],
        ["train", "state", "cached"],
    ]
    assert f"Cached in {third}: train, from {second}.\n" in done.stderr
    # Both were given the same results.
    same = call("compare", "--tracker-base", "base", second, third, "--changed")
    assert (same.returncode, same.stderr.splitlines()[-1]) == (0, "The runs do not differ.")

    done = call("show", "--lineage", "latest")
    assert done.stdout.splitlines()[1].startswith(f"{second}/train/train_1  x=0.25")
    assert f"prepare: {first}/prepare/prepare_1" in done.stdout
    shown = call("show", "latest/train", "--json")
    assert json.loads(shown.stdout)["execution_id"] == f"{second}/train/train_1"
    assert shown.stderr == f"Cached in {third}: train, from {second}.\n"


def test_a_damaged_line_of_a_run_does_not_hide_its_cached_stages(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    first, second = (run(two, {"tracker_base": "base", "lr": lr}, watch=Watch()).run_id for lr in (0.5, 0.25))
    events = Path("local_outputs", second, "events.jsonl")
    begun, *others = events.read_text().splitlines(keepends=True)
    events.write_text("".join([begun, "{half a line\n", *others]))
    whole = {f"{first}/prepare/prepare_1": {"x": 1.0}, f"{second}/train/train_1": {"x": 0.25}}
    assert results_in(call("results", second, "--json").stdout) == whole
    shown = call("show", f"{second}/prepare", "--json")
    assert json.loads(shown.stdout)["execution_id"] == f"{first}/prepare/prepare_1"


@dsl.pipeline(name="looped")
def looped(tracker_base: str, rates: list):
    with dsl.ParallelFor(rates) as rate:
        task_from_app(python("train", RECORD, f"{rate}"), tracker_base=tracker_base)


def test_an_iteration_that_ran_and_one_that_was_cached_may_have_one_name(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second iteration of the first run is the first one of the second run, which has its own second one."""
    monkeypatch.chdir(project)
    first, second = (
        run(looped, {"tracker_base": "base", "rates": rates}, watch=Watch(), parallelism=1).run_id
        for rates in ([0.5, 0.25], [0.25, 0.125])
    )
    assert results_in(call("results", "--tracker-base", "base", second, "--json").stdout) == {
        f"{first}/train/train-1_1": {"x": 0.25},
        f"{second}/train/train-1_1": {"x": 0.125},
    }
    for stage, run_id in {"train[0]": first, "train[1]": second}.items():
        shown = call("show", f"{second}/{stage}", "--json").stdout
        assert json.loads(shown)["execution_id"] == f"{run_id}/train/train-1_1"
    assert results_in(call("results", "--tracker-base", "base", f"{second}/train/train-1_1", "--json").stdout) == {
        f"{second}/train/train-1_1": {"x": 0.125}
    }


def test_from_another_folder_and_of_another_base(call: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    runs = [run(two, {"tracker_base": "base", "lr": lr}, watch=Watch()).run_id for lr in (0.5, 0.25, 0.25)]
    other = [run(two, {"tracker_base": "other", "lr": 1.0}, watch=Watch()).run_id for _ in range(2)][-1]
    assert "has recorded nothing under base" in call("results", "--tracker-base", "base", other).stderr
    os.rename(project / "local_outputs", project / "elsewhere")
    unknown = call("results", "--tracker-base", "base", runs[2])
    assert (unknown.returncode, unknown.stdout) == (2, "")
    told, _, there = unknown.stderr.partition(" Runs there: ")
    assert f"Nothing is recorded for '{runs[2]}' under 'base'." in told
    # The most similar one comes first: for runs of the same second, that is random.
    assert sorted(there.strip().rstrip(".").split(", ")) == sorted(runs[:2])
    assert call("results", "--tracker-base", "base", runs[2], "--output-dir", "elsewhere").returncode == 0
    # Without the run's folder, the run that was recorded last is the newest.
    assert f"{runs[1]}/train/train_1" in call("results", "--tracker-base", "base", "latest", "--json").stdout
