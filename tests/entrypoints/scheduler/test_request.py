"""AppDefs as requests: the variables of TorchX's runner go, trackers and a parent run become those of the stage."""

from __future__ import annotations

import copy
import gc
import logging
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from torchx import specs
from torchx.components import dist, utils
from torchx.runner import Runner

from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.entrypoints.scheduler import create_scheduler
from torchx_kfp.entrypoints.scheduler.app_run import roles_by_stage
from torchx_kfp.entrypoints.scheduler.request import Request, make_request, without_runner_variables
from torchx_kfp.entrypoints.scheduler.runopts import Options
from torchx_kfp.errors import AppDefError, ReadsError, UnsupportedPipelineError
from torchx_kfp.execution.host.run import HostRun
from torchx_kfp.execution.host.settings import Submission
from torchx_kfp.execution.pipeline.load import pipeline_from_text
from torchx_kfp.execution.runs.prepared_run import PreparedRun

pytestmark = pytest.mark.versions

BASE = "s3://bucket/results"


def echo(**variables: str) -> specs.AppDef:
    app = utils.echo(msg="hi", image="example.com/app:1")
    app.roles[0].env.update(variables)
    return app


def words(request: Request) -> list[str]:
    """Return the command of the request's one stage."""
    (executor,) = yaml.safe_load(request.pipeline.split("\n---\n")[0])["deploymentSpec"]["executors"].values()
    return executor["container"]["command"]


