"""Stages made from AppDefs under the local runner, in more than one run; the rest is in ``tests/cases``."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.apps import compile_pipeline
from tests.cases.apps import echo, record
from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult, State, Watch, run
from torchx_kfp.tracking import FsspecResultTracker


def run_pipeline(function: Any, tmp_path: Path, **arguments: Any) -> RunResult:
    path = tmp_path / "pipeline.yaml"
    path.write_text(compile_pipeline(function))
    base = {"tracker_base": str(tmp_path / "results"), **arguments}
    return run(path, base, output_dir=tmp_path / "runs", watch=Watch())


def test_a_retry_of_kfps_has_a_run_id_of_its_own_and_publishes_what_it_recorded_itself(tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -9 $PPID; }}"

    def pipeline(tracker_base: str) -> None:
        made = record("train", '{"argv": "[0.5]"}', once)
        train = task_from_app(made, tracker_base=tracker_base, results={"argv": str})
        train.set_retry(1, backoff_duration="0s")
        task_from_app(echo("read"), tracker_base=tracker_base, reads=train)

    train, read = run_pipeline(pipeline, tmp_path).stages
    assert (train.state, train.attempts, train.outputs["argv"]) == (State.SUCCEEDED, 2, "[0.5]")
    assert train.outputs["run_id"] == train.run_id
    assert str(train.run_id).rpartition("/")[2] == train.pod_name == "train_2"
    assert len(FsspecResultTracker(tmp_path / "results").keys(str(train.run_id).rpartition("/")[0])) == 2
    assert read.results is not None
    assert read.results["read"] == '{"train": "[0.5]"}'


@pytest.mark.s3
def test_variables_of_the_application_say_how_the_storage_is_reached(
    tmp_path: Path, s3_server: Any, s3_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    for name in credentials:
        monkeypatch.delenv(name)

    def pipeline(tracker_base: str) -> None:
        made = record("train", '{"accuracy": 0.5}')
        made.roles[0].env = dict(credentials)
        task_from_app(made, tracker_base=tracker_base, results={"accuracy": float})

    (stage,) = run_pipeline(pipeline, tmp_path, tracker_base=s3_base).stages
    assert stage.outputs.get("accuracy") == 0.5, stage.last_lines()
