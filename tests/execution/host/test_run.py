"""A run on a host is read like one in a folder: its events, logs and results, with few requests."""

# Annotations are not postponed: kfp reads them as types.

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.cases.apps import python
from tests.execution.host.answers_of_kfp import last, manifest, polls
from tests.execution.host.calling import wait_until
from tests.execution.host.scripted import Reply, Request, Scripted, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp import task_from_app
from torchx_kfp.errors import HostError, PipelineError
from torchx_kfp.execution.host.results import ResultReader
from torchx_kfp.host import Host, HostRun, connect
from torchx_kfp.local import RunFinished, RunStarted, State, Watch, load_pipeline

TRAIN = "from torchx_kfp.tracking import current_run; print('training'); current_run().put(loss=0.25)"


@dsl.container_component
def nap(seconds: float):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'echo begun; sleep "$0"; echo over'], args=[seconds])


@dsl.pipeline(name="tracked")
def tracked(tracker_base: str, seconds: float = 0.0):
    train = task_from_app(python("train", TRAIN), tracker_base=tracker_base)
    nap(seconds=seconds).after(train)


@pytest.fixture
def submit(host: Host, tmp_path: Path) -> Callable[..., str]:
    def submit(**arguments: Any) -> str:
        return host.submit(load_pipeline(tracked), {"tracker_base": str(tmp_path / "results"), **arguments})

    return submit


def until(run: HostRun, wanted: Callable[[Any], object]) -> Any:
    """Read the run until this is true of it."""
    return wait_until(lambda: wanted(run.read()) and run.read())


def to_the_end(run: HostRun) -> Any:
    return until(run, lambda record: not record.is_running)


