"""What the commands of a transcript find in their folder; each function fills it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tests.searches import LR, tell
from torchx_kfp.contract import protocol
from torchx_kfp.tracking import FsspecResultTracker, Source, current_run
from torchx_kfp.tracking.lineage import SOURCES, Start, add_source, encode_sources, record_start
from torchx_kfp.tracking.searches import SEARCH
from torchx_kfp.tracking.statements import add_artifact, add_metadata
from torchx_kfp.tracking.store import Store

RESULTS = {
    "a-1/prepare/p": {"rows": 1000, "source": "s3://datasets/digits/of/a/long/name/that/goes/on/and/on"},
    "a-1/train/t0": {"accuracy": 0.5, "epochs": 3, "l2norm/mean": 1.25, "done": True, "note": "two words"},
    "a-1/train/t1": {"accuracy": math.nan, "epochs": 10},
    "a-2/train/t0": {"accuracy": 0.93, "epochs": 2, "l2norm/mean": 0.5, "done": False},
    "a-2/train/t1": {"accuracy": "diverged"},
    "b-1/train/t0": {"accuracy": math.inf, "big": 10**30},
    "local_cwd://torchx/app-1": {"loss": 0.25},
}


def results(folder: Path) -> None:
    """Record results of several runs under ``base``."""
    record(folder / "base", RESULTS)


def record(base: Path | str, found: dict[str, dict[str, object]]) -> None:
    tracker = FsspecResultTracker(base)
    for run_id, values in found.items():
        tracker[run_id] = values


def a_long_cell(folder: Path) -> None:
    record(folder / "long", {"a-1/train/t": {"model": "s3://bucket/" + "folder/" * 40, "loss": 0.5}})


def long_run_ids(folder: Path) -> None:
    run = "digits-1-of-a-very-long-name"
    found = {
        f"{run}/train/t-0": {"model": f"s3://bucket/models/{run}/train/t-0/model.joblib", "n": 1},
        f"{run}/select/s-0": {"best": f"{run}/train/t-0"},
        "digits-2-of-a-very-long-name/train/t-0": {"n": 1},
    }
    record(folder / "digits", found)


def names_of_columns(folder: Path) -> None:
    record(folder / "names", {"a/b/c": {"run": 7, "results": 1, "stage/execution": 2}})


def other_folders(folder: Path) -> None:
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    record(folder / "above/base", {"a-1/train/t": {"loss": 1}})


def only_metadata(folder: Path) -> None:
    current_run(protocol.encode(protocol.StageContext(str(folder / "meta"), "a/b/c"))).add_metadata(x=1)


def files_that_are_not_results(folder: Path) -> None:
    for number in range(8):
        (folder / f"base/a-2/train/x{number}").write_text("")


def names_that_move_the_cursor(folder: Path) -> None:
    (folder / "base/a-2/train/t0").write_text('{"\\u001b[31mred": "\\u001b[0m", "x\\ny": 1}')


def a_lineage(folder: Path) -> None:
    lineage(folder / "base")


def lineage(base: Path | str) -> FsspecResultTracker:
    """Record two trials, what they read, what reads them, runs that read each other, and one without lineage."""
    tracker = FsspecResultTracker(base)
    store = tracker.store
    tracker["a-1/prepare/p"] = {"rows": 1000}
    add_source(store, "a-1/prepare/p", Source("s3://datasets/digits", "raw"))
    for number in range(2):
        tracker[f"a-1/train/t{number}"] = {"accuracy": 0.5 + number / 4}
        add_artifact(store, f"a-1/train/t{number}", "model", f"s3://bucket/{'long/' * 9}{number}.pt", {"epochs": 3})
        declare(store, f"a-1/train/t{number}", {"prepare": ["a-1/prepare/p"]})
    tracker["a-1/choose/c"] = {"best": "a-1/train/t1"}
    declare(store, "a-1/choose/c", {"trials": ["a-1/train/t0", "a-1/train/t1"], "data": ["a-1/prepare/p"]})
    tracker["b-1/deploy/d"] = {"ok": True}
    declare(store, "b-1/deploy/d", {"model": ["a-1/choose/c"]})
    tracker["alone/s/1"] = {"loss": 0.25}
    declare(store, "ring/x/1", {"y": ["ring/y/1"]})
    declare(store, "ring/y/1", {"x": ["ring/x/1"]})
    return tracker


def declare(store: Store, run_id: str, parents: dict[str, list[str]]) -> None:
    """Record the sources that a stage records at its start, but not the start itself."""
    sources = [Source(source, alias=alias) for alias, ids in parents.items() for source in ids]
    SOURCES.add(store, run_id, encode_sources(sources), "sources", "0-reads")


def a_longer_name(folder: Path) -> None:
    record(folder / "base", {"a-10/s/1": {"loss": 1}})


def a_long_fan_in(folder: Path) -> None:
    store = FsspecResultTracker(folder / "base").store
    trials = [f"big/train/{number:04}" for number in range(1000)]
    declare(store, "big/choose/c", {"trials": trials, "data": ["a-1/prepare/p"]})


def half_a_result(folder: Path) -> None:
    (folder / "base/a-1/prepare/p").write_text("half")


def starts(folder: Path) -> None:
    store = FsspecResultTracker(folder / "base").store
    record_start(store, "c-1/use/u", {"train": "c-1/train/t"}, Start(1e9, "node-3", "repo/use:1"))
    record_start(store, "c-1/train/t", {}, Start(1e9 - 60, "node-2"))


def two_runs(folder: Path) -> None:
    compared(folder / "base")


def compared(base: Path | str) -> None:
    """Record two runs of the same stages with other results, in other orders."""
    tracker = FsspecResultTracker(base)
    for run, k in (("one", 1), ("two", 2)):
        tracker[f"{run}/prepare/p"] = {"rows": 1000, "bound": math.nan}
        for number in range(3):
            loss = number + k / 4 if number else math.nan
            # Executions on a cluster have random names.
            tracker[f"{run}/train/{'abc'[(number + k) % 3]}"] = {"loss": loss, "optimizer": "adam", "seed": number}
        tracker[f"{run}/evaluate/e"] = {"accuracy": 0.5 + k / 4, "ok": k == 2, "uri": f"s3://models/{k}"}
        add_metadata(tracker.store, f"{run}/evaluate/e", {"config": {"lr": k}, "note": "x"})
    tracker["two/evaluate/e"] = {**tracker["two/evaluate/e"], "extra": 1}


def many_runs(folder: Path) -> None:
    record(folder / "many", {f"run-{number}/train/t": {"loss": number} for number in range(9)})


def values_without_a_difference(folder: Path) -> None:
    first = {"huge": 10**40, "inf": math.inf, "text": "x", "flag": True, "int": 3}
    record(folder / "odd", {"a/s/1": first, "b/s/1": {"huge": 0.5, "inf": math.inf, "text": 1, "flag": 1, "int": 1}})


def steps(folder: Path) -> None:
    values = {
        ("a/train/1", "scan/rate"): [-1, -0.75],
        ("b/train/1", "scan/rate"): [number / 4 - 1 for number in range(12)],
        ("a/loop/1", "loss"): [0.75, 0.25],
        ("a/loop/2", "loss"): [1.75, 1.25],
        ("b/loop/1", "loss"): [math.inf, 0.5, 0.25],
    }
    for (run_id, name), found in values.items():
        run = current_run(protocol.encode(protocol.StageContext(str(folder / "steps"), run_id)))
        for step, value in enumerate(found):
            run.log(step, {name: value})
        run.flush()


def searches(folder: Path) -> None:
    tracker = FsspecResultTracker(folder / "searches")

    def state(run_id: str, name: str, *results: dict[str, float] | None, **definition: Any) -> None:
        trials = [({"lr": 2 * its["loss"] if its else 1.0}, its) for its in results]
        content = tell(name, trials, parameters={"lr": LR}, run_id=f"{run_id}/trial/{{index}}", **definition)
        SEARCH.add(tracker.store, run_id, content, "search")

    for run, losses in {"a": (0.5, None, 0.25), "b": (0.75, 0.5, 0.125, 0.25)}.items():
        first = tell("search", [], [{"lr": 2 * loss if loss else 1.0} for loss in losses])
        SEARCH.add(tracker.store, f"{run}/ask-1/1", first, "search")
        add_metadata(tracker.store, f"{run}/ask-1/1", {"trials": first["asked"]})
        tracker[f"{run}/ask-1/1"] = {"round": 1}
        state(f"{run}/best/1", "search", *(None if loss is None else {"loss": loss} for loss in losses))
    two = {"loss": "minimize", "size": "maximize"}
    state("b/sizes/1", "sizes", {"loss": 0.5, "size": 1}, {"loss": 0.125, "size": 1}, objectives=two)
    state("b/sizes/2", "sizes", {"loss": 0.5, "size": 2}, {"loss": 0.125, "size": 1}, objectives=two)
