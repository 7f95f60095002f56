"""TorchX's runner with the scheduler: AppDefs as requests, run options, and what a run tells of its app."""

# Annotations are not postponed: kfp reads them as types.

import copy
import dataclasses
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl
from torchx import specs
from torchx.components import dist, utils
from torchx.runner import Runner
from torchx.schedulers.api import Stream

from tests.execution.host.calling import wait_until
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp import task_from_app
from torchx_kfp.entrypoints.scheduler.runopts import configured_options
from torchx_kfp.errors import (
    AppDefError,
    ArgumentError,
    TorchxKfpError,
)
from torchx_kfp.host import submit
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = pytest.mark.versions

BASE = "s3://bucket/results"
Dryrun = Callable[..., Any]


def echo(**variables: str) -> specs.AppDef:
    app = utils.echo(msg="hi", image="example.com/app:1")
    app.roles[0].env.update(variables)
    return app


def command(request: Any) -> list[str]:
    """Return the command of the request's one stage."""
    (executor,) = yaml.safe_load(request.prepared.pipeline.text.split("\n---\n")[0])["deploymentSpec"][
        "executors"
    ].values()
    return executor["container"]["command"]


def read(runner: Runner, text: str) -> dict[str, Any]:
    """Return the options of ``-cfg``."""
    return runner.scheduler_run_opts("kfp").cfg_from_str(text)


@pytest.fixture
def dryrun(runner: Runner) -> Dryrun:
    """A dry run by TorchX's own runner, with the options as a text or as a dict; returns the request."""

    def run(app: specs.AppDef, cfg: str | dict[str, Any] = "", **more: Any) -> Any:
        cfg = read(runner, cfg) if isinstance(cfg, str) else cfg
        return runner.dryrun(app, "kfp", cfg, **more).request

    return run


def test_an_untracked_app_is_exactly_its_command(dryrun: Dryrun) -> None:
    request = dryrun(echo())
    assert command(request) == ["echo", "hi"]
    assert request.prepared.arguments == {}
    assert "TORCHX_" not in request.prepared.pipeline.text
    assert "\n  name: echo\n" in request.prepared.pipeline.text


def test_two_sessions_of_torchx_make_the_same_request(dryrun: Dryrun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nightly puts the id of its session into the roles, which would defeat KFP's cache."""
    first = dryrun(echo(), {"tracker_base": BASE})
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "another")
    if (session := sys.modules.get("torchx.util.session")) is not None:
        monkeypatch.setattr(session, "CURRENT_SESSION_ID", None, raising=False)
    assert str(dryrun(echo(), {"tracker_base": BASE})) == str(first)


def test_a_parent_run_is_read(dryrun: Dryrun) -> None:
    app = echo(TORCHX_JOB_ID="kfp://torchx/${app_id}", MINE="1")
    request = dryrun(app, {"tracker_base": BASE}, parent_run_id="run/train/1")
    assert request.prepared.arguments == {"tracker_base": BASE}
    words = " ".join(command(request))
    assert "run/train/1" in words
    assert "TORCHX_PARENT_RUN_IDS" in words
    assert "kfp://torchx" not in words
    # The app of the caller stays as TorchX has left it: some versions copy it first.
    assert app.roles[0].env.get("TORCHX_PARENT_RUN_ID", "run/train/1") == "run/train/1"
    assert app.roles[0].env["MINE"] == "1"
    with pytest.raises(AppDefError, match=says("run/train/1", "--parent_run_id", "-cfg tracker_base=")):
        dryrun(echo(), parent_run_id="run/train/1")


