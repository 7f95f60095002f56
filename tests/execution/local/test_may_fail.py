"""Stages that may fail, in pipelines that run on this machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.authoring.apps import load
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, task_from_app
from torchx_kfp.errors import ReadsError
from torchx_kfp.local import RunResult
from torchx_kfp.tracking import FsspecResultTracker

Execute = Callable[..., RunResult]


def shell(script: str, *args: str, replicas: int = 1) -> AppDef:
    words = ["-c", script, "sh", *args]
    return AppDef("app", [Role("app", image="image:1", entrypoint="sh", args=words, num_replicas=replicas)])


@pytest.mark.versions
def test_a_trial_that_fails_does_not_end_the_loop_and_is_not_cached(execute: Execute, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(base: str):
        with dsl.ParallelFor([0, 3, 5]) as code:
            trial = task_from_app(shell('exit "$1"', f"{code}"), name="trial", tracker_base=base, may_fail=True)
        task_from_app(
            shell('echo "$TORCHX_PARENT_RUN_IDS"'),
            name="all",
            tracker_base=base,
            reads={"trials": dsl.Collected(trial.outputs["run_id"])},
        )

    base = str(tmp_path / "results")
    for state in ("succeeded", "cached"):
        result = execute(pipeline, {"base": base}, cache=True)
        trials = [result[f"trial[{index}]"] for index in range(3)]
        assert [trial.state for trial in trials] == [state, "succeeded", "succeeded"]
        assert [trial.results for trial in trials] == [{"exit_code": code} for code in (0, 3, 5)]
    codes = [results["exit_code"] for _, results in FsspecResultTracker(base).items()]
    assert sorted(codes) == [0, 3, 3, 5, 5], "what has failed ran again"


def test_an_engine_that_cannot_start_the_replicas_fails_the_stage(execute_failing: Execute, tmp_path: Path) -> None:
    """Its application has not failed: nothing has run."""

    @dsl.pipeline
    def pipeline(base: str, n: int = 4):
        task_from_app(shell("true", replicas=3), tracker_base=base, engine="job", replicas=n, may_fail=True)

    (stage,) = execute_failing(pipeline, {"base": str(tmp_path / "results")}).stages
    assert stage.exit_code == 125
    assert "from 1 to 3" in stage.log_file.read_text()


def test_a_stage_that_may_fail_is_tracked() -> None:
    made = component_from_app(shell("true"), may_fail=True)
    assert set(made.component_spec.outputs) == {"run_id", "metrics"}
    spec, _ = load(component_spec_from_app(shell("true"), may_fail=True, results={"exit_code": int}))
    (executor,) = spec["deploymentSpec"]["executors"].values()
    assert sum('"may_fail":[]' in word for word in executor["container"]["command"]) == 1
    with pytest.raises(ReadsError, match=says("may_fail", "tracker base", "task_from_app")):
        task_from_app(shell("true"), may_fail=True)
