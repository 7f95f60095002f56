"""``max_retries`` in runs on this machine: what a failed attempt recorded is not seen by anybody."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, RetryPolicy, Role

from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult
from torchx_kfp.tracking import FsspecResultTracker

Execute = Callable[..., RunResult]

#: The first attempt records something and fails; the last argument is how often it is to fail.
TRAIN = """
import os, pathlib, sys
from torchx_kfp.tracking import current_run
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) <= int(sys.argv[2]):
    current_run().put({"stale": 1})
    sys.exit(3)
current_run().put({"w": 2.5})
"""


def train(folder: Path, fails: int, **fields: Any) -> AppDef:
    arguments = ["-c", TRAIN, str(folder / "starts"), str(fails)]
    return AppDef("train", [Role("trainer", "image:1", entrypoint="python", args=arguments, **fields)])


def reader() -> AppDef:
    program = "from torchx_kfp.tracking import current_run; print(current_run().parent.results())"
    return AppDef("read", [Role("role", "image:1", entrypoint="python", args=["-c", program])])


@pytest.mark.versions
@pytest.mark.parametrize("results", [None, {"w": float}])
@pytest.mark.parametrize("policy", [RetryPolicy.APPLICATION, RetryPolicy.REPLICA])
def test_the_last_attempt_is_the_stage(execute: Execute, tmp_path: Path, results: Any, policy: RetryPolicy) -> None:
    @dsl.pipeline
    def pipeline(base: str):
        app = train(tmp_path, 1, max_retries=2, retry_policy=policy)
        made = task_from_app(app, tracker_base=base, results=results)
        task_from_app(reader(), tracker_base=base, reads=made)

    base = str(tmp_path / "results")
    result = execute(pipeline, {"base": base})
    stage = result["train"]
    assert (stage.results, stage.attempts, stage.attempts_in_pod, stage.starts) == ({"w": 2.5}, 1, 2, 2)
    assert stage.run_id == f"{result.run_id}/train/train-0_2"
    assert stage.outputs.get("w") == (results and 2.5)
    log = stage.log_file.read_text()
    assert "torchx-kfp: attempt 2 of 3: the application ended with exit code 3" in log
    assert result["read"].last_lines()[-1] == "{'w': 2.5}"
    assert FsspecResultTracker(base).get(f"{result.run_id}/train/train-0") == {"stale": 1}


def test_what_an_application_leaves_behind_is_asked_to_end(execute_failing: Execute) -> None:
    child = "trap 'echo child asked; exit' TERM; sleep 300 & wait"
    script = f"trap 'echo asked; exit 3' TERM; sh -c \"{child}\" & wait"

    @dsl.pipeline
    def pipeline():
        role = Role("trainer", "image:1", entrypoint="sh", args=["-c", script], max_retries=1)
        kubernetes.set_timeout(task_from_app(AppDef("train", [role])), 1)

    stage = execute_failing(pipeline, grace=5)["train"]
    assert (stage.exit_code, stage.last_lines()) == (3, ["asked", "child asked"])


@pytest.mark.versions
def test_a_stage_that_may_fail_is_started_again_first(execute: Execute, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(base: str):
        task_from_app(train(tmp_path, 9, max_retries=1), tracker_base=base, may_fail=True)

    result = execute(pipeline, {"base": str(tmp_path / "results")})
    stage = result["train"]
    assert stage.results == {"stale": 1, "exit_code": 3}
    assert stage.attempts_in_pod == 2
    assert json.dumps(stage.outputs["run_id"]).endswith('train-0_2"')
