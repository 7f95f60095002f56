"""What the commands of a transcript find in their folder; each function fills it."""

# Annotations are not postponed: kfp reads them as types.

import math
from pathlib import Path
from typing import Any

from kfp import dsl

from tests.entrypoints.cli.conftest import PIPELINE
from tests.execution.local.components import shell
from tests.execution.report.runs import play, tracked
from tests.searches import LR, stated, tell
from tests.transcripts.hosts import a_dev_host as a_dev_host
from tests.transcripts.hosts import a_host as a_host
from torchx_kfp.local import Watch
from torchx_kfp.local import run as run_here
from torchx_kfp.tracking import FanIn, FsspecResultTracker, Source
from torchx_kfp.tracking.artifacts import add_artifact
from torchx_kfp.tracking.entries import add_entry
from torchx_kfp.tracking.records import Start
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
    tracked(folder / "meta", "a/b/c").add_metadata(x=1)


def files_that_are_not_results(folder: Path) -> None:
    for number in range(8):
        (folder / f"base/a-2/train/x{number}").write_text("")


def replays(folder: Path) -> None:
    """Record the results of a replay alone in ``replays``, and of a run, too, in ``both``."""
    for base, others in (("replays", {}), ("both", {"a-1/train/t": {"x": 1}})):
        record(folder / base, {"replay_a-20260101-120000-0a1b2c/train/t": {"x": 2}, **others})
        tracked(folder / base, "replay_a-20260101-120000-0a1b2c/train/t").add_metadata(replays="a-1/train/t")


def names_that_move_the_cursor(folder: Path) -> None:
    (folder / "base/a-2/train/t0").write_text('{"\\u001b[31mred": "\\u001b[0m", "x\\ny": 1}')


def a_lineage(folder: Path) -> None:
    lineage(folder / "base")


def lineage(base: Path | str) -> FsspecResultTracker:
    """Record two trials, what they read, what reads them, runs that read each other, and one without lineage."""
    tracker = FsspecResultTracker(base)
    store = tracker.store
    tracker["a-1/prepare/p"] = {"rows": 1000}
    add_entry(store, "a-1/prepare/p", {"sources": [{"run_id": "s3://datasets/digits", "artifact": "raw"}]})
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


def declare(store: Store, run_id: str, parents: dict[str, list[str]], start: Start | None = None) -> None:
    """Record the sources that a stage records at its start, perhaps with the start itself."""
    sources = [vars(Source(source, alias=alias)) for alias, ids in parents.items() for source in ids]
    fields = {"sources": sources, "started": start and vars(start)}
    add_entry(store, run_id, {name: value for name, value in fields.items() if value}, "0-start")


def sources_that_are_not_runs(folder: Path) -> None:
    record(folder / "made", {"p0/prepare/p": {"rows": 3}, "a-1/train/t": {"x": 1}})
    declare(FsspecResultTracker(folder / "made").store, "a-1/train/t", {"data": ["p0", "a table/", "p0/prepare/p"]})


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
    declare(store, "c-1/use/u", {"train": ["c-1/train/t"]}, Start(1e9, "node-3", "repo/use:1"))
    declare(store, "c-1/train/t", {}, Start(1e9 - 60, "node-2"))


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
        add_entry(tracker.store, f"{run}/evaluate/e", {"metadata": {"config": {"lr": k}, "note": "x"}})
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
        stage = tracked(folder / "steps", run_id)
        for step, value in enumerate(found):
            stage.log(step, {name: value})
        stage.flush()


