"""What the tracker on MLflow refuses, and what it does without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchx.tracker.api import build_trackers

from tests.facts import says
from tests.modules import needs
from tests.tracking.stages import application, environ
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking import current_run

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
