"""Runs from Python, and the findings before they are submitted: KFP's refusals, bases that pods cannot reach."""

import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.execution.host.pipelines import small
from tests.execution.host.scripted import Reply, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Program
from tests.watching import Heard
from torchx_kfp import Stages, engines, task_from_app
from torchx_kfp.errors import (
    PipelineError,
    StageFailedError,
)
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.host.submission import check_submission
from torchx_kfp.execution.model.versions import Version
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.host import attach, connect, submit
from torchx_kfp.local import Event, RunFinished, RunStarted, State, Watch

LOCAL = "http://localhost:9000"
#: A host that takes every run.
TAKEN = {"run_id": "00000000-0000-0000-0000-000000000001", "experiment_id": "1"}


def task(name: str, base: Any, secret: bool = False, **env: str) -> Any:
    app = AppDef(name, roles=[Role("role", image="x", entrypoint="true", env=env)])
    return task_from_app(app, tracker_base=base, **({"secrets": {"s3": {"key": "KEY"}}} if secret else {}))


def refusal(pipeline: Any, **arguments: object) -> str:
    """Return why the pipeline is not submitted; empty if it is."""
    why = ""
    with scripted(lambda request: Reply(TAKEN)) as server:
        try:
            submit(pipeline, arguments, host=server.url)
        except PipelineError as error:
            why = str(error)
        assert any(request.method == "POST" for request in server.requests) is not bool(why)
    assert not why or "nothing was submitted" in why
    return why


@dsl.pipeline(name="one")
def one(tracker_base: str):
    task("train", tracker_base)


@pytest.mark.parametrize(
    ("base", "fact"),
    [
        *((base, "") for base in ("s3://bucket/results", "gs://bucket", "hdfs://namenode:9000/x", "az://c/x")),
        ("results", "lost with the pod"),
        ("./results", "lost with the pod"),
        ("file:results", "lost with the pod"),
        ("/tmp/results", "not on a volume"),
        ("file:///tmp/results", "not on a volume"),
        ("memory://results", "memory"),
        ("webhdfs://localhost:9870/x", "not this machine"),
        ("ftp://127.0.0.1/x", "not this machine"),
        ("http://[::1]:80/x", "not this machine"),
    ],
)
def test_a_base_that_pods_do_not_reach_is_refused(base: str, fact: str) -> None:
    why = refusal(one, tracker_base=base)
    way_out = "the server's address in the cluster" if "not this" in fact else "s3://bucket/results"
    assert re.search(says("'one'", "task 'train'", repr(base), fact, way_out) if fact else "^$", why), why


@pytest.mark.parametrize(
    ("path", "reached"), [("/mnt", True), ("/mnt/results/", True), ("/mnt/results/runs", False), ("/mnt/res", False)]
)
def test_a_volume_claim_at_the_base_or_above_it_is_reached(path: str, reached: bool) -> None:
    @dsl.pipeline
    def pipeline(base: str = "/mnt/results"):
        kubernetes.mount_pvc(task("train", base), "claim", path)

    assert bool(refusal(pipeline)) is not reached


def test_the_check_reads_the_settings_of_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"tracker_base": "/mnt/results/team"}
    folder = {"storage_folder": "/mnt/results"}
    with scripted(lambda request: Reply(TAKEN)) as server:
        submit(one, arguments, host=connect(server.url, **folder))
        monkeypatch.setenv("TORCHX_KFP_STORAGE_FOLDER", "/mnt/results")
        monkeypatch.setenv("TORCHX_KFP_HOST", "https://other.example.com")
        # The settings of another host are not used, and not for the check.
        with pytest.warns(UserWarning, match=f"are not used for {server.url}.$"):
            host = connect(server.url)
        with pytest.raises(PipelineError, match="lost with the pod"):
            submit(one, arguments, host=host)


def test_each_stage_needs_a_volume_that_lasts() -> None:
    @dsl.pipeline
    def pipeline(base: str = "/mnt/results"):
        kubernetes.mount_pvc(task("train", base), "claim", "/mnt")
        task("evaluate", base)
        kubernetes.empty_dir_mount(task("scratch", base), "scratch", "/mnt")

    why = refusal(pipeline)
    assert re.search(says("task 'evaluate'", "scratch"), why)
    assert "train" not in why
    assert why.count("'/mnt/results'") == 1, "one base of several stages is said once"


def test_a_server_of_s3_on_this_machine_is_refused() -> None:
    @dsl.pipeline
    def pipeline(base: str = "s3://bucket"):
        task("train", base, AWS_ENDPOINT_URL=LOCAL)

    assert re.search(says("task 'train'", "AWS_ENDPOINT_URL", LOCAL, "seaweedfs.kubeflow"), refusal(pipeline))


