"""What the commands of a transcript find in their folder; each function fills it."""

from __future__ import annotations

import math
from pathlib import Path

from torchx_kfp.contract import protocol
from torchx_kfp.tracking import FsspecResultTracker, current_run

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