def test_configured_trackers_get_the_records_or_are_named(
    dryrun: Dryrun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHX_TRACKERS", "mlflow,torchx_kfp,other")
    monkeypatch.setenv("TORCHX_TRACKER_MLFLOW_CONFIG", "http://mlflow:5000")
    words = command(dryrun(echo(), {"tracker_base": BASE}))
    assert "TORCHX_TRACKERS=torchx_kfp,mlflow,other" in words
    assert "TORCHX_TRACKER_MLFLOW_CONFIG=http://mlflow:5000" in words
    caplog.clear()
    assert command(dryrun(echo())) == ["echo", "hi"]
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert re.search(says("mlflow", "-cfg tracker_base="), warning)


@pytest.mark.parametrize(("count", "engine"), [(1, "job"), (2, "jobset")])
def test_several_replicas_or_roles_need_an_engine(dryrun: Dryrun, count: int, engine: str) -> None:
    app = echo()
    app.roles = [dataclasses.replace(app.roles[0], name=f"role{number}", num_replicas=2) for number in range(count)]
    with pytest.raises(AppDefError, match=says("engine", f"-cfg engine={engine}")):
        dryrun(copy.deepcopy(app))
    assert all(f"role{number}" in str(dryrun(app, {"engine": engine})) for number in range(count))
    # The nightly has renamed it.
    ddp = getattr(dist, "torchrun", dist.ddp)
    trained = ddp("--epochs", "2", script="train.py", image="example.com/app:1", j="2x4")
    assert "torchrun" in str(dryrun(trained, {"engine": engine}))


# Options


def test_all_options_are_read_and_the_request_is_shown_as_a_file_to_upload(dryrun: Dryrun, runner: Runner) -> None:
    text = (
        "host=https://kfp.example.com:8080/pipeline,namespace=me,tracker_base=s3://bucket/results,experiment=a\nb,name=n,"
        "service_account=runner,pipeline_root=s3://bucket/root,cache=false,engine=jobset,queue=gpus,"
        "secrets=AWS_ACCESS_KEY_ID:s3/accesskey;AWS_SECRET_ACCESS_KEY:s3/secretkey;HF_TOKEN:hf/token"
    )
    request = dryrun(echo(), text)
    comments = [line[2:] for line in str(request).splitlines() if line.startswith("# ") and "=" not in line]
    assert {
        "host: https://kfp.example.com:8080/pipeline",
        "namespace: me",
        "name: n",
        "experiment: a\\nb",
        "service_account: runner",
        "pipeline_root: s3://bucket/root",
        "cache: False",
        f"argument tracker_base: {BASE}",
    } <= {*comments}
    assert [document for document in yaml.safe_load_all(str(request)) if document] == [
        *yaml.safe_load_all(request.prepared.pipeline.text)
    ]
    shown = {part.split("=")[0] for part in text.split(",")}
    assert shown == {name for name, _ in runner.scheduler_run_opts("kfp")}
    for fact in ("gpus", "JobSet", "HF_TOKEN"):
        assert fact in request.prepared.pipeline.text


@pytest.mark.parametrize(
    ("cfg", "facts"),
    [
        ("engine=jobsets", ["engine", "'jobsets'", "'jobset'", "job"]),
        ("queue=gpus", ["queue", "gpus", "-cfg engine=job"]),
        ("secrets=A:s3", ["secrets", "A", "'s3'", "VARIABLE:secret/key"]),
        ("secrets=A:s3/key;B:s3/key", ["secrets", "'key'", "'s3'", "A and B"]),
    ],
)
def test_wrong_options_are_refused(dryrun: Dryrun, cfg: str, facts: list[str]) -> None:
    with pytest.raises(TorchxKfpError, match=says(*facts)):
        dryrun(echo(), cfg)


# What a run tells of its app


@pytest.fixture
def host(runner: Runner, host: KfpHost, monkeypatch: pytest.MonkeyPatch) -> KfpHost:
    """The host of a user who has named it; stages run in the folder of the runner."""
    monkeypatch.setenv("TORCHX_KFP_HOST", host.url)
    return host


def app_of(**of_role: Any) -> specs.AppDef:
    role = specs.Role("trainer", "example.com/app:1", entrypoint="true", args=["--rate", "0.1"])
    return specs.AppDef("Train it", [dataclasses.replace(role, **of_role)])


def roles(runner: Runner, handle: str) -> dict[str, int]:
    """Return the roles of an app, with their numbers of replicas."""
    described = runner.describe(handle)
    assert described
    return {role.name: role.num_replicas for role in described.roles}


def test_an_app_has_its_roles_for_other_processes(new_runner: Callable[[], Runner], host: KfpHost) -> None:
    one = new_runner().run(app_of(), "kfp", {})
    assert roles(new_runner(), one) == {"trainer": 1}
    several = app_of(num_replicas=3)
    several.roles.append(dataclasses.replace(several.roles[0], name="reader", num_replicas=1))
    assert roles(new_runner(), new_runner().run(several, "kfp", {"engine": "jobset"})) == {"trainer": 3, "reader": 1}


def test_a_run_that_torchx_has_not_submitted_has_a_role_for_each_stage(runner: Runner, host: KfpHost) -> None:
    @dsl.container_component
    def show(text: str):
        return dsl.ContainerSpec(image="busybox", command=["echo"], args=[text, "--again", text])

    @dsl.pipeline(name="inner")
    def inner(word: str) -> None:
        show(text=word)

    @dsl.pipeline(name="other")
    def other(word: str = "default", more: str = "more") -> None:
        first = show(text=word)
        inner(word=more).after(first)
        with dsl.ParallelFor(["a", "b"]) as item:
            task_from_app(app_of(args=[item]))

    run = submit(other, {"more": "m"}, host=host.url)
    assert roles(runner, f"kfp://torchx/{run.run_id}") == {"show": 1, "inner/show": 1, "train-it": 1}


def test_the_failure_of_a_distributed_stage_is_not_that_of_its_replicas(runner: Runner, host: KfpHost) -> None:
    failing = app_of(entrypoint="sh", args=["-c", "exit 3"], num_replicas=2, max_retries=0)
    status = runner.wait(runner.run(failing, "kfp", {"engine": "job"}), wait_interval=0.1)
    assert status
    assert status.state == specs.AppState.FAILED
    assert re.search(says("train-it", "exit code 3"), status.msg)
    [role] = status.roles
    found = [(replica.state, replica.hostname) for replica in role.replicas]
    assert (role.role, found) == ("trainer", [(specs.ReplicaState.UNKNOWN, "")] * 2)


def test_replicas_have_their_own_lines(runner: Runner, host: KfpHost) -> None:
    code = "import os; print('I am', os.environ['TORCHX_REPLICA_ID'])"
    handle = runner.run(app_of(entrypoint="python", args=["-c", code], num_replicas=2), "kfp", {"engine": "job"})
    status = runner.wait(handle, wait_interval=0.1)
    assert status
    [role] = status.roles
    assert [replica.state for replica in role.replicas] == [specs.ReplicaState.SUCCEEDED] * 2
    assert "I am 0\n" in runner.log_lines(handle, "trainer", 0), "among the launcher's own"
    assert [*runner.log_lines(handle, "trainer", 1)] == ["I am 1\n"]


@pytest.mark.skipif(not hasattr(dsl, "TaskConfig"), reason="kfp 2.15 and newer have dsl.TaskConfig")
def test_what_the_version_of_the_host_refuses_is_not_submitted(runner: Runner, host: KfpHost) -> None:
    host.set_version("2.14.4")
    app = app_of(entrypoint="true", num_replicas=2)
    with pytest.raises(ValueError, match=says("fails on KFP", "KFP before 2.15", "nothing was submitted")):
        runner.run(app, "kfp", {"engine": "job"})
    assert not host.runs


def test_an_app_is_followed_listed_and_canceled(runner: Runner, host: KfpHost) -> None:
    code = "import time; print('one', end='', flush=True); time.sleep(1); print(' 1'); print('trainer/0 | two')"
    ended = runner.run(app_of(entrypoint="python", args=["-c", code]), "kfp", {"name": "my try"})
    assert list(runner.log_lines(ended, "trainer", should_tail=True)) == ["one 1\n", "trainer/0 | two\n"]
    assert list(runner.log_lines(ended, "trainer", regex="t.o")) == ["trainer/0 | two\n"]
    runner.wait(ended, wait_interval=0.1)
    runner.cancel(ended)
    assert host.count(":terminate") == 0, "it has ended"
    waits = runner.run(app_of(entrypoint="sleep", args=["100"]), "kfp")
    wait_until(lambda: (status := runner.status(waits)) and status.state == specs.AppState.RUNNING)
    # The nightly has both.
    for end in (getattr(runner, "delete", runner.cancel), runner.cancel):
        end(waits)
        status = runner.wait(waits, wait_interval=0.1)
        assert status
        assert (status.state, status.msg) == (specs.AppState.CANCELLED, "ended by a request to KFP")
    assert host.count(":terminate", "POST") == 1
    listed = {it.app_handle: it.state for it in runner.list("kfp")}
    assert listed == {ended: specs.AppState.SUCCEEDED, waits: specs.AppState.CANCELLED}


def test_an_app_role_or_log_that_is_not_there(runner: Runner, host: KfpHost) -> None:
    for unknown in ("12345678-1234-1234-1234-123456789012", "echo-x7f2", "latest"):
        assert runner.describe(f"kfp://torchx/{unknown}") is None
        assert runner.status(f"kfp://torchx/{unknown}") is None
    handle = runner.run(app_of(), "kfp")
    runner.wait(handle, wait_interval=0.1)
    for role, number, facts in (
        ("trianer", 0, ["'trianer/0'", "'trainer/0'?"]),
        ("trainer", 3, ["'trainer/3'", "trainer/0"]),
    ):
        with pytest.raises(ArgumentError, match=says(*facts)):
            runner.log_lines(handle, role, number)
    with pytest.raises(ValueError, match=says("stdout and stderr in one log", "'stderr'")):
        runner.log_lines(handle, "trainer", 0, streams=Stream.STDERR)


@pytest.mark.s3
def test_results_and_the_workspace_are_under_the_tracker_base(
    runner: Runner, host: KfpHost, s3_base: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Path("code").mkdir()
    Path("code/travelling.py").write_text("from torchx_kfp.tracking import current_run; current_run().put(loss=0.5)")
    app = utils.python(m="travelling", image="example.com/app:1")
    request = runner.dryrun(app, "kfp", {"tracker_base": s3_base}, workspace="code").request
    assert f"# workspace {Path('code').resolve()}: {s3_base}/.torchx_kfp/workspaces/" in str(request)
    assert FsspecResultTracker(s3_base).store.list_files(".torchx_kfp") == []
    for said in ("stored", "already stored"):
        handle = runner.run(app, "kfp", {"tracker_base": s3_base, "cache": False}, workspace="code")
        status = runner.wait(handle, wait_interval=0.1)
        assert status
        assert status.state == specs.AppState.SUCCEEDED
        assert [*dict(FsspecResultTracker(s3_base).items(handle.rpartition("/")[2])).values()] == [{"loss": 0.5}]
        assert said in caplog.text


def test_torchxs_default_workspace_is_not_sent(dryrun: Dryrun, caplog: pytest.LogCaptureFixture) -> None:
    """TorchX gives the current folder if nothing is said, which may be anybody's home."""
    caplog.set_level(logging.INFO)
    Path("id_rsa").touch()
    request = dryrun(echo(), {"tracker_base": BASE}, workspace=f"file://{Path.cwd()}")
    assert re.search(says(str(Path.cwd()), "is not sent", "--workspace ."), caplog.text)
    assert "# workspace" not in str(request)
    with pytest.raises(ArgumentError, match=says("'id_rsa'")):
        dryrun(echo(), {"tracker_base": BASE}, workspace=".")
    with pytest.raises(AppDefError, match=says("workspace", "-cfg tracker_base=s3://", "--workspace ''")):
        dryrun(echo(), workspace=".")


def test_the_first_torchxconfig_goes_before_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / name for name in ("first", "second", "none")]
    monkeypatch.setattr("torchx.runner.config.DEFAULT_CONFIG_DIRS", [str(folder) for folder in folders])
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    for folder, lines in zip(
        folders, ("host = a\nnamespace = None", "host = b\nnamespace = n\nqueue = q"), strict=False
    ):
        folder.mkdir()
        (folder / ".torchxconfig").write_text(f"[kfp]\n{lines}\n")
    assert configured_options() == {"host": "a"}
    (folders[0] / ".torchxconfig").write_text("[local_cwd]\nhost = c\n")
    assert configured_options() == {"host": "b", "namespace": "n"}
