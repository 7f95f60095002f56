"""Stages made from AppDefs under the local runner, in more than one run; the rest is in ``tests/cases``."""

from pathlib import Path
from typing import Any

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
    assert train.outputs["run_id"] == train.execution_id
    assert str(train.execution_id).rpartition("/")[2] == train.pod_name == "train_2"
    assert len(FsspecResultTracker(tmp_path / "results").keys(str(train.execution_id).rpartition("/")[0])) == 2
    assert read.results is not None
    assert read.results["read"] == '{"train": "[0.5]"}'