def searches(folder: Path) -> None:
    tracker = FsspecResultTracker(folder / "searches")

    def state(run_id: str, name: str, *results: dict[str, float] | None, before: str = "", **definition: Any) -> None:
        trials = [({"lr": 2 * its["loss"] if its else 1.0}, its) for its in results]
        content = tell(name, trials, parameters={"lr": LR}, run_id=f"{run_id}/trial/{{index}}", **definition)
        add_entry(tracker.store, run_id, {"search": {**content, "before": before} if before else content})

    for run, losses in {"a": (0.5, None, 0.25), "b": (0.75, 0.5, 0.125, 0.25)}.items():
        first = tell("search", [], [{"lr": 2 * loss if loss else 1.0} for loss in losses])
        add_entry(tracker.store, f"{run}/ask-1/1", {"search": first})
        add_entry(tracker.store, f"{run}/ask-1/1", {"metadata": {"trials": first["asked"]}})
        tracker[f"{run}/ask-1/1"] = {"round": 1}
        ended = (None if loss is None else {"loss": loss} for loss in losses)
        state(f"{run}/best/1", "search", *ended, before=f"{run}/ask-1/1")
    two = {"loss": "minimize", "size": "maximize"}
    state("b/sizes/1", "sizes", {"loss": 0.5, "size": 1}, {"loss": 0.125, "size": 1}, objectives=two)
    state("b/sizes/2", "sizes", {"loss": 0.5, "size": 2}, {"loss": 0.125, "size": 1}, objectives=two)


def a_stage_with_everything(folder: Path) -> None:
    base = folder / "base"
    tracked(base, "a-1/train/t1").add_artifact("model", "s3://models/1", epochs=3)
    stage = tracked(base, "a-1/choose/c", trials=["a-1/train/t1", "a-1/train/t2"])
    stage.put(accuracy=0.5, loss=math.nan, note="two words")
    stage.add_metadata(config={"lr": 0.1}, commit="4f2a91c")
    for number in range(4):
        stage.log(number * 3, {"train/f1": (number + 1) / 4})
    stage.flush()
    stage.add_artifact("plot", "s3://plots/1")
    trials = stage.parents["trials"]
    assert isinstance(trials, FanIn)
    trials[0].artifact("model")
    tracker = FsspecResultTracker(base)
    tracker["a-1/train/t2"] = {"x": 1}
    add_entry(tracker.store, "a-1/ask-2/a", {"search": stated(1, each=2, failing=[0], run="a-1")})


def stored_artifacts(folder: Path) -> None:
    made = folder / "made"
    (made / "checkpoint").mkdir(parents=True)
    (made / "checkpoint" / "a.bin").write_bytes(bytes(1500))
    (made / "model.pt").write_bytes(b"model")
    for execution in ("1", "2"):
        tracked(folder / "base", f"a-1/train/{execution}").add_artifact("checkpoint", made / "checkpoint", store=True)
    stage = tracked(folder / "base", "a-1/evaluate/e")
    stage.add_artifact("best/model", made / "model.pt", store=True, epochs=3)
    stage.add_artifact("plot", "s3://plots/1")


def pipelines(folder: Path) -> None:
    (folder / "pipelines.py").write_text(PIPELINE)


def other_files(folder: Path) -> None:
    (folder / "sub").mkdir()
    for name in ("empty.py", "json.py", "v1.2.py", "sub/pipeline.py", "sub/compiled.yaml"):
        (folder / name).write_text("")
    (folder / "notes.txt").write_text("a: b\n")
    record(folder / "some", {"run-1/train/1": {"loss": 0.1}})


def a_run_here(folder: Path) -> None:
    play(folder / "local_outputs/digits-1", ["train"])


def artifacts_of_chosen_keys(folder: Path) -> None:
    """Record artifacts under keys that an application has chosen, which need not have the parts of a run id."""
    for key in ("b", "c/fit", "d/fit/1/2"):
        store = FsspecResultTracker(folder / "base").store
        add_artifact(store, key, "model", folder / "made/model.pt", None, stored=True)


@dsl.pipeline(name="mixed")
def mixed(go: bool = False):
    """A pipeline with stages that are retried, in a loop, failed, not run, or skipped."""
    first = shell(script="printf 'one\\ntwo \\377\\033[2J\\nend'")
    with dsl.ParallelFor([1, 2]) as number:
        shell(script=f"echo number {number}").after(first)
    again = shell(script="echo try $KFP_POD_NAME; case $KFP_POD_NAME in *_2) ;; *) exit 1; esac").after(first)
    again.set_retry(1, backoff_duration="0s")
    failed = shell(script="exit 3")
    shell(script="echo never").after(failed)
    with dsl.If(go == True):  # noqa: E712 (KFP's condition)
        shell(script="echo never")


def a_mixed_run(folder: Path) -> None:
    run_here(mixed, output_dir=folder / "local_outputs", watch=Watch(), parallelism=1)