def test_a_server_of_s3_that_only_this_process_uses_is_a_warning(call: Program, tmp_path: Path) -> None:
    @dsl.pipeline
    def elsewhere(base: str = "s3://bucket"):
        task("own", base, AWS_ENDPOINT_URL="http://seaweedfs.kubeflow:9000")
        task("secret", base, secret=True)

    compiler.Compiler().compile(one, str(tmp_path / "one.yaml"))
    compiler.Compiler().compile(elsewhere, str(tmp_path / "elsewhere.yaml"))
    with scripted(lambda request: Reply(TAKEN)) as server:
        program = replace(call, variables={"TORCHX_KFP_HOST": server.url})

        def said(file: str, *words: str, **environ: str) -> str:
            nowhere = dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL"), "")
            done = program("submit", file, *words, **{**nowhere, **environ})
            assert done.returncode == 0, done.stderr
            return done.stderr

        base = ("--tracker-base", "s3://bucket")
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL"):
            facts = says("Warning: ", "task 'train'", f"{name}={LOCAL}", f"TORCHX_KFP_STORAGE_VARIABLES={name}=")
            assert re.search(facts, said("one.yaml", *base, **{name: LOCAL}))
        assert "Warning" not in said("one.yaml", *base, AWS_ENDPOINT_URL="http://minio.example.com:9000")
        assert "Warning" not in said("one.yaml", "--tracker-base", "gs://bucket", AWS_ENDPOINT_URL=LOCAL)
        assert "Warning" not in said("elsewhere.yaml", AWS_ENDPOINT_URL=LOCAL)


def test_a_run_is_waited_for(kfp_host: KfpHost, tmp_path: Path) -> None:
    events: list[Event] = []
    run = submit(small, {"code": "print('hello')"}, host=kfp_host.url, name="first")
    result = run.wait(Heard(on_event=events.append))
    result.raise_for_failure()
    assert (result.run_id, result.state, result["work"].state) == (run.run_id, State.SUCCEEDED, State.SUCCEEDED)
    assert (result.folder, result.link) == (None, f"{kfp_host.url}/#/runs/details/{run.run_id}")
    assert isinstance(events[0], RunStarted)
    assert [event for event in events if isinstance(event, RunFinished)] == events[-1:]
    again = attach("first", host=kfp_host.url)
    assert [(stage.name, stage.state, stage.pod_name) for stage in again.wait(Watch()).stages] == [
        (stage.name, stage.state, stage.pod_name) for stage in result.stages
    ]
    assert again.logs("work") == "hello\n"
    assert "work" in again.report(tmp_path / "page.html").read_text()


def test_a_run_is_not_waited_for_any_longer(kfp_host: KfpHost, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.1)"
    run = submit(small, {"code": code}, host=kfp_host.url)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=says(run.run_id, "within 1.5 s", "keeps running", "torchx-kfp cancel")):
        run.wait(Watch(), timeout=1.5)
    assert 1.5 <= time.monotonic() - begun < 60
    go.touch()
    assert run.wait(Watch(), timeout=120).state is State.SUCCEEDED


def test_a_failed_run_raises_with_the_last_lines(kfp_host: KfpHost, capsys: pytest.CaptureFixture[str]) -> None:
    run = submit(small, {"code": "import sys; print('no data'); sys.exit(3)"}, host=kfp_host.url)
    with pytest.raises(StageFailedError, match=says(run.run_id, "work", "no data")):
        run.wait().raise_for_failure()
    assert "work" in capsys.readouterr().err, "by default, it says what happens"


def test_credentials_that_are_not_sent_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_KFP_HOST", "https://a.example.com")
    monkeypatch.setenv("TORCHX_KFP_EXISTING_TOKEN", "hidden")
    with pytest.warns(UserWarning, match=says("https://a.example.com", "http://127.0.0.1:1")) as caught:
        attach("f19b6e98-51e7-4b62-ae0c-601f7270d2b4", host="http://127.0.0.1:1")
    [warning] = caught
    assert warning.filename == __file__
    assert "hidden" not in str(warning.message)


def replicas(base: str = "s3://bucket/results", lr: float = 1e-5) -> None:
    role = Role("train", "registry/app:1", entrypoint="echo", args=[f"{lr}"], num_replicas=2)
    Stages(tracker_base=base).task(AppDef("train", [role]), engine=engines.Job())


@pytest.mark.parametrize(
    ("health", "refused"),
    [
        (Reply({"tag_name": "2.14.4"}), True),
        (Reply({"apiServerTagName": "2.14.4", "apiServerReady": True}), True),
        (Reply({"tag_name": "2.17.0"}), False),
        (Reply({"tag_name": "unknown"}), False),
        (Reply({}, 404), False),
    ],
)
def test_the_version_of_the_host_decides(health: Reply, refused: bool) -> None:
    """KFP 2.14 refuses what kfp from 2.15 on writes for a distributed stage."""
    with scripted(lambda request: health if request.path.endswith("/healthz") else Reply(TAKEN)) as server:
        with contextlib.ExitStack() as stack:
            if refused:
                says_it = says("'replicas' fails on KFP", "dsl.TaskConfig", "KFP before 2.15", "kfp<2.15")
                stack.enter_context(pytest.raises(PipelineError, match=says_it))
            submit(dsl.pipeline(replicas), host=server.url)
        assert any(request.method == "POST" for request in server.requests) is not refused


@pytest.mark.parametrize(("version", "store"), [((2, 15), "minio-service"), ((2, 16), "seaweedfs")])
def test_the_store_has_the_name_that_it_has_on_this_version(version: tuple[int, int], store: str) -> None:
    pipeline = load_pipeline(one)
    found = check_submission(
        pipeline, {"tracker_base": "s3://bucket"}, Settings(), {"AWS_ENDPOINT_URL": LOCAL}, version=Version(*version)
    )
    assert [f"AWS_ENDPOINT_URL=http://{store}.kubeflow:9000" in str(each) for each in found] == [True]
