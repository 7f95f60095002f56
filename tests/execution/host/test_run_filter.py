"""Runs of a host are filtered: by the command ``runs``, and from Python."""

from __future__ import annotations

import json
import time

import pytest

from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Program
from torchx_kfp.errors import ArgumentError
from torchx_kfp.host import RunFilter, connect

_DAY = 86400.0


@pytest.fixture
def program(kfp_host: KfpHost, call: Program) -> Program:
    """The command line of a user of a host with five runs, a day old each: the first one is the oldest."""
    for number, name in enumerate(("train-a", "train-b", "Train-C", "other", "going")):
        run = kfp_host.make_run(1, name=name)
        run.record.created = time.time() - (5 - number) * _DAY
        if name == "going":
            run.advance(started=1)
        else:
            run.finish(failed=name == "train-b")
        if name == "other":
            run.record.history.append(("CANCELING", time.time()))
            run.terminate()
    return call


def listed(program: Program, host: KfpHost, *words: str) -> list[str]:
    done = program("runs", "--host", host.url, "--json", *words)
    assert done.returncode == 0, done.stderr
    return [run["name"] for run in json.loads(done.stdout)]


def test_filters_choose_runs(kfp_host: KfpHost, program: Program) -> None:
    found = {
        ("--state", "succeeded"): ["Train-C", "train-a"],
        ("--state", "failed", "--state", "canceled"): ["other", "train-b"],
        ("--state", "canceled"): ["other"],
        ("--state", "interrupted"): [],
        ("--name", "train-"): ["Train-C", "train-b", "train-a"],
        ("--newer-than", "108h", "--name", "train"): ["Train-C", "train-b"],
        ("--name", "TRAIN", "--state", "succeeded", "--limit", "1"): ["Train-C"],
        ("--limit", "2"): ["going", "other"],
        ("--limit", "0"): ["going", "other", "Train-C", "train-b", "train-a"],
    }
    asked = "--state", "canceled", "--name", "other", "--newer-than", "3d"
    assert listed(program, kfp_host, *asked) == ["other"]
    [predicates] = [json.loads(each.query["filter"])["predicates"] for each in kfp_host.requests if each.query]
    keys = {"state", "display_name", "created_at", "storage_state"}
    assert {each["key"] for each in predicates} == keys, "the host does the work"
    assert {words: listed(program, kfp_host, *words) for words in found} == found


def test_archived_runs_are_not_listed(kfp_host: KfpHost, program: Program) -> None:
    [first, second, *_] = kfp_host.runs
    for run_id in (first, second):
        kfp_host.runs[run_id].record.storage_state = "ARCHIVED"
    assert listed(program, kfp_host) == ["going", "other", "Train-C"]
    host = connect(host=kfp_host.url)
    found = [run.name for run in host.list(RunFilter(archived=True))]
    assert sorted(found) == ["Train-C", "going", "other", "train-a", "train-b"]


def test_a_state_that_no_run_has() -> None:
    with pytest.raises(ArgumentError, match=says("'faild'", "'failed'")):
        RunFilter(states=["faild"])
