"""Stages whose script starts them as on KFP: with a run id from the URI of an output, and as 0.1.0 compiled them."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from tests.authoring.apps import compile_pipeline, make_app
from tests.authoring.kfp_engines import Container, container_of
from torchx_kfp import task_from_app

RECORDED = Path(__file__).parents[2] / "recorded" / "sizes.json.gz"
#: Has the python3 that publishes results.
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def test_a_stage_with_results_finds_the_run_in_the_uris_of_its_outputs(tmp_path: Path) -> None:
    def pipeline(tracker_base: str = str(tmp_path)) -> None:
        task_from_app(make_app("train", entrypoint="env"), tracker_base=tracker_base, results={})

    run_id, salt = "bb4d525f-2bcc-45c1-bf62-ec9faa276244", "64d5755d-4c3f-4774-b444-c6224970e5a3"
    container = container_of(
        compile_pipeline(pipeline),
        "train",
        inputs={"tracker_base": str(tmp_path)},
        outputs={"run_id": str(tmp_path / "run_id")},
        artifacts={"metrics": f"{tmp_path}/pipeline/{run_id}/train/{salt}/metrics"},
        environ={"KFP_POD_NAME": "pod", "KFP_POD_UID": "1b2c3d4e-5f60", "PATH": PATH},
    )
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert f"TORCHX_JOB_ID={run_id}/train/pod_1b2c3d4e" in done.stdout.decode().splitlines()
    assert (tmp_path / "run_id").read_text() == f"{run_id}/train/pod_1b2c3d4e"


@pytest.mark.parametrize("form", ["inline", "image"])
def test_stages_that_version_0_1_0_compiled(form: str, tmp_path: Path) -> None:
    """Recorded pipelines: a script starts these stages, and values are separated by spaces."""
    with gzip.open(RECORDED) as file:
        spec = json.load(file)[form]["spec"]
    command = spec["deploymentSpec"]["executors"]["exec-stage-15"]["container"]["command"]
    constant = spec["root"]["dag"]["tasks"]["stage-15"]["inputs"]["parameters"]["stage"]["runtimeValue"]["constant"]
    container = Container(
        command,
        inputs={"tracker_base": str(tmp_path), "reads": "run/stage-5/pod"},
        outputs={"run_id": str(tmp_path / "run_id"), "accuracy": str(tmp_path / "accuracy")},
        artifacts={"metrics": str(tmp_path / "metrics")},
        environ={"KFP_RUN_ID": "run", "KFP_POD_NAME": "pod", "PATH": PATH},
        constants={"stage": constant},
    )
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run_id").read_text() == "run/stage-15/pod"
    assert (tmp_path / "accuracy").read_text() == "15.5"
