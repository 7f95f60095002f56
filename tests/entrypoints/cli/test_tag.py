"""Tags and notes of runs: on the command line, and wherever runs are shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.fake_kfp import KfpHost
from torchx_kfp.tracking import FsspecResultTracker

PIPELINE = """\
import sys
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import Stages

RECORD = "import sys; from torchx_kfp.tracking import current_run; current_run().put(loss=float(sys.argv[1]))"

@dsl.pipeline(name="train")
def train(tracker_base: str = "", loss: float = 0.5):
    app = AppDef("train", [Role("r", image="i", entrypoint=sys.executable, args=["-c", RECORD, f"{loss}"])])
    Stages(tracker_base=tracker_base).task(app)

@dsl.pipeline(name="plain")
def plain():
    Stages().task(AppDef("train", [Role("r", image="i", entrypoint="true")]))
"""


@pytest.fixture
def project(project: Path) -> Path:
    (project / "train.py").write_text(PIPELINE)
    return project


def start(call: Call, loss: str, *words: str, base: str = "base") -> str:
    """Run the pipeline, and return the run's name."""
    done = call("run", "train.py:train", "--tracker-base", base, "-p", f"loss={loss}", *words)
    assert done.returncode == 0, done.stderr
    return str(json.loads(call("runs", "--json").stdout)[0]["run"])


def test_tags_choose_and_describe_runs(project: Path, call: Call) -> None:
    first = start(call, "0.25", "--tag", "team=vision", "--tag", "stage=draft")
    second = start(call, "0.75", "--tag", "team=a, 'b'")
    third = start(call, "0.5")
    done = call("tag", first, "stage=final")
    assert done.stdout.splitlines() == ["team=vision", "stage=final"]
    absent = call("tag", first, "taem=")
    assert (absent.stdout, "no tag 'taem'" in absent.stderr) == (done.stdout, True)

    chosen = call(
        "results", "--tracker-base", "base", "--where", "tag.team == vision", "--where", "loss < 0.5", "--json"
    )
    assert [run_id.partition("/")[0] for run_id in json.loads(chosen.stdout)] == [first]
    assert third not in call("results", "--tracker-base", "base", "--where", "tag.team != vision", "--json").stdout

    rows = json.loads(call("compare", first, second, "--json").stdout)["rows"]
    tags = {row["name"]: row["values"] for row in rows if row["kind"] == "tag"}
    assert tags["team"] == {first: ["vision"], second: ["a, 'b'"]}
    short = json.loads(call("compare", "--tracker-base", "base", first[-6:], second[-6:], "--json").stdout)["rows"]
    assert {row["name"]: row["values"] for row in short if row["kind"] == "tag"} == tags
    assert "leave out 'train[1]'" in call("tag", f"{first}/train[1]", "a=b").stderr
    shown = call("show", f"{first}/train").stdout
    assert all(text in shown for text in ("team", "vision"))
    call("report", first, "-o", "report.html")
    page = (project / "report.html").read_text()
    assert "final" in page

    assert call("tag", "--tracker-base", "base", first, "team=").stdout == "stage=final\n"
    assert "no tags" in call("tag", third).stderr
    # They go with the run.
    assert call("gc", "--yes", "--tracker-base", "base", "--older-than", "0.001s").returncode == 0
    assert not list((project / "base/.torchx_kfp/runs").glob("*/*"))


def test_a_tag_counts_whatever_other_clocks_say(project: Path, call: Call) -> None:
    tracker = FsspecResultTracker(project / "base")
    tracker["run/train/1"] = {"x": 1}
    ahead = f"{time.time_ns() + 10**15:019}-00000000"
    tracker.store.write(f".torchx_kfp/runs/run/{ahead}.tags", b'{"tags": {"team": "a"}}')
    assert call("tag", "--tracker-base", "base", "run", "team=b").stdout == "team=b\n"
    assert call("tag", "--tracker-base", "base", "run", "team=c \n 日本").returncode == 0
    shown = json.loads(call("show", "--tracker-base", "base", "run/train", "--json").stdout)
    assert shown["tags"] == {"team": "c \n 日本"}


@pytest.mark.s3
def test_tags_of_a_run_on_a_host(project: Path, call: Call, s3_base: str) -> None:
    with KfpHost(project / "host") as host:
        words = ["--host", host.url]
        submit = ("submit", "train.py:train", *words, "--tracker-base", s3_base)
        found = []
        for more in ([], ["--tag", "team=vision"]):
            done = call(*submit, *more)
            assert done.returncode == 0, done.stderr
            found.append(done.stdout.split()[0])
        assert call("tag", found[1], "stage=final", *words).stdout == "team=vision\nstage=final\n"
        assert call("tag", found[0], *words).stdout == ""
