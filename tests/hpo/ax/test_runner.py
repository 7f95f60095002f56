"""A trial's component, the keys of its results, its outcome and its status; and what is said if one is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torchx.runner import Runner
from torchx.specs import AppState, AppStatus
from urllib3.exceptions import HTTPError

from tests.facts import says
from tests.hpo.ax import components
from tests.hpo.ax.components import runner_of
from tests.modules import needs
from torchx_kfp.errors import AppDefError, HostUnreachableError, NotRecordedError
from torchx_kfp.tracking import FsspecResultTracker, current_run

pytestmark = [needs("ax", "needs Ax, which `make test-ax` installs"), pytest.mark.ax]

HANDLE = "local_cwd://torchx/trial-1"


def stored(base: object, handle: str = HANDLE) -> dict[str, str]:
    """Return what Ax stores of a trial."""
    return {"torchx_app_handle": handle, "torchx_tracker_base": str(base)}


def outcome_of(base: object, handle: str) -> Any:
    from torchx_kfp.hpo.ax import TorchXMetric

    return TorchXMetric("loss").fetch(0, stored(base, handle))


@pytest.mark.usefixtures("torchx_of_its_own")
def test_a_component_gets_parameters_constants_and_what_it_takes_of_the_trial(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def component(lr: float, *, data: str, tracker_base: str, layers: int = 1, **others: Any) -> Any:
        seen.update(locals())
        return components.quadratic(1)

    runner_of(component, tmp_path, constants={"data": "here"}).run_trial(3, {"lr": 0.1, "width": 4})
    assert seen == {
        "lr": 0.1,
        "data": "here",
        "tracker_base": str(tmp_path),
        "layers": 1,
        "others": {"width": 4},
        "seen": seen,
    }


@pytest.mark.usefixtures("torchx_of_its_own")
def test_a_component_that_does_not_fit_says_so(tmp_path: Path) -> None:
    for parameters, constants in (({"y": 1}, {}), ({"x": 1}, {"scal": 2}), ({"x": 1}, {"x": 2}), ({}, {})):
        with pytest.raises(TypeError, match=says("quadratic()")):
            runner_of(components.quadratic, tmp_path, constants=constants).run_trial(3, parameters)


def test_a_loaded_runner_knows_its_trials_and_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchx_kfp.hpo.ax import TorchXRunner

    monkeypatch.chdir(tmp_path)
    runner = runner_of(components.quadratic, "base", cfg={"log_dir": object()}, constants={"scale": object()})
    stored = TorchXRunner.serialize_init_args(runner)
    # Another process may have another folder.
    assert stored == {"tracker_base": str(tmp_path / "base"), "scheduler": "local_cwd"}
    loaded = TorchXRunner(**TorchXRunner.deserialize_init_args(stored))
    with pytest.raises(AppDefError, match=says("configure_runner(TorchXRunner(component")):
        loaded.run_trial(0, {"x": 1})
    assert runner.clone()._component is runner._component


@pytest.mark.parametrize(
    ("state", "status"),
    [
        *[(state, "RUNNING") for state in ("UNSUBMITTED", "SUBMITTED", "PENDING", "RUNNING", "UNKNOWN")],
        ("SUCCEEDED", "COMPLETED"),
        ("FAILED", "FAILED"),
        ("CANCELLED", "ABANDONED"),
        (None, "FAILED"),
    ],
)
def test_states_of_apps_are_statuses_of_trials(state: str | None, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "status", lambda *_: state and AppStatus(AppState[state]))
    assert runner_of(components.quadratic).poll_trial(0, stored("base")).name == status


def test_a_trial_goes_on_if_its_scheduler_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [HostUnreachableError("no route"), HTTPError("no route"), ConnectionError("no route"), KeyError("no host")]

    def status(*_: object) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(Runner, "status", status)
    for _ in errors[:3]:
        caplog.clear()
        assert runner_of(components.quadratic).poll_trial(3, stored("base")).name == "RUNNING"
        assert re.search(says("trial 3", "no route"), caplog.text)
    with pytest.raises(KeyError):
        runner_of(components.quadratic).poll_trial(3, stored("base"))


@pytest.mark.parametrize(
    ("handle", "job"),
    [
        (HANDLE, HANDLE),
        # TORCHX_JOB_ID on these schedulers has not got what the handle has before the app's name.
        ("kubernetes://torchx/team:trial-1", "kubernetes://torchx/trial-1"),
        ("aws_batch://torchx/queue:trial-1", "aws_batch://torchx/trial-1"),
        ("gcp_batch://torchx/project:region:trial-1", "gcp_batch://torchx/trial-1"),
        ("ray://torchx/127.0.0.1:8265-trial-1", "ray://torchx/trial-1"),
        ("slurm://torchx/1234", "slurm://torchx/1234"),
    ],
)
def test_results_are_found_under_the_job_id_that_the_app_has(handle: str, job: str, tmp_path: Path) -> None:
    current_run({"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": job}).put(loss=1)
    assert outcome_of(tmp_path, handle) == (0, 1.0)


def test_the_latest_attempt_on_kfp_counts(tmp_path: Path) -> None:
    for pod, loss in (("b", 1.0), ("a", 2.0)):
        run = current_run({"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": f"uuid/trial/{pod}"})
        run.log(7, loss=loss + 1)
        run.flush()
        assert outcome_of(tmp_path, "kfp://torchx/uuid") == (7, loss + 1), "it has only logged so far"
        run.put(loss=loss)
        assert outcome_of(tmp_path, "kfp://torchx/uuid") == (7, loss)
    with pytest.raises(NotRecordedError, match=says("kfp://torchx/other", str(tmp_path), "current_run().put(loss")):
        outcome_of(tmp_path, "kfp://torchx/other")


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ({"loss": 3}, 3.0),
        ({"loss": True}, 1.0),
        ({"loss/mean": 3, "loss/sem": 0.5}, (3.0, 0.5)),
        ({"loss/mean": 3}, 3.0),
        ({"loss": 1.0, "loss/mean": 3, "loss/sem": 0.5}, 1.0),
        ({}, [HANDLE, "'loss'", "current_run().put(loss=...)"]),
        ({"los": 1.0, "b": 2}, ["'loss'", "Did you mean 'los'?", "'los', 'b'"]),
        ({"loss/sem": 1.0}, ["'loss'", "'loss/sem'"]),
        ({"loss": "low"}, ["'low'", "'loss'", "number"]),
        ({"loss": float("nan")}, ["nan", "'loss'", "finite"]),
        ({"loss/mean": 1.0, "loss/sem": float("inf")}, ["inf", "'loss/sem'"]),
    ],
)
def test_outcomes_are_floats(results: Any, outcome: Any, tmp_path: Path) -> None:
    if results:
        FsspecResultTracker(tmp_path)[HANDLE] = results
    if isinstance(outcome, list):
        with pytest.raises(NotRecordedError, match=says(*outcome)):
            outcome_of(tmp_path, HANDLE)
        return
    _, found = outcome_of(tmp_path, HANDLE)
    assert found == outcome
    assert {type(value) for value in (found if isinstance(found, tuple) else (found,))} == {float}
