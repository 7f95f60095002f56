"""What the host does with runs: its cache, cancel, and retry."""

from __future__ import annotations

import time
import uuid

import fsspec

from tests.cases import load_cases
from tests.conformance.pipelines import mended, sleeping
from tests.conformance.suite import PATIENCE, Suite, differences


def test_the_cache_takes_a_stage_from_an_earlier_run(suite: Suite) -> None:
    pipeline = suite.load(load_cases("reads")["results_reach_the_next_stage"].pipeline)
    runs = []
    for _ in range(2):
        run = suite.submit(pipeline, {}, "cache", cache=True)
        runs.append(suite.wait(run))
        runs[-1].raise_for_failure()
    assert {str(stage.state) for stage in runs[1].stages if stage.attempts or str(stage.state) == "cached"} == {
        "cached"
    }
    for result in runs:
        suite.remove(result.run_id)


def test_cancel_ends_a_run(suite: Suite) -> None:
    run = suite.submit(suite.load(sleeping), {}, "cancel")
    deadline = time.monotonic() + PATIENCE
    while not any(str(stage.state) == "running" for stage in run.read().run.stages):
        assert time.monotonic() < deadline, "the stage has not begun"
        time.sleep(0.5)
    run.terminate()
    result = suite.wait(run)
    assert (str(result.state), str(result["asleep"].state)) == ("canceled", "canceled")
    suite.remove(run.run_id)


def test_a_retry_runs_only_what_failed(suite: Suite) -> None:
    pipeline = suite.load(mended)
    marker = f"mended-{uuid.uuid4().hex[:8]}"
    run = suite.submit(pipeline, {"marker": marker}, "retry")
    assert str(suite.wait(run).state) == "failed"
    with fsspec.open(f"{suite.base}/{marker}", "w") as file:
        file.write("mended")
    there = suite.wait(run.retry())
    assert (str(there.state), there["mended"].results) == ("succeeded", {"mended": 1})

    failed = suite.run(pipeline, {"marker": marker}, "retry", cache=True)
    assert failed.folder is not None
    with fsspec.open(f"{failed.folder.parents[1]}/base/{marker}", "w") as file:
        file.write("mended")
    here = suite.run_in(failed.folder.parents[1], pipeline, {"marker": marker}, cache=True)
    # Here, it is a new run, which takes the first stage from the cache.
    assert differences(here, there) == ["first: starts here 0, there 1"]
    suite.remove(run.run_id)
