"""The applications of the suite's stages: the first argument names one. They travel as a workspace."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time

import fsspec

from torchx_kfp.tracking import current_run

RESULTS = {"number": 0.25, "count": 3, "text": "a, 'b' \"c\" $HOME {{x}} ü", "flag": True}


def packages(*names: str) -> None:
    """Record which of these packages the image has."""
    current_run().put(packages=" ".join(name for name in names if importlib.util.find_spec(name)))


def first() -> None:
    current_run().put(RESULTS)


def second(number: str, text: str) -> None:
    """Read the parent's results, and compare them with those that KFP hands on."""
    found = dict(current_run().parent.results())
    assert found == RESULTS, found
    assert (float(number), text) == (RESULTS["number"], RESULTS["text"]), (number, text)
    current_run().put(double=2 * found["number"], letters=len(found["text"]))


def items() -> None:
    current_run().add_metadata(items=[{"x": 1, "letter": "a"}, {"x": 2, "letter": "b"}, {"x": 3, "letter": "c"}])


def square(x: str, letter: str) -> None:
    current_run().put(square=int(x) ** 2, letter=letter)


def collect() -> None:
    runs = [run.results() for run in current_run().parents["squares"]]
    current_run().put(squares=json.dumps(sorted((found["letter"], found["square"]) for found in runs)))


def fails(code: str = "3") -> None:
    current_run().put(before=1)
    sys.exit(int(code))


def code() -> None:
    current_run().put(code=current_run().parent.results()["exit_code"])


def second_try() -> None:
    """Fail in the first attempt at this stage."""
    attempt = current_run().id
    if not attempt.endswith("_2"):
        current_run().put(early=1)
        sys.exit(1)
    current_run().put(late=1)


def once_mended(marker: str) -> None:
    """Fail until somebody has written the file."""
    file = f"{os.environ['TORCHX_TRACKER_BASE']}/{marker}"
    filesystem, path = fsspec.core.url_to_fs(file)
    if not filesystem.exists(path):
        sys.exit(4)
    current_run().put(mended=1)


def save(path: str) -> None:
    with open(path, "w") as file:
        file.write("weights")
    current_run().add_artifact("model", path, layers=2)
    current_run().put(loss=0.5)


def trial(x: str) -> None:
    current_run().put(loss=(float(x) - 2) ** 2)


def replica() -> None:
    if os.environ["TORCHX_REPLICA_ID"] == "0":
        current_run().put(replicas=2)


def sleep() -> None:
    print("asleep", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