@pytest.fixture
def dryrun(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dry run by TorchX's own runner, in a folder and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHX_PARENT_RUN_ID", "TORCHX_TRACKERS"):
        monkeypatch.delenv(name, raising=False)

    def run(app: specs.AppDef, cfg: Mapping[str, Any], **more: Any) -> Request:
        runner = Runner("torchx", {"kfp": create_scheduler})
        return runner.dryrun(app, "kfp", cfg, **more).request

    return run


def test_an_untracked_app_is_exactly_its_command(dryrun: Any) -> None:
    request = dryrun(echo(), {})
    assert words(request) == ["echo", "hi"]
    assert request.arguments == {}
    assert "TORCHX_" not in request.pipeline
    assert pipeline_from_text(request.pipeline).name == "echo"


def test_two_sessions_of_torchx_make_the_same_request(dryrun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nightly puts the id of its session into the roles, which would defeat KFP's cache."""
    first = dryrun(echo(), {"tracker_base": BASE})
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "another")
    if (session := sys.modules.get("torchx.util.session")) is not None:
        monkeypatch.setattr(session, "CURRENT_SESSION_ID", None, raising=False)
    assert dryrun(echo(), {"tracker_base": BASE}) == first


def test_the_app_of_the_caller_stays_as_it_is() -> None:
    app = echo(TORCHX_JOB_ID="kfp://torchx/${app_id}", MINE="1")
    before = copy.deepcopy(app)
    made, *_ = without_runner_variables(app)
    assert app == before
    assert made.roles[0].env == {"MINE": "1"}


def test_a_parent_run_is_read(dryrun: Any) -> None:
    request = dryrun(echo(), {"tracker_base": BASE}, parent_run_id="run/train/1")
    assert request.arguments == {"tracker_base": BASE}
    assert "run/train/1" in " ".join(words(request))
    assert "TORCHX_PARENT_RUN_IDS" in " ".join(words(request))


def test_a_parent_run_needs_a_tracker_base(dryrun: Any) -> None:
    with pytest.raises(ReadsError, match=says("run/train/1", "--parent_run_id", "-cfg tracker_base=")):
        dryrun(echo(), {}, parent_run_id="run/train/1")


def test_configured_trackers_get_the_records(dryrun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_TRACKERS", "mlflow,torchx_kfp,other")
    monkeypatch.setenv("TORCHX_TRACKER_MLFLOW_CONFIG", "http://mlflow:5000")
    command = words(dryrun(echo(), {"tracker_base": BASE}))
    assert "TORCHX_TRACKERS=torchx_kfp,mlflow,other" in command
    assert "TORCHX_TRACKER_MLFLOW_CONFIG=http://mlflow:5000" in command


def test_trackers_of_an_untracked_app_are_named(
    dryrun: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHX_TRACKERS", "mlflow")
    assert words(dryrun(echo(), {})) == ["echo", "hi"]
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "mlflow" in warning
    assert "-cfg tracker_base=" in warning


@pytest.mark.parametrize(("roles", "engine"), [(1, "job"), (2, "jobset")])
def test_several_replicas_or_roles_need_an_engine(dryrun: Any, roles: int, engine: str) -> None:
    app = echo()
    app.roles = [copy.deepcopy(app.roles[0]) for _ in range(roles)]
    for number, role in enumerate(app.roles):
        role.name, role.num_replicas = f"role{number}", 2
    with pytest.raises(AppDefError, match=says("engine", f"-cfg engine={engine}")):
        dryrun(app, {})
    request = dryrun(app, {"engine": engine})
    [stage] = roles_by_stage(pipeline_from_text(request.pipeline), {}).values()
    assert [(role.name, role.num_replicas) for role in stage.roles] == [(f"role{number}", 2) for number in range(roles)]


def test_ddp_of_torchx_runs_with_an_engine(dryrun: Any) -> None:
    # The nightly has renamed it.
    ddp = getattr(dist, "torchrun", dist.ddp)
    request = dryrun(ddp("--epochs", "2", script="train.py", image="example.com/app:1", j="2x4"), {"engine": "job"})
    [stage] = roles_by_stage(pipeline_from_text(request.pipeline), {}).values()
    assert stage.replicas == ["train/0", "train/1"]
    assert "torchrun" in " ".join([stage.roles[0].entrypoint, *stage.roles[0].args])


@pytest.mark.parametrize("base", ["results", "/mnt/results", "file:///mnt/results", "memory://results"])
def test_a_base_that_pods_do_not_reach_is_refused(dryrun: Any, base: str) -> None:
    with pytest.raises(UnsupportedPipelineError, match=says(base, "s3://bucket/results", "nothing was submitted")):
        dryrun(echo(), {"tracker_base": base})


def test_secrets_are_variables(dryrun: Any) -> None:
    request = dryrun(echo(), {"tracker_base": BASE, "secrets": "AWS_ACCESS_KEY_ID:s3/accesskey"})
    [platform] = yaml.safe_load(request.pipeline.split("\n---\n")[1])["platforms"]["kubernetes"]["deploymentSpec"][
        "executors"
    ].values()
    [secret] = platform["secretAsEnv"]
    assert secret["secretName"] == "s3"
    assert secret["keyToEnv"] == [{"envVar": "AWS_ACCESS_KEY_ID", "secretKey": "accesskey"}]


def test_the_request_is_shown_as_a_file_to_upload() -> None:
    submission = Submission(experiment="a\nb", cache=False)
    request = make_request(echo(), Options({"host": "http://kfp"}, submission, tracker_base=BASE))
    lines = str(request).splitlines()
    assert lines[:4] == [
        "# host: http://kfp",
        "# experiment: a\\nb",
        "# cache: False",
        f"# argument tracker_base: {BASE}",
    ]
    assert pipeline_from_text(str(request)).name == "echo"


def test_no_scheduler_keeps_requests_or_runs_that_have_ended(host: KfpHost, monkeypatch: pytest.MonkeyPatch) -> None:
    app = specs.AppDef("app", [specs.Role("main", "i", entrypoint="sh", args=["-c", "exit 0"])])
    first, second = (Runner("torchx", {"kfp": create_scheduler}) for _ in range(2))
    handle = first.schedule(second.dryrun(app, "kfp", {"host": host.url}))
    monkeypatch.setenv("TORCHX_KFP_HOST", host.url)
    status = first.wait(handle, wait_interval=0.1)
    assert status is not None
    assert status.state == specs.AppState.SUCCEEDED
    gc.collect()
    assert not [kept for kept in gc.get_objects() if isinstance(kept, (PreparedRun, HostRun))]
