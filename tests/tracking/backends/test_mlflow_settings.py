"""What the tracker on MLflow refuses before it sends anything; no server is needed."""

from __future__ import annotations

import pytest
from torchx.tracker.api import build_trackers

from tests.facts import says
from tests.modules import needs
from torchx_kfp.errors import TrackerError

pytestmark = needs("mlflow", "the group `dev` has MLflow")


@pytest.mark.parametrize("config", [None, ""])
def test_without_a_tracking_uri(config: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(TrackerError, match=says('"mlflow"', "stage", "MLFLOW_TRACKING_URI", "trackers=")):
        build_trackers({"mlflow": config})


def test_a_tracking_uri_without_a_protocol() -> None:
    with pytest.raises(TrackerError, match=says("'localhost:5000'", "protocol", "'http://localhost:5000'")):
        build_trackers({"mlflow": "localhost:5000"})
