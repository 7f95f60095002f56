"""What the tracker on MLflow refuses, and what it does without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchx.tracker.api import build_trackers

from tests.facts import says
from tests.modules import needs
from tests.tracking.stages import application, environ
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking import FsspecResultTracker, current_run

pytestmark = needs("mlflow", "the group `dev` has MLflow")


@pytest.mark.parametrize("config", [None, ""])
def test_without_a_tracking_uri(config: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(TrackerError, match=says('"mlflow"', "stage", "MLFLOW_TRACKING_URI", "trackers=")):
        build_trackers({"mlflow": config})


def test_a_tracking_uri_without_a_protocol() -> None:
    with pytest.raises(TrackerError, match=says("'localhost:5000'", "protocol", "'http://localhost:5000'")):
        build_trackers({"mlflow": "localhost:5000"})


def test_a_tracking_uri_that_mlflow_does_not_accept(tmp_path: Path) -> None:
    variables = environ(tmp_path / "base", RUN, trackers={"mlflow": "foo://x:1"})
    with pytest.raises(TrackerError, match=says('"mlflow"', "cannot be used", "'foo://x:1'", "its URI", "trackers=")):
        current_run(variables)


def test_only_the_first_process_opens_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several that create its tables at once fail."""
    monkeypatch.setenv("TORCHX_REPLICA_ID", "1")
    (tracker,) = build_trackers({"mlflow": f"sqlite:///{tmp_path}/m.db"})
    tracker.add_metadata(RUN, a=1)
    assert not list(tmp_path.iterdir())


RUN = "run/train/1"
START = "from torchx_kfp.tracking import current_run; run = current_run()\n"


def stage(tmp_path: Path) -> dict[str, str]:
    return environ(tmp_path / "base", RUN, {"prepare": "run/prepare/1"}, {"mlflow": "http://127.0.0.1:1"})


def test_the_first_process_loads_mlflow_at_once(tmp_path: Path) -> None:
    code = START + "import sys; print('torchx' in sys.modules, 'mlflow' in sys.modules)"
    assert application(code, environ(tmp_path / "base", RUN), cwd=tmp_path, check=True).stdout == "False False\n"
    assert (
        application(code, stage(tmp_path) | {"TORCHX_REPLICA_ID": "1"}, cwd=tmp_path, check=True).stdout
        == "False False\n"
    )
    assert application(code, stage(tmp_path), cwd=tmp_path, check=True).stdout == "True True\n"


@pytest.mark.parametrize(("module", "found"), [("mlflow", "None"), ("torchx", "None"), ("mlflow", "sys")])
def test_a_module_that_is_missing_or_another_one_is_an_error_at_once(module: str, found: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{module!r}] = {found}\n{START}"
    done = application(code, stage(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message.startswith('torchx_kfp.errors.TrackerError: The tracker "mlflow" needs MLflow and TorchX')
    assert 'pip install "torchx-kfp[mlflow]"' in message


#: A server that is down at first, and fails slowly.
DOWN = """
import mlflow, time
calls, slow = [], 0
def search(self, *_):
    if time.monotonic() < up:
        time.sleep(slow)
        raise {"a": OSError, "b": RuntimeError}[run.results()["error"]]("it is down")
    return [mlflow.entities.Run(mlflow.entities.RunInfo("1", "1", "u", "RUNNING", 0, 0, "active"), None)]
mlflow.MlflowClient.search_runs = search
mlflow.MlflowClient.get_experiment_by_name = lambda *_: mlflow.entities.Experiment("1", "x", "", "active")
mlflow.MlflowClient.update_run = mlflow.MlflowClient.set_terminated = lambda *_, **__: None
mlflow.MlflowClient.log_batch = lambda _, run_id, metrics=(), **__: calls.extend(it.key for it in metrics)
mlflow.entities.Run.data = mlflow.entities.RunData()
up = time.monotonic() + 600
"""


def test_a_failure_is_a_warning_once_for_each_kind_of_error(tmp_path: Path) -> None:
    code = START + DOWN + "for error in 'aaba':\n    run.put(error=error)\n    time.sleep(0.1)\nrun.put(last=1)"
    warnings = application(code, stage(tmp_path), cwd=tmp_path, check=True).stderr.splitlines()
    assert len(warnings) == 2, warnings
    assert warnings[0] == (
        "The tracker 'mlflow' failed, and lacks records of the run 'run/train/1' in the experiment 'torchx-kfp'; the "
        "results under the tracker base are complete. Further errors of this kind are not shown. OSError: it is down"
    )
    assert warnings[1].endswith("RuntimeError: it is down")
    assert FsspecResultTracker(tmp_path / "base")[RUN] == {"error": "a", "last": 1}


def test_a_server_that_takes_long_to_fail_is_left_alone_for_a_while(tmp_path: Path) -> None:
    code = f"""{START}{DOWN}
slow = 0.3
started = time.monotonic()
run.put(error="a")
took, up = time.monotonic() - started, 0
run.put(early=1)
time.sleep(10 * took)
run.put({{"late": 1, "self": 2, "run_id": 3}})
print(calls)
"""
    assert application(code, stage(tmp_path), cwd=tmp_path, check=True).stdout == "['late', 'self', 'run_id']\n"
