"""Runs on a host from Python: ``submit`` and ``attach``."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.backend.host import KfpHost
from tests.backend.pipelines import small
from tests.facts import says
from torchx_kfp.backend import attach, submit
from torchx_kfp.errors import (
    ArgumentError,
    HostSettingsError,
    StageFailedError,
    UnknownRunError,
    UnsupportedPipelineError,
)
from torchx_kfp.runs.events import Event, RunFinished, RunStarted
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.runs.watch import Watch


class Seen(Watch):
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def test_a_run_is_waited_for(kfp_host: KfpHost) -> None:
    seen = Seen()
    run = submit(small, {"code": "print('hello')"}, host=kfp_host.url, name="first")
    result = run.wait(seen)
    result.raise_for_failure()
    assert (result.run_id, result.state, result["work"].state) == (run.run_id, State.SUCCEEDED, State.SUCCEEDED)
    assert (result.folder, result.link) == (None, f"{kfp_host.url}/#/runs/details/{run.run_id}")
    assert isinstance(seen.events[0], RunStarted)
    assert isinstance(seen.events[-1], RunFinished)
    assert sum(isinstance(event, RunFinished) for event in seen.events) == 1
    again = attach("first", host=kfp_host.url)
    assert [(stage.name, stage.state, stage.pod_name) for stage in again.wait(Watch()).stages] == [
        (stage.name, stage.state, stage.pod_name) for stage in result.stages
    ]


def test_a_run_is_not_waited_for_any_longer(kfp_host: KfpHost, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)"
    run = submit(small, {"code": code}, host=kfp_host.url)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=says(run.run_id, "within 1.5 s", "goes on", ".terminate()")):
        run.wait(Watch(), timeout=1.5)
    assert 1.5 <= time.monotonic() - begun < 60
    go.touch()
    assert run.wait(Watch(), timeout=60).state is State.SUCCEEDED


def test_a_failed_run_raises_with_the_last_lines(kfp_host: KfpHost, capsys: pytest.CaptureFixture[str]) -> None:
    run = submit(small, {"code": "import sys; print('no data'); sys.exit(3)"}, host=kfp_host.url)
    with pytest.raises(StageFailedError, match=says(run.run_id, "work", "no data")):
        run.wait().raise_for_failure()
    assert "work" in capsys.readouterr().err, "by default, it says what happens"


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "text"),
    [
        ({}, {}, ArgumentError, ["code"]),
        ({"code": "1"}, {"host": ""}, HostSettingsError, ["No KFP host is given", "TORCHX_KFP_HOST"]),
        ({"code": "1"}, {"hots": "x"}, HostSettingsError, ["'hots'", "'host'"]),
        ({"code": "1", "other": 2}, {}, ArgumentError, ["other"]),
    ],
)
def test_what_cannot_be_submitted(
    kfp_host: KfpHost, arguments: dict[str, Any], settings: dict[str, Any], error: type[Exception], text: list[str]
) -> None:
    with pytest.raises(error, match=says(*text)):
        submit(small, arguments, **{"host": kfp_host.url, **settings})
    assert not kfp_host.count("/runs", "POST")


def test_a_pipeline_that_would_fail_is_not_submitted(kfp_host: KfpHost) -> None:
    from tests.backend.test_run import tracked

    with pytest.raises(UnsupportedPipelineError, match=says("results", "lost with the pod", "s3://")):
        submit(tracked, {"tracker_base": "results"}, host=kfp_host.url)
    with pytest.raises(UnknownRunError, match=says("'nope'")):
        attach("nope", host=kfp_host.url)


def test_credentials_that_are_not_sent_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_KFP_HOST", "https://a.example.com")
    monkeypatch.setenv("TORCHX_KFP_EXISTING_TOKEN", "hidden")
    with pytest.warns(UserWarning, match=says("https://a.example.com", "http://127.0.0.1:1")) as caught:
        attach("f19b6e98-51e7-4b62-ae0c-601f7270d2b4", host="http://127.0.0.1:1")
    [warning] = caught
    assert warning.filename == __file__
    assert "hidden" not in str(warning.message)
