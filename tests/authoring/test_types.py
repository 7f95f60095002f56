"""A type checker's errors in files that use the public functions."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

REPOSITORY = Path(__file__).resolve().parents[2]

#: Each wrong line names the code of its error.
USER = """
from typing import List

from kfp import dsl
from torchx.components import utils
from torchx.specs import AppDef, Role

from torchx_kfp import (
    Stages,
    artifact_from_uri,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    engines,
    publish_results,
    task_from_app,
)
from torchx_kfp.tracking import current_run

APP = AppDef("train", roles=[Role("train", image="i")])
SECRETS = {"s3": {"id": "AWS_ACCESS_KEY_ID"}}
RESULTS = {"accuracy": float, "model": str}
STAGES = Stages(secrets=SECRETS, cache=False)
GPUS = engines.JobSet(queue="gpus", succeeds_with=["train"], logs="first")
component_from_app(APP, engine=GPUS, replicas=2)
component_from_function(utils.booth, image="i", engine="job")
booth = component_from_function(utils.booth, image="i", cache=False)
train = STAGES.component(APP, reads=["prepare"], results=RESULTS)
text: str = component_spec_from_app(APP, tracked=True)


def pipeline(tracker_base: str, uri: str, run_id: str, rates: List[float]) -> None:
    stages = STAGES.with_options(tracker_base=tracker_base, trackers={"mlflow": uri, "other": None})
    first = stages.task(APP)
    with dsl.ParallelFor(rates) as rate:
        trial = stages.task(APP, reads=first, results={"accuracy": float, "n": int, "ok": bool, "model": str})
    last = stages.task(APP, reads={"trials": dsl.Collected(trial.outputs["run_id"]), "first": first, "old": run_id})
    stages.task(APP, reads=[first, last], artifacts={"model": dsl.Model}, name="both")
    stages.task(APP, reads={"several": [first, run_id]}, cache=True, secrets=None)
    task_from_app(APP, tracker_base=first.outputs["base"], reads=first)
    publish_results(first, {"accuracy": float}, image="i", secrets=SECRETS)
    stages.publish(run_id, image="i", inline=False)
    artifact_from_uri(uri, dsl.Model, metadata={"n": 1})
    artifact_from_uri(first.outputs["model"])
    stages.task(APP, engine="jobset", replicas=first.outputs["nodes"])
    stages.task(APP, engine=engines.JobSet(succeeds_with=["train"]), replicas={"ps": first.outputs["nodes"]})
    stages.component(APP, engine=engines.Job(), inline=False)
    component_from_app(APP, reads=["first"])(tracker_base=tracker_base, first=run_id)


def wrong(tracker_base: str) -> None:
    Stages(tracker_base=5)  # wrong: arg-type
    Stages(tracker="mlflow")  # wrong: call-arg
    Stages(cache="no")  # wrong: arg-type
    Stages(trackers=["mlflow"])  # wrong: arg-type
    Stages(secrets={"s3": "AWS_ACCESS_KEY_ID"})  # wrong: dict-item
    STAGES.task(APP, reads=5)  # wrong: arg-type
    STAGES.task(APP, reads="prepare")  # wrong: arg-type
    STAGES.task(APP, reads={"prepare": 5})  # wrong: arg-type
    STAGES.task(APP, results={"accuracy": tuple})  # wrong: dict-item
    STAGES.task(APP, result={"accuracy": float})  # wrong: call-arg
    task_from_app(APP, tracker_base=["s3://bucket"])  # wrong: arg-type
    task_from_app(APP, tracker_base=tracker_base, results=["accuracy"])  # wrong: arg-type
    publish_results(5, image="i")  # wrong: arg-type
    artifact_from_uri(5)  # wrong: arg-type
    task_from_app(APP, engine=5)  # wrong: arg-type
    STAGES.task(APP, engine=["job"])  # wrong: arg-type
    STAGES.task(APP, engine="job", replicas="2")  # wrong: arg-type
    STAGES.task(APP, engine="job", replicas={"train": 1.5})  # wrong: dict-item
    engines.Job(succeeds_with="train")  # wrong: call-arg
    engines.Job(logs="some")  # wrong: arg-type
    engines.JobSet(ttl="1h")  # wrong: arg-type
"""

#: kfp and torchx are not typed. Errors in an installed torchx-kfp are not shown.
CONFIG = f"""
[mypy]
strict = true
mypy_path = {REPOSITORY}
[mypy-torchx_kfp.*]
follow_imports = silent
[mypy-kfp.*,torchx.*]
ignore_missing_imports = true
"""


def test_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.stderr
    found = re.findall(r"^user\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    errors = {(int(line), code) for line, code in found}
    expected = {
        (number, found.group(1))
        for number, line in enumerate(USER.splitlines(), 1)
        if (found := re.search(r"# wrong: ([\w-]+)$", line))
    }
    assert errors == expected, done.stdout
