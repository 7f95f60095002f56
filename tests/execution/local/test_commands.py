"""Stages whose script starts them as on KFP: with a run id from the URI of an output."""

import sys
from pathlib import Path

from tests.authoring.apps import compile_pipeline, make_app
from tests.authoring.kfp_engines import container_of
from torchx_kfp import task_from_app

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
