"""Runs from Python, and the findings before they are submitted: KFP's refusals, bases that pods cannot reach."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.execution.host.pipelines import small
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp import task_from_app
from torchx_kfp.errors import (
    ArgumentError,
    HostSettingsError,
    StageFailedError,
    UnknownRunError,
    UnsupportedPipelineError,
)
from torchx_kfp.execution.host.submission import check_submission, refuse_submission
from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.runs.events import Event, RunFinished, RunStarted
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Watch
from torchx_kfp.host import attach, submit


def task(name: str, base: Any, secret: bool = False, **env: str) -> Any:
    app = AppDef(name, roles=[Role("role", image="x", entrypoint="true", env=env)])
    return task_from_app(app, tracker_base=base, **({"secrets": {"s3": {"key": "KEY"}}} if secret else {}))


def find(pipeline: Any, environ: dict[str, str] | None = None, **arguments: object) -> list[Finding]:
    loaded = load_pipeline(pipeline)
    return check_submission(loaded, complete_arguments(loaded, arguments), environ or {})


@dsl.pipeline(name="one")
def one(tracker_base: str):
    task("train", tracker_base)


@pytest.mark.parametrize("base", ["s3://bucket/results", "gs://bucket", "hdfs://namenode:9000/x", "az://c/x"])
def test_bases_that_pods_reach(base: str) -> None:
    assert find(one, tracker_base=base) == []


@pytest.mark.parametrize(
    ("base", "fact"),
    [
        ("results", "lost with the pod"),
        ("./results", "lost with the pod"),
        ("file:results", "lost with the pod"),
        ("/tmp/results", "no volume"),
        ("file:///tmp/results", "no volume"),
        ("memory://results", "memory"),
        ("webhdfs://localhost:9870/x", "not this machine"),
        ("ftp://127.0.0.1/x", "not this machine"),
        ("http://[::1]:80/x", "not this machine"),
    ],
)
def test_bases_of_this_machine(base: str, fact: str) -> None:
    [finding] = find(one, tracker_base=base)
    assert finding.kind is Kind.FAILS
    way_out = "address that the server has" if "not this" in fact else "s3://bucket/results"
    assert re.search(says("task 'train'", repr(base), fact, way_out), str(finding))
    with pytest.raises(UnsupportedPipelineError, match=says("'one'", "nothing was submitted", str(finding))):
        refuse_submission(load_pipeline(one), [finding])


def test_one_base_of_several_stages_is_said_once() -> None:
    @dsl.pipeline
    def pipeline(base: str = "results"):
        first = task("first", base)
        task("second", base).after(first)

    [finding] = find(pipeline)
    assert re.search(says("task 'first'", "second", "'results'"), str(finding))


@pytest.mark.parametrize(
    ("path", "reached"), [("/mnt", True), ("/mnt/results/", True), ("/mnt/results/runs", False), ("/mnt/res", False)]
)
def test_a_volume_claim_at_the_base_or_above_it(path: str, reached: bool) -> None:
    @dsl.pipeline
    def pipeline(base: str = "/mnt/results"):
        kubernetes.mount_pvc(task("train", base), "claim", path)

    findings = find(pipeline)
    assert [finding.kind for finding in findings] == ([] if reached else [Kind.FAILS])


def test_each_stage_needs_the_volume() -> None:
    @dsl.pipeline
    def pipeline(base: str = "/mnt/results"):
        kubernetes.mount_pvc(task("train", base), "claim", "/mnt")
        task("evaluate", base)

    [finding] = find(pipeline)
    assert finding.place == "task 'evaluate'"


def test_a_volume_that_is_empty_does_not_last() -> None:
    @dsl.pipeline
    def pipeline(base: str = "/mnt/results"):
        kubernetes.empty_dir_mount(task("train", base), "scratch", "/mnt")

    [finding] = find(pipeline)
    assert finding.kind is Kind.FAILS


LOCAL = "http://localhost:9000"


def test_a_server_of_s3_on_this_machine() -> None:
    @dsl.pipeline
    def pipeline(base: str = "s3://bucket"):
        task("train", base, AWS_ENDPOINT_URL=LOCAL)

    [finding] = find(pipeline)
    assert finding.kind is Kind.FAILS
    assert re.search(says("task 'train'", "AWS_ENDPOINT_URL", LOCAL, "seaweedfs.kubeflow"), str(finding))


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL"])
def test_a_server_of_s3_that_only_this_process_uses(name: str) -> None:
    [finding] = find(one, {name: LOCAL}, tracker_base="s3://bucket")
    assert finding.kind is Kind.MAY_FAIL
    assert re.search(says("task 'train'", f"{name}={LOCAL}", "env=", "secrets="), str(finding))
    refuse_submission(load_pipeline(one), [finding])
    assert find(one, {name: "http://minio.example.com:9000"}, tracker_base="s3://bucket") == []
    assert find(one, {name: LOCAL}, tracker_base="gs://bucket") == []


def test_a_stage_may_have_the_server_of_s3_from_elsewhere() -> None:
    @dsl.pipeline
    def pipeline(base: str = "s3://bucket"):
        task("own", base, AWS_ENDPOINT_URL="http://seaweedfs.kubeflow:9000")
        task("secret", base, secret=True)

    assert find(pipeline, {"AWS_ENDPOINT_URL": LOCAL}) == []


def test_findings_of_the_backend_and_about_arguments() -> None:
    @dsl.container_component
    def echo(text: str):
        return dsl.ContainerSpec(image="x", command=["echo", dsl.ConcatPlaceholder(["a", text])])

    @dsl.pipeline
    def pipeline(text: str):
        echo(text=text)

    kinds = {finding.place: finding.kind for finding in find(pipeline, text="\U0001f600")}
    assert kinds == {"task 'echo'": Kind.FAILS, "the argument 'text'": Kind.MAY_FAIL}


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
    with pytest.raises(TimeoutError, match=says(run.run_id, "within 1.5 s", "keeps running", ".terminate()")):
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
    from tests.execution.host.test_run import tracked

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
