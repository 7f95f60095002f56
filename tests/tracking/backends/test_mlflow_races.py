"""What several processes record of one run in MLflow at once, seen from inside the tracker."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.modules import needs
from tests.tracking.backends.test_mlflow import RUN, client, experiment, run_processes, runs, tracker, trackers
from torchx_kfp.tracking.backends import mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = needs("mlflow", "the group `dev` has MLflow")
__all__ = ["client", "experiment", "tracker", "trackers"]


def test_processes_that_start_at_once_agree_on_one_run(
    mlflow_server: str, client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    # They behave as if they were on separate machines, without common files.
    apart = (
        "import contextlib, torchx_kfp.tracking.backends.mlflow as tracker\n"
        "tracker._one_process_at_a_time = lambda run_id: contextlib.nullcontext()\n"
    )
    put = "from torchx_kfp.tracking import current_run; current_run().put({'rank%d': 1})"
    run_processes(
        tmp_path,
        mlflow_server,
        [("r/together/1", put % rank) for rank in range(3)],
        [("r/apart/1", apart + put % rank) for rank in range(3)],
    )
    found = runs(client, experiment)
    ranks = {f"rank{rank}": 1.0 for rank in range(3)}
    (together,) = [run for run in found if run.info.run_name == "together/1"]
    assert together.data.metrics == ranks
    # Machines that do not start within a second of each other may create two runs, but results are not lost.
    apart_ = [run for run in found if run.info.run_name == "apart/1"]
    assert "active" in [run.info.lifecycle_stage for run in apart_]
    assert {name: value for run in apart_ for name, value in run.data.metrics.items()} == ranks


def test_no_value_goes_to_a_run_that_another_process_deletes(
    tracker: mlflow.MlflowTracker,
    mlflow_server: str,
    client: MlflowClient,
    experiment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a new run waits for others, a second machine records a value, and a third machine's run appears."""
    second = mlflow.create(mlflow_server)
    monkeypatch.setattr(mlflow, "_one_process_at_a_time", lambda run_id: contextlib.nullcontext())
    monkeypatch.setattr(mlflow, "_CHOICE", 0.0, raising=False)
    waits = itertools.count()

    def sleep(seconds: float) -> None:
        if next(waits) == 0:
            second.add_metadata(RUN, second=1)
            identifier = client.get_experiment_by_name(experiment).experiment_id
            client.create_run(identifier, start_time=1, tags={mlflow.RUN_ID_TAG: RUN})

    monkeypatch.setattr(mlflow, "time", types.SimpleNamespace(time=time.time, sleep=sleep, monotonic=time.monotonic))
    tracker.add_metadata(RUN, first=1)
    second.add_metadata(RUN, again=1)
    second._open.clear()
    kept = [run.data.metrics for run in runs(client, experiment) if run.info.lifecycle_stage == "active"]
    assert {name for metrics in kept for name in metrics} == {"first", "second", "again"}


def test_the_application_keeps_its_retries(
    tracker: mlflow.MlflowTracker, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES

    monkeypatch.delenv(str(RETRIES.name), raising=False)
    usual = RETRIES.get()

    def look(run_id: str) -> tuple[int, bool, int]:
        with ThreadPoolExecutor(1) as pool:
            return RETRIES.get(), RETRIES.name in os.environ, pool.submit(RETRIES.get).result()

    monkeypatch.setattr(tracker._client._client, "get_run", look)
    assert tracker._client.get_run(RUN) == (2, False, usual), "a call, the environment, and another thread meanwhile"
    assert RETRIES.get() == usual
    monkeypatch.setenv(str(RETRIES.name), "5")
    assert tracker._client.get_run(RUN) == (5, True, 5), "the user's own number"


def test_the_lock_needs_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with mlflow._one_process_at_a_time(RUN):
        pass
    assert os.listdir(tmp_path) == []


def test_without_mlflow() -> None:
    code = "import sys; sys.modules['mlflow'] = None; import torchx_kfp.tracking.backends.mlflow"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'TrackerError: The tracker "mlflow" needs MLflow (' in done.stderr
    assert done.stderr.endswith('): pip install "torchx-kfp[mlflow]".\n')
