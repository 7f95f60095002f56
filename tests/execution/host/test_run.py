"""A run on a host is read like one in a folder: its events, logs and results, also when the host is in trouble."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.host.answers_of_kfp import answer as recorded_answer
from tests.execution.host.answers_of_kfp import last, manifest, polls
from tests.execution.host.scripted import Reply, Request, Scripted, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from torchx_kfp import task_from_app
from torchx_kfp.errors import (
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostUnreachableError,
    PipelineFileError,
    UnknownRunError,
)
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.observer import Observer
from torchx_kfp.execution.host.run import HostRun, PollPolicy
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.pipeline.load import load_pipeline, read_specs
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished
from torchx_kfp.execution.runs.result import RunResult
from torchx_kfp.execution.runs.source import RunRecord
from torchx_kfp.execution.runs.vocabulary import State

QUICK = PollPolicy(shortest=0.02, longest=0.1, share=1.0, patience=0.5)
TRAIN = "from torchx_kfp.tracking import current_run; print('training'); current_run().put(loss=0.25)"


@dsl.container_component
def nap(seconds: float):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'echo begun; sleep "$0"; echo over'], args=[seconds])


@dsl.container_component
def fail():
    return dsl.ContainerSpec(image="x", command=["sh", "-c", "echo broken >&2; exit 7"])


@dsl.pipeline(name="tracked")
def tracked(tracker_base: str, seconds: float = 0.0):
    app = AppDef("train", roles=[Role("role", image="x", entrypoint="python3", args=["-c", TRAIN])])
    train = task_from_app(app, tracker_base=tracker_base)
    nap(seconds=seconds).after(train)


@dsl.pipeline(name="failing")
def failing():
    fail()


class Said(list[str]):
    """Collects sentences."""

    def __call__(self, sentence: str) -> None:
        self.append(sentence)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def submit(connection: Connection, tmp_path: Path) -> Callable[..., str]:
    def submit(pipeline: Any = tracked, **arguments: Any) -> str:
        if pipeline is tracked:
            arguments = {"tracker_base": str(tmp_path / "results"), **arguments}
        return Host(connection).submit(load_pipeline(pipeline), arguments)

    return submit


def until(run: HostRun, wanted: Callable[[RunRecord], object]) -> RunRecord:
    """Read the run until this is true of it."""
    for _ in range(1200):
        if wanted(record := run.read()):
            return record
        time.sleep(0.05)
    raise AssertionError(f"this never became true of {run.read()}")


# As a local run


def test_a_run_is_followed_to_its_end(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said, tmp_path: Path
) -> None:
    run_id = submit()
    run = HostRun(connection, run_id, policy=QUICK, say=said)
    records = list(run.follow())
    last = records[-1]
    assert all(record is not other for record, other in itertools.pairwise(records)), "only changes"
    assert [record.is_running for record in records] == [True] * (len(records) - 1) + [False]
    assert (last.state, last.run_id, last.pipeline, last.folder) == (State.SUCCEEDED, run_id, "tracked", None)
    assert last.link == f"{kfp_host.url}/#/runs/details/{run_id}"
    assert last.arguments == {"tracker_base": str(tmp_path / "results"), "seconds": 0.0}
    assert isinstance(last.events[0], RunStarted)
    assert isinstance(last.events[-1], RunFinished)
    assert last.load().name == "tracked"
    assert abs(last.created - time.time()) < 600
    result = last.run.result()
    assert result["train"].results == {"loss": 0.25}
    assert result["nap"].results is None
    assert (last.corrupt, said) == ((), [])
    assert run.read() is last, "nothing has changed"


def test_a_failed_run_has_its_exit_code(connection: Connection, submit: Callable[..., str], said: Said) -> None:
    run = HostRun(connection, submit(failing), policy=QUICK, say=said)
    *_, last = run.follow()
    stage = last.run.result()["fail"]
    # Only the log has it: the exit code of the pod is that of KFP's launcher.
    assert (last.state, stage.state, stage.exit_code) == (State.FAILED, State.FAILED, 7)
    run.fetch(["fail"])
    assert stage.last_lines() == ["broken"]


def test_a_run_that_is_terminated(connection: Connection, submit: Callable[..., str]) -> None:
    run = HostRun(connection, submit(seconds=300), policy=QUICK)
    until(run, lambda record: "nap" in record.run.attempts)
    Host(connection).terminate(run.run_id)
    *_, last = run.follow()
    assert last.state is State.CANCELED
    assert last.run.result()["nap"].state is State.CANCELED


# Requests


def test_two_requests_a_poll_while_nothing_changes(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str]
) -> None:
    run = HostRun(connection, submit(seconds=300))
    until(run, lambda record: "nap" in record.run.attempts)
    before = len(kfp_host.requests)
    records = {id(run.read()) for _ in range(10)}
    assert len(records) == 1
    paths = [f"/apis/{version}/runs/{run.run_id}" for version in ("v2beta1", "v1beta1")]
    assert [request.path for request in kfp_host.requests[before:]] == paths * 10


def recorded(name: str) -> Callable[[Request], Reply]:
    """Answer polls of v2beta1 in turn as they were recorded, and v1beta1 as at the end of the run."""
    answers = polls(name)
    rest = iter(answers)

    def answer(request: Request) -> Reply:
        if request.path.startswith("/apis/v1beta1"):
            return Reply(manifest(name))
        return Reply(next(rest, answers[-1]))

    return answer


def test_polls_are_rare_while_nothing_changes() -> None:
    answer = {**polls("succeeded")[0], "state": "RUNNING"}
    slept: list[float] = []
    with scripted(lambda request: Reply(answer)) as server:

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 6:
                server.script = lambda request: Reply({**answer, "state": "FAILED"})

        policy = PollPolicy(1.0, 8.0, 2.0, sleep=sleep, credit=1000.0)
        *_, last = HostRun(Connection(Settings(host=server.url)), answer["run_id"], policy=policy).follow()
    assert last.state is State.FAILED
    assert slept == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


# Logs


def test_logs_grow_with_the_run(connection: Connection, submit: Callable[..., str], said: Said) -> None:
    run = HostRun(connection, submit(seconds=2.0), policy=QUICK, say=said)
    record = until(run, lambda record: "nap" in record.run.attempts)
    file = record.run.attempts["nap"][-1].log_file
    assert file is not None
    for _ in range(600):
        run.fetch(["nap"])
        if file.exists() and file.read_text() == "begun\n":
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the log never had only its first line")
    *_, last = run.follow()
    run.fetch(list(last.run.attempts))
    assert file.read_text() == "begun\nover\n"
    train = last.run.attempts["train"][-1].log_file
    assert train is not None
    assert train.read_text() == "training\n"
    run.fetch(["train", "nap", "unknown"])
    assert (file.read_text(), said) == ("begun\nover\n", [])
    run.close()
    assert not file.parent.exists()


def test_files_are_made_only_for_logs_that_are_fetched(
    connection: Connection, submit: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    run = HostRun(connection, submit(), policy=QUICK)
    list(run.follow())
    assert not list(folder.iterdir()), "a process that is killed leaves nothing"
    run.fetch(["train"])
    [logs] = folder.iterdir()
    assert logs.stat().st_mode & 0o777 == 0o700
    run.close()
    assert not list(folder.iterdir())


def test_a_log_that_is_complete_is_not_asked_for_again(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str]
) -> None:
    run = HostRun(connection, submit(), policy=QUICK)
    list(run.follow())
    for _ in range(3):
        run.fetch(["train"])
    assert kfp_host.count("/log$") == 1


def test_logs_with_the_lines_of_the_launcher(connection: Connection, submit: Callable[..., str]) -> None:
    run = HostRun(connection, submit(), policy=QUICK, raw_logs=True)
    *_, last = run.follow()
    run.fetch(["nap"])
    file = last.run.attempts["nap"][-1].log_file
    assert file is not None
    assert "launcher_v2.go" in file.read_text()


def test_a_log_that_is_gone_is_said_once(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said
) -> None:
    run = HostRun(connection, submit(), policy=QUICK, say=said)
    *_, last = run.follow()
    kfp_host.fail(500, times=100, path="/log$")
    for _ in range(3):
        run.fetch(["train"])
    [sentence] = said
    for fact in ("train", f"kubectl logs -n kubeflow {last.run.attempts['train'][-1].pod_name}", run.link):
        assert fact in sentence
    assert last.run.result()["train"].last_lines() == []


def test_logs_of_stages_with_similar_names_are_different_files(tmp_path: Path) -> None:
    with scripted(lambda request: Reply("")) as server:
        run = HostRun(Connection(Settings(host=server.url)), "x")
        names = ["train[1,2]", "train[1]-2", "train-1-2", "inner/train", "inner-train", "é" * 300, "é" * 301]
        files = {run._logs.add(name) for name in names for _ in range(2)}
        assert len(files) == 2 * len(names)
        for file in files:
            (tmp_path / file.name).write_text("")


# Results


def test_results_that_cannot_be_read_here_are_one_sentence(tmp_path: Path) -> None:
    """The recorded pipeline records its results on a volume of the cluster."""
    with scripted(recorded("succeeded")) as server:
        run = HostRun(Connection(Settings(host=server.url)), polls("succeeded")[0]["run_id"])
        while (record := run.read()).is_running:
            pass
    [problem] = record.corrupt
    base = record.arguments["tracker_base"]
    assert repr(base) in problem
    tracked = [event.result for event in record.events if isinstance(event, StageFinished) and event.result.run_id]
    assert tracked
    assert {stage.results for stage in tracked} == {None}


# Hosts without the older versions of the API


@pytest.mark.parametrize("served", [{"v2beta1"}, {"v2beta1", "v1beta1"}])
def test_a_host_without_older_versions_of_the_api(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said, served: set[str]
) -> None:
    run_id = submit()
    kfp_host.served = served
    run = HostRun(connection, run_id, policy=QUICK, say=said)
    *_, last = run.follow()
    assert last.state is State.SUCCEEDED
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
        assert kfp_host.count("v1beta1") == 1, "it is not asked for again"


def test_kfp_2_14(tmp_path: Path) -> None:
    with KfpHost(tmp_path / "host", version="2.14") as host:
        connection = Connection(Settings(host=host.url, tracker_base=str(tmp_path / "results")))
        run_id = Host(connection).submit(load_pipeline(tracked), {"tracker_base": str(tmp_path / "results")})
        *_, last = HostRun(connection, run_id, policy=QUICK).follow()
    assert last.state is State.SUCCEEDED
    assert last.run.result()["train"].results == {"loss": 0.25}


# What only the log says of a failure


def from_recording(name: str) -> Callable[[Request], Reply]:
    """Answer as at the end of a recorded run; every log is the recorded one."""

    def reply(request: Request) -> Reply:
        if request.path.endswith("/log"):
            return Reply(recorded_answer(f"{name}-log-{request.path.split('-')[-1].removesuffix('/log')}"))
        return Reply(manifest(name) if "v1beta1" in request.path else last(name))

    return reply


def read_recorded(script: Callable[[Request], Reply], name: str) -> RunResult:
    with scripted(script) as server:
        run = HostRun(Connection(Settings(host=server.url)), last(name)["run_id"], say=lambda sentence: None)
        return run.read().run.result()


def test_an_application_that_never_began_fails_with_what_the_launcher_says() -> None:
    stage = read_recorded(from_recording("no-program"), "no-program")["plain"]
    assert stage.reason == 'failed in KFP\'s launcher: exec: "trainer": executable file not found in $PATH'
    assert stage.exit_code == 1


def test_an_application_that_has_run_fails_with_its_own_exit_code() -> None:
    stage = read_recorded(from_recording("retried-failed"), "retried-failed")["second"]
    assert (stage.exit_code, stage.reason) == (4, "ended with exit code 4")


def test_a_failure_whose_log_is_gone_has_what_the_manifest_says() -> None:
    def without_log(request: Request) -> Reply:
        return status(13, "no log", 500) if request.path.endswith("/log") else from_recording("no-program")(request)

    stage = read_recorded(without_log, "no-program")["plain"]
    assert (stage.exit_code, stage.reason) == (1, "ended with exit code 1 (of KFP's launcher)")


def test_an_engine_whose_image_lacks_python_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observer, "is_distributed", lambda self, stage: stage == "plain")

    def no_python(request: Request) -> Reply:
        found = from_recording("no-program")(request)
        is_log = request.path.endswith("/log")
        return Reply(str(found.content).replace('"trainer"', '"python3"')) if is_log else found

    stage = read_recorded(no_python, "no-program")["plain"]
    assert re.match(says("exec:", "python3", "replicas", "image"), stage.reason)


# Trouble


def test_an_unknown_run(connection: Connection, kfp_host: KfpHost) -> None:
    with pytest.raises(UnknownRunError, match=says("'0000'", kfp_host.url)):
        HostRun(connection, "0000").read()


def test_a_host_that_never_answers_ends_a_watch_at_once() -> None:
    run = HostRun(Connection(Settings(host="http://127.0.0.1:1"), Patience(retries=0)), "x", policy=QUICK)
    with pytest.raises(HostUnreachableError):
        next(run.follow())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, times=9),
        Fault(status=503, times=9),
        Fault(cut=0.5, times=9),
        Fault(cut=0.0, times=9),
        Fault(status=429, times=9),
    ],
)
def test_a_connection_that_is_lost_while_a_run_is_watched(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said, fault: Fault
) -> None:
    run = HostRun(connection, submit(seconds=1.0), policy=QUICK, say=said)
    follower = run.follow()
    next(follower)
    kfp_host.add(fault)
    *_, last = follower
    assert last.state is State.SUCCEEDED
    assert last.run.result()["train"].results == {"loss": 0.25}
    lost, found = said
    assert kfp_host.url in lost
    assert "trying again" in lost
    assert found == f"{kfp_host.url} answers again."


def test_a_v1beta1_that_fails_for_a_moment_loses_nothing(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said
) -> None:
    run_id = submit(failing)
    kfp_host.add(Fault(status=503, times=6, path="v1beta1"))
    run = HostRun(connection, run_id, policy=QUICK, say=said)
    run.read()
    *_, last = run.follow()
    assert last.run.result()["fail"].exit_code == 7
    assert last.corrupt == ()


@pytest.mark.parametrize("code", [500, 401])
def test_a_v1beta1_that_fails_once_is_asked_again(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said, code: int
) -> None:
    run = HostRun(connection, submit(seconds=0.5), policy=QUICK, say=said)
    fault = kfp_host.fail(code, times=4, path="v1beta1")
    record = until(run, lambda record: record.corrupt)
    assert kfp_host.url in record.corrupt[0]
    fault.times = 0
    *_, last = run.follow()
    assert last.corrupt == ()
    assert last.run.result()["train"].results == {"loss": 0.25}
    assert last.run.result()["nap"].pod_name


def test_a_run_that_is_deleted_while_it_is_watched(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str]
) -> None:
    run = HostRun(connection, submit(seconds=300), policy=QUICK)
    follower = run.follow()
    next(follower)
    kfp_host.delete(run.run_id)
    with pytest.raises(HostNotFoundError, match=says(run.run_id, "deleted", kfp_host.url)):
        list(follower)


def test_a_token_that_changes_while_a_run_is_watched(
    kfp_host: KfpHost, submit: Callable[..., str], said: Said, tmp_path: Path
) -> None:
    run_id = submit(seconds=1.0)
    file = tmp_path / "token"
    file.write_text("first")
    kfp_host.token = "first"
    connection = Connection(Settings(host=kfp_host.url, token_file=str(file)), Patience(wait=0.001))
    run = HostRun(connection, run_id, policy=PollPolicy(0.02, 0.1, share=1.0, patience=60), say=said)
    follower = run.follow()
    next(follower)
    # The file follows a moment later.
    kfp_host.token = "second"
    timer = threading.Timer(0.5, file.write_text, ["second"])
    timer.start()
    *_, last = follower
    timer.join()
    assert last.state is State.SUCCEEDED
    lost, found = said
    assert "401" in lost
    assert str(file) not in found


def test_a_host_that_goes_on_failing_ends_a_watch(
    kfp_host: KfpHost, connection: Connection, submit: Callable[..., str], said: Said
) -> None:
    run = HostRun(connection, submit(seconds=300), policy=PollPolicy(0.02, 0.1, share=1.0, patience=0.3), say=said)
    follower = run.follow()
    next(follower)
    kfp_host.fail(500, times=1e9, body='{"code": 13, "message": "no database"}')
    with pytest.raises(HostError, match="no database"):
        list(follower)
    assert len(said) == 1


def test_a_token_file_that_is_empty_for_a_moment(
    kfp_host: KfpHost, submit: Callable[..., str], said: Said, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("token")
    connection = Connection(Settings(host=kfp_host.url, token_file=str(file)), Patience(wait=0.001))
    run = HostRun(connection, submit(seconds=1.0), policy=QUICK, say=said)
    follower = run.follow()
    next(follower)
    file.write_text("")
    timer = threading.Timer(0.2, file.write_text, ["token"])
    timer.start()
    *_, last = follower
    timer.join()
    assert last.state is State.SUCCEEDED
    assert "is empty" in said[0]
    assert len(said) == 2


def test_a_token_that_has_expired_ends_a_watch(kfp_host: KfpHost, submit: Callable[..., str], said: Said) -> None:
    run_id = submit(seconds=300)
    kfp_host.token = "first"
    connection = Connection(Settings(host=kfp_host.url, existing_token="first"), Patience(wait=0.001))
    run = HostRun(connection, run_id, policy=PollPolicy(0.02, 0.1, share=1.0, patience=0.3), say=said)
    follower = run.follow()
    next(follower)
    kfp_host.token = "second"
    with pytest.raises(HostCredentialsError, match=says("401", "existing_token")):
        list(follower)
    assert len(said) == 1


# Pipelines that were uploaded


@pytest.fixture
def uploaded() -> Iterator[Scripted]:
    """Serve a recorded run as one of a pipeline that was uploaded: it names the pipeline's version."""
    answers = [dict(answer) for answer in polls("succeeded")]
    spec = answers[0]["pipeline_spec"]
    for answer in answers:
        answer.pop("pipeline_spec", None)
        answer["pipeline_version_reference"] = {"pipeline_id": "1", "pipeline_version_id": "2"}

    def answer(request: Request) -> Reply:
        if request.path == "/apis/v2beta1/pipelines/1/versions/2":
            return Reply({"pipeline_id": "1", "pipeline_version_id": "2", "pipeline_spec": spec})
        return Reply(manifest("succeeded")) if "v1beta1" in request.path else Reply(answers[-1])

    with scripted(answer) as server:
        yield server


