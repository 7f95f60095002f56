"""Which run a name means, on this machine and on the host that is set up, and what a setting stands for."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.execution.host.calling import get
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Done, Program

HELLO = """
from kfp import dsl

@dsl.container_component
def hello(text: str):
    return dsl.ContainerSpec(image="app:1", command=["echo", text])

@dsl.pipeline(name="hello")
def pipeline(tracker_base: str = "s3://other/results"):
    hello(text=tracker_base).set_caching_options(False)
"""


@pytest.fixture
def program(call: Program, tmp_path: Path) -> Program:
    (tmp_path / "hello.py").write_text(HELLO, encoding="utf-8")
    return call


def watched(done: Done) -> str:
    """Return the id of the run that ``watch --json`` has shown."""
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[0])["run_id"])


def test_the_latest_run_is_the_first_that_runs_lists(kfp_host: KfpHost, program: Program) -> None:
    def latest(url: str = kfp_host.url) -> str:
        listed = program("runs", "--json", TORCHX_KFP_HOST=url)
        found = watched(program("watch", "latest", "--json", TORCHX_KFP_HOST=url))
        assert json.loads(listed.stdout)[0]["run"] == found
        return found

    first = kfp_host.make_run(1)
    first.finish()
    assert latest() == first.record.run_id, "there is none on this machine"
    assert program("run", "hello.py", "--quiet").returncode == 0
    [folder] = (program.folder / "local_outputs").glob("hello-*")

    def move(seconds: float) -> None:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        (folder / "run.json").write_text(json.dumps({**run, "created": time.time() + seconds}), encoding="utf-8")

    move(-60)
    newer = kfp_host.make_run(1)
    first.record.created -= 60  # KFP's times are whole seconds
    newer.finish()
    assert latest() == newer.record.run_id
    refused = program("cancel", "latest", TORCHX_KFP_HOST=kfp_host.url)
    assert re.search(says(newer.record.run_id, "another user's"), refused.stderr)
    move(60)
    assert latest() == folder.name
    done = program("watch", "latest", "--json", TORCHX_KFP_HOST="http://127.0.0.1:9")
    assert watched(done) == folder.name
    assert re.search(says("Only local runs", "127.0.0.1:9"), done.stderr)


def test_the_tracker_base_is_a_setting(kfp_host: KfpHost, program: Program) -> None:
    settings = program.folder / "home" / ".config" / "torchx-kfp" / "config.ini"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[kfp]\nhost = {kfp_host.url}\ntracker_base = s3://bucket/results\n", encoding="utf-8")

    def submitted(*words: str) -> object:
        before = set(kfp_host.runs)
        done = program("submit", "hello.py", *words)
        assert done.returncode == 0, done.stderr
        [run_id] = set(kfp_host.runs) - before
        return get(kfp_host, f"/apis/v2beta1/runs/{run_id}")["runtime_config"]["parameters"]

    assert submitted() == {"tracker_base": "s3://bucket/results"}
    assert submitted("--tracker-base", "s3://mine/results") == {"tracker_base": "s3://mine/results"}
    assert submitted("-p", "tracker_base=s3://mine/results") == {"tracker_base": "s3://mine/results"}
