"""``torchx-kfp show``: everything that is known about one run."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.searches import stated
from torchx_kfp.contract import protocol
from torchx_kfp.tracking import FanIn, FsspecResultTracker, current_run
from torchx_kfp.tracking.searches import SEARCH


@pytest.fixture
def base(project: Path) -> str:
    tracker = str(project / "base")
    trained = current_run(protocol.encode(protocol.StageContext(tracker, "a-1/train/t1")))
    trained.add_artifact("model", "s3://models/1", epochs=3)
    context = protocol.StageContext(tracker, "a-1/choose/c", {"trials": ("a-1/train/t1", "a-1/train/t2")})
    run = current_run(protocol.encode(context))
    run.put(accuracy=0.5, loss=math.nan, note="two words")
    run.add_metadata(config={"lr": 0.1}, commit="4f2a91c")
    for number in range(4):
        run.log(number * 3, {"train/f1": (number + 1) / 4})
    run.flush()
    run.add_artifact("plot", "s3://plots/1")
    trials = run.parents["trials"]
    assert isinstance(trials, FanIn)
    trials[0].artifact("model")
    FsspecResultTracker(tracker)["a-1/train/t2"] = {"x": 1}
    return tracker


def test_a_table(call: Call, base: str) -> None:
    done = call("show", "base", "a-1/choose", TZ="UTC")
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(r"─+|20\d\d-.* \+0000", "*", done.stdout)
    assert shown == (
        "Run a-1/choose/c\n"
        "what       name       value\n"
        "*\n"
        "result     accuracy   0.5\n"
        "result     loss       nan\n"
        "result     note       'two words'\n"
        "steps      train/f1   ▁▃▆█  1.0 at 9, min 0.25 at 0, max 1.0 at 9  (4 values)\n"
        'metadata   config     {"lr": 0.1}\n'
        "metadata   commit     4f2a91c\n"
        "artifact   plot       s3://plots/1\n"
        "reads      trials     a-1/train/t1\n"
        "reads      trials     a-1/train/t2\n"
        "reads                 a-1/train/t1  [model]\n"
        "started    time       *\n"
        f"started    host       {os.uname().nodename}\n"
    )


def test_json(call: Call, base: str) -> None:
    done = call("show", "base", "a-1/train/t1", "--format", "json")
    found = json.loads(done.stdout)
    assert set(found.pop("started")) == {"time", "host", "image"}
    assert found == {
        "run_id": "a-1/train/t1",
        "results": {},
        "steps": {},
        "search": None,
        "metadata": {},
        "artifacts": {"model": {"path": "s3://models/1", "metadata": {"epochs": 3}}},
        "sources": [],
        "undelivered": {},
        "code": [],
        "tags": {},
        "note": None,
        "resumes": [],
    }
    steps = json.loads(call("show", "base", "a-1/choose", "--format", "json").stdout)["steps"]
    assert steps["train/f1"]["count"] == 4
    assert [(point["step"], point["value"]) for point in steps["train/f1"]["points"]][::3] == [(0, 0.25), (9, 1.0)]


def test_a_stage_of_a_search(call: Call, base: str) -> None:
    content = stated(1, each=2, failing=[0], run="a-1")
    SEARCH.add(FsspecResultTracker(base).store, "a-1/ask-2/a", content, "search")
    *_, trials, best, asks = call("show", "base", "a-1/ask-2").stdout.splitlines()
    assert trials == "search   trials     2, of which 1 failed"
    assert best == "search   best       loss=0.235986  lr=0.00104779  layers=4  act=gelu  (a-1/trial-1/trial-1-1-0)"
    assert asks == "search   asks for   2 trials, round 2 of 3"
    found = json.loads(call("show", "base", "a-1/ask-2", "--format", "json").stdout)["search"]
    assert found["trials"] == content["trials"]
    assert found["asked"] == content["asked"]


def test_several_or_none(call: Call, base: str) -> None:
    done = call("show", "base", "a-1/train")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: 'a-1/train' has 2 runs of stages under 'base': a-1/train/t1, a-1/train/t2. Give the run id of one.\n"
    )
    assert call("show", "base", "b").stderr.startswith("Error: Nothing is recorded for 'b' under 'base'.")