def test_a_run_of_a_pipeline_that_was_uploaded(uploaded: Scripted) -> None:
    run = HostRun(Connection(Settings(host=uploaded.url)), polls("succeeded")[0]["run_id"])
    record = run.read()
    assert "inner/sleeper" in [stage.name for stage in record.run.result().stages]
    assert record.load().name == record.pipeline == "recorded"
    run.read()
    assert len([request for request in uploaded.requests if "/pipelines/" in request.path]) == 1


def test_a_pipeline_that_was_uploaded_and_deleted(uploaded: Scripted) -> None:
    normal = uploaded.script
    uploaded.script = lambda request: (
        status(5, "Pipeline version 2 not found", 404) if "/pipelines/" in request.path else normal(request)
    )
    run = HostRun(Connection(Settings(host=uploaded.url)), polls("succeeded")[0]["run_id"])
    record = run.read()
    assert record.state is State.SUCCEEDED
    [problem] = record.corrupt
    assert "Pipeline version 2 not found" in problem
    with pytest.raises(PipelineFileError, match=says(run.run_id, "Pipeline version 2 not found")):
        record.load()


def test_the_specs_of_a_recorded_run_can_be_submitted_again(uploaded: Scripted) -> None:
    run = HostRun(Connection(Settings(host=uploaded.url)), polls("succeeded")[0]["run_id"])
    spec, platform = read_specs(run.read().load().text)
    assert polls("succeeded")[0]["pipeline_spec"] == {"pipeline_spec": spec, "platform_spec": platform}


def test_a_run_that_was_not_asked_for_is_refused() -> None:
    answer, other = polls("succeeded")[-1], "00000000-0000-0000-0000-000000000000"
    with scripted(lambda request: Reply(answer)) as server:
        run = HostRun(Connection(Settings(host=server.url)), other)
        with pytest.raises(HostError, match=says(answer["run_id"], f"in place of {other}")):
            run.read()

    def mixed(request: Request) -> Reply:
        return Reply(manifest("failed") if "v1beta1" in request.path else answer)

    with scripted(mixed) as server:
        record = HostRun(Connection(Settings(host=server.url)), answer["run_id"]).read()
        assert re.search(says(manifest("failed")["run"]["id"], f"in place of {answer['run_id']}"), record.corrupt[0])
        assert not any(result.pod_name for result in record.run.ends.values())