def test_a_run_is_followed_to_its_end(
    kfp_host: KfpHost, host: Host, submit: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = submit()
    run = HostRun(host.connection, run_id)
    records = list(run.follow())
    last = records[-1]
    assert all(record is not other for record, other in itertools.pairwise(records)), "only changes"
    assert [record.is_running for record in records] == [True] * (len(records) - 1) + [False]
    assert (last.run.state, last.run_id, last.pipeline, last.folder) == (State.SUCCEEDED, run_id, "tracked", None)
    assert last.link == f"{kfp_host.url}/#/runs/details/{run_id}"
    assert last.arguments == {"tracker_base": str(tmp_path / "results"), "seconds": 0.0}
    assert isinstance(last.events[0], RunStarted)
    assert isinstance(last.events[-1], RunFinished)
    assert last.load().name == "tracked"
    assert abs(last.created - time.time()) < 600
    result = last.run.result()
    assert result["train"].results == {"loss": 0.25}
    assert result["nap"].results is None
    assert (last.corrupt, capsys.readouterr().err) == ((), "")
    assert run.read() is last, "nothing has changed"


def test_an_interruption_loses_no_events(
    host: Host, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, while results are read from a store that takes long."""
    run = HostRun(host.connection, submit())
    last = to_the_end(HostRun(host.connection, run.run_id))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResultReader, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.wait(Watch())
    assert run.wait(Watch()).state is State.SUCCEEDED
    assert len(run.read().events) == len(last.events)


def test_two_requests_a_poll_while_nothing_changes(kfp_host: KfpHost, host: Host, submit: Callable[..., str]) -> None:
    run = HostRun(host.connection, submit(seconds=300))
    until(run, lambda record: record.run.attempts_at("nap"))
    before = len(kfp_host.requests)
    records = {id(run.read()) for _ in range(10)}
    assert len(records) == 1
    paths = [f"/apis/{version}/runs/{run.run_id}" for version in ("v2beta1", "v1beta1")]
    assert [request.path for request in kfp_host.requests[before:]] == paths * 10


def test_files_are_made_only_for_logs_that_are_fetched(
    kfp_host: KfpHost, host: Host, submit: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    run = HostRun(host.connection, submit())
    record = to_the_end(run)
    assert not list(folder.glob("torchx-kfp-*")), "a process that is killed leaves nothing"
    for _ in range(3):
        assert run.fetch(["train", "nap", "unknown"])
    assert kfp_host.count("/log$") == 2, "a log that is complete is not asked for again"
    [logs] = folder.glob("torchx-kfp-*")
    assert logs.stat().st_mode & 0o777 == 0o700
    said = {name: record.run.result()[name].log_file.read_text() for name in ("train", "nap")}
    assert said == {"train": "training\n", "nap": "begun\nover\n"}
    run.close()
    assert not list(folder.glob("torchx-kfp-*"))


def test_a_log_that_is_gone_is_said_once(kfp_host: KfpHost, host: Host, submit: Callable[..., str]) -> None:
    said: list[str] = []
    run = HostRun(host.connection, submit(), say=said.append)
    last = to_the_end(run)
    kfp_host.fail(500, times=100, path="/log$")
    for _ in range(3):
        assert not run.fetch(["train"])
    [sentence] = said
    for fact in ("train", f"kubectl logs -n kubeflow {last.run.attempts_at('train')[-1].pod_name}", run.link):
        assert fact in sentence
    assert last.run.result()["train"].last_lines() == []


@pytest.mark.parametrize("served", [{"v2beta1"}, {"v2beta1", "v1beta1"}])
def test_a_host_without_older_versions_of_the_api(
    kfp_host: KfpHost, host: Host, submit: Callable[..., str], served: set[str]
) -> None:
    said: list[str] = []
    run_id = submit()
    kfp_host.served = served
    run = HostRun(host.connection, run_id, say=said.append)
    last = to_the_end(run)
    assert last.run.state is State.SUCCEEDED
    run.fetch(["train"])
    if "v1beta1" in served:
        assert [stage.state for stage in last.run.result().stages] == [State.SUCCEEDED] * 2
        assert last.corrupt == ()
        [sentence] = said
        assert "train" in sentence
        assert run.link in sentence
    else:
        assert last.run.result().stages == ()
        [problem] = last.corrupt
        assert re.match(says(kfp_host.url, "stages", "logs", "results", "v1beta1"), problem)


# Pipelines that were uploaded

RUN_ID = polls("succeeded")[0]["run_id"]


@pytest.fixture
def uploaded() -> Iterator[Scripted]:
    """Serve a recorded run as one of a pipeline that was uploaded: it names the pipeline's version."""
    spec = polls("succeeded")[0]["pipeline_spec"]
    run = {key: value for key, value in last("succeeded").items() if key != "pipeline_spec"}
    run["pipeline_version_reference"] = {"pipeline_id": "1", "pipeline_version_id": "2"}

    def answer(request: Request) -> Reply:
        if request.path == "/apis/v2beta1/pipelines/1/versions/2":
            return Reply({"pipeline_id": "1", "pipeline_version_id": "2", "pipeline_spec": spec})
        return Reply(manifest("succeeded") if "v1beta1" in request.path else run)

    with scripted(answer) as server:
        yield server


def test_a_run_of_an_uploaded_pipeline_asks_for_it_once(uploaded: Scripted) -> None:
    run = HostRun(connect(host=uploaded.url).connection, RUN_ID)
    record = run.read()
    assert "inner/sleeper" in [stage.name for stage in record.run.result().stages]
    assert record.load().name == record.pipeline == "recorded"
    run.read()
    assert len([request for request in uploaded.requests if "/pipelines/" in request.path]) == 1


def test_an_uploaded_pipeline_that_was_deleted_is_missing(uploaded: Scripted) -> None:
    normal = uploaded.script
    uploaded.script = lambda request: (
        status(5, "Pipeline version 2 not found", 404) if "/pipelines/" in request.path else normal(request)
    )
    run = HostRun(connect(host=uploaded.url).connection, RUN_ID)
    record = run.read()
    assert record.run.state is State.SUCCEEDED
    [problem] = record.corrupt
    assert "Pipeline version 2 not found" in problem
    with pytest.raises(PipelineError, match=says(run.run_id, "Pipeline version 2 not found")):
        record.load()


def test_an_uploaded_pipeline_is_asked_for_until_it_is_there(uploaded: Scripted) -> None:
    """One error of the host left the run without stages until its end."""
    normal = uploaded.script
    uploaded.script = lambda request: (
        status(13, "the database restarts", 500) if "/pipelines/" in request.path else normal(request)
    )
    run = HostRun(connect(host=uploaded.url).connection, RUN_ID)
    [problem] = run.read().corrupt
    assert "the database restarts" in problem
    uploaded.script = normal
    record = run.read()
    assert record.corrupt == ()
    at_once = HostRun(connect(host=uploaded.url).connection, RUN_ID).read()
    ends = [(stage.name, stage.state, stage.started_at) for stage in record.run.result().stages]
    assert ends == [(stage.name, stage.state, stage.started_at) for stage in at_once.run.result().stages]


def test_a_run_that_was_not_asked_for_is_refused() -> None:
    answer, other = polls("succeeded")[-1], "00000000-0000-0000-0000-000000000000"
    with scripted(lambda request: Reply(answer)) as server:
        run = HostRun(connect(host=server.url).connection, other)
        with pytest.raises(HostError, match=says(answer["run_id"], f"instead of {other}")):
            run.read()

    def mixed(request: Request) -> Reply:
        return Reply(manifest("failed") if "v1beta1" in request.path else answer)

    with scripted(mixed) as server:
        record = HostRun(connect(host=server.url).connection, answer["run_id"]).read()
        assert re.search(says(manifest("failed")["run"]["id"], f"instead of {answer['run_id']}"), record.corrupt[0])
        assert not any(result.pod_name for result in record.run.ends)
