"""A pipeline has the same stages, states and reasons on KFP as in a local run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import load_cases
from tests.execution.host.answers_of_kfp import fold, last, nodes, observed, polls, states
from tests.execution.host.calling import RUNS, ended, get, request, submit, wait_until
from tests.fake_kfp import KfpHost
from torchx_kfp import local
from torchx_kfp.execution.host.manifest import manifest_of, read_manifest
from torchx_kfp.execution.host.observer import Observer
from torchx_kfp.execution.pipeline.load import load_pipeline, read_specs
from torchx_kfp.execution.runs.events import decode
from torchx_kfp.execution.runs.result import RunResult
from torchx_kfp.execution.runs.state import RunState, outline
from torchx_kfp.execution.runs.vocabulary import State

#: Pipelines of the corpus with each of what makes names and states, and those that end in an unusual way.
CASES = (
    "loops.nested",
    "loops.over_an_output",
    "loops.over_nothing",
    "nested.in_a_loop",
    "conditions.in_each_other",
    "conditions.collected_from_branches",
    "conditions.what_reads_a_skipped_stage_is_skipped",
    "exits.two_handlers",
    "exits.pipeline_as_exit_task",
    "failures.retries",
    "failures.in_a_branch",
    "nested.failure_inside",
    "importers.in_a_loop",
)


def _run(name: str, folder: Path, **options: Any) -> RunResult:
    """Run the recorded pipeline on this machine, with the recorded arguments."""
    run = polls(name)[0]
    file = folder / "pipeline.yaml"
    spec = run["pipeline_spec"]
    file.write_text(
        f"{json.dumps(spec['pipeline_spec'])}\n---\n{json.dumps(spec['platform_spec'])}\n", encoding="utf-8"
    )
    arguments = {**run["runtime_config"]["parameters"], "tracker_base": str(folder / "results")}
    return local.run(file, arguments, output_dir=folder / "runs", watch=local.Watch(), directory=str(folder), **options)


@pytest.mark.parametrize("name", ["succeeded", "failed"])
def test_a_recorded_run_has_the_stages_of_a_local_run_of_its_pipeline(name: str, tmp_path: Path) -> None:
    there = observed(last(name), nodes(name)).result()
    here = _run(name, tmp_path, cache=False)
    assert here.state is there.state
    assert [stage.name for stage in there.stages] == [stage.name for stage in here.stages]
    # The recorded run that failed took some stages from the cache.
    took = {str(stage.state).replace("cached", "succeeded") for stage in there.stages}
    for one, other in zip(there.stages, here.stages, strict=True):
        assert (one.task, str(one.state).replace("cached", "succeeded")) == (other.task, str(other.state))
        if str(one.state) != "failed":
            assert one.reason == other.reason
    assert took >= {"succeeded", "skipped"}


def test_a_recorded_run_that_was_cached_is_like_a_local_one(tmp_path: Path) -> None:
    there = observed(last("cached"), nodes("cached")).result()
    _run("cached", tmp_path)
    here = _run("cached", tmp_path)
    assert [(stage.name, stage.state) for stage in there.stages] == [(stage.name, stage.state) for stage in here.stages]


@pytest.fixture(scope="module", params=["2.14", "2.17"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a host and the ids of runs of all cases: they run side by side."""
    folder = tmp_path_factory.mktemp("host")
    with KfpHost(folder, version=request.param, directory=folder, options={"cache": False, "parallelism": 2}) as host:
        ids = {}
        for name in CASES:
            case = load_cases(name.partition(".")[0])[name.partition(".")[2]]
            spec, platform = read_specs(load_pipeline(case.pipeline).text)
            whole = {"pipeline_spec": spec, "platform_spec": platform} if platform else spec
            ids[name] = submit(host, whole, case.arguments, name)
        yield host, ids


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_a_host_has_the_stages_of_the_local_run_behind_it(name: str, runs: tuple[KfpHost, Any]) -> None:
    host, ids = runs
    ended(host, ids[name])
    _compare(host, ids[name])


def test_a_run_that_is_terminated_has_the_stages_of_the_local_run_behind_it(tmp_path: Path) -> None:
    recorded = polls("terminated")[0]
    arguments = {"accuracy": 0.9, "wait": 60.0, "tracker_base": str(tmp_path / "results")}
    with KfpHost(tmp_path / "host", directory=tmp_path) as host:
        run_id = submit(host, recorded["pipeline_spec"], arguments)
        wait_until(lambda: _here(host, run_id).active == ["inner/sleeper"])
        wait_until(lambda: _here(host, run_id).has_ended("deploy"))
        assert request(host, "POST", f"{RUNS}/{run_id}:terminate")[0] == 200
        ended(host, run_id)
        state = _compare(host, run_id)
    assert state.state is State.CANCELED
    assert states(state)["inner/sleeper"] == "canceled"
    assert states(state)["last"] == "not run"


def _compare(host: KfpHost, run_id: str) -> RunState:
    """Compare what is observed at the end of a run with the local run; return the former."""
    here = _here(host, run_id)
    observer = Observer()
    found = read_manifest(manifest_of(get(host, f"/apis/v1beta1/runs/{run_id}")))
    there = fold(observer, observer.observe(get(host, f"{RUNS}/{run_id}"), found))
    assert list(states(there).items()) == list(states(here).items()), "also in the same order"
    assert there.state is here.state
    for stage in there.stages:
        other = here.result()[stage.name]
        assert stage.result.attempts == other.attempts, stage.name
        assert stage.result.pod_name == other.pod_name, stage.name
        if str(stage.state) != "failed":
            assert stage.reason == other.reason
    return there


def _here(host: KfpHost, run_id: str) -> RunState:
    """Return the state of the local run behind a run of the host."""
    run = host.runs[run_id]
    run.describe()
    state = RunState(outline(run.pipeline))
    for event in filter(None, (decode(line) for line in run.lines if "event" in line)):
        state.on_event(event)
    return state
