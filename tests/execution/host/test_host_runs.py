"""Runs are submitted as kfp.Client submits them, found by any of their names, listed and terminated."""

import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl
from kfp.client import Client

from tests.execution.host.scripted import Reply, Request, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.errors import (
    ArgumentError,
    HostAnswerLostError,
    HostError,
    HostRefusedError,
    HostUnreachableError,
    UnknownRunError,
)
from torchx_kfp.execution.host.connection import Connection
from torchx_kfp.execution.host.host_runs import Host, without_cache
from torchx_kfp.execution.host.run_filter import RunFilter
from torchx_kfp.execution.host.settings import Settings, Submission
from torchx_kfp.execution.pipeline.load import load_pipeline, read_specs
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.vocabulary import State


@dsl.container_component
def echo(text: str):
    return dsl.ContainerSpec(image="x", command=["echo", text])


@dsl.container_component
def wait():
    return dsl.ContainerSpec(image="x", command=["sleep", "300"])


@dsl.pipeline(name="small")
def small(text: str = "hi", count: int = 1, share: float = 0.5, flag: bool = False, names: list = [], more: dict = {}):  # noqa: B006 (KFP takes the text of defaults)
    echo(text=text)
    with dsl.If(flag == True):  # noqa: E712 (KFP's condition)
        echo(text="inside")


@dsl.pipeline(name="long")
def long():
    wait()


@pytest.fixture
def host(connection: Connection) -> Host:
    return Host(connection)


def end_of(kfp_host: KfpHost, run_id: str) -> str:
    for _ in range(600):
        state = str(_get(kfp_host, run_id).get("state"))
        if state in ("SUCCEEDED", "FAILED", "CANCELED"):
            return state
        time.sleep(0.05)
    raise AssertionError(f"the run {run_id} goes on")


def _get(kfp_host: KfpHost, run_id: str) -> Mapping[str, Any]:
    return Connection(Settings(host=kfp_host.url)).get(f"/apis/v2beta1/runs/{run_id}")


def uuid(number: int) -> str:
    return f"{number:08}-0000-0000-0000-000000000000"


# Submit


def test_a_run_that_is_submitted_runs(kfp_host: KfpHost, host: Host) -> None:
    run_id = host.submit(load_pipeline(small), {"text": "hello"}, Submission("my run", "tries"))
    assert end_of(kfp_host, run_id) == "SUCCEEDED"
    [run] = host.list()
    assert (run.run_id, run.name, run.pipeline, run.state) == (run_id, "my run", "small", State.SUCCEEDED)
    assert run.finished is not None
    assert 0 <= run.finished - run.created < 600
    assert run.link == f"{kfp_host.url}/#/runs/details/{run_id}"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "n", "experiment": "e", "service_account": "s", "pipeline_root": "s3://root"},
        {"cache": False},
    ],
)
def test_a_body_is_that_of_kfp_client(options: dict[str, Any], tmp_path: Path) -> None:
    arguments = {"text": "é", "count": 3, "share": 1.0, "flag": True, "names": ["a"], "more": {"a": [1]}}
    theirs_options = {
        {"name": "run_name", "experiment": "experiment_name", "cache": "enable_caching"}.get(name, name): value
        for name, value in options.items()
    }
    file = str(tmp_path / "small.yaml")
    compiler.Compiler().compile(small, file)

    def answer(request: Request) -> Reply:
        if request.path.startswith("/apis/v2beta1/experiments"):
            found = {"experiment_id": "1", "display_name": options.get("experiment", "Default")}
            return Reply({"experiments": [found]} if request.method == "GET" else found)
        return Reply({"run_id": uuid(2), "multi_user": False})

    with scripted(answer) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = Client(host=server.url)
            client.create_run_from_pipeline_package(file, arguments=arguments, **theirs_options)
        theirs = server.requests[-1]
        submission = Submission(**options)
        assert Host(Connection(Settings(host=server.url))).submit(load_pipeline(file), arguments, submission) == uuid(2)
        ours = server.requests[-1]
    assert (ours.method, ours.path) == (theirs.method, theirs.path) == ("POST", "/apis/v2beta1/runs")
    assert numbers(simple(ours.body, options)) == numbers(simple(theirs.body, options))


def simple(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without the default name, which has the time, and without caching that is off."""
    body = dict(body)
    if "name" not in options:
        name = body.pop("display_name")
        assert name.startswith("small")
        assert time.strftime(" %Y-%m-") in name
    if not options.get("cache", True):
        # Protobuf leaves out what is false; kfp.Client does not change tasks inside of others.
        spec = body["pipeline_spec"].get("pipeline_spec", body["pipeline_spec"])
        for component in (spec["root"], *spec["components"].values()):
            for task in component.get("dag", {}).get("tasks", {}).values():
                task.pop("cachingOptions")
    return body


def numbers(value: Any) -> Any:
    """Return a value in which numbers are those of protobuf's Struct, which kfp.Client's detour makes of them."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_arguments_are_checked(kfp_host: KfpHost, host: Host) -> None:
    with pytest.raises(ArgumentError, match=says("'contu'", "'count'", "'share'", "count: int = 1")):
        host.submit(load_pipeline(small), {"contu": 1, "share": "much"})
    assert not kfp_host.requests


def test_without_a_cache_no_task_is_cached_not_even_in_a_branch() -> None:
    spec, _ = read_specs(load_pipeline(small).text)
    changed = without_cache(spec)
    tasks = [
        task
        for component in (changed["root"], *changed["components"].values())
        for task in component.get("dag", {}).get("tasks", {}).values()
    ]
    assert len(tasks) == 3
    assert [task["cachingOptions"]["enableCache"] for task in tasks] == [False] * 3
    assert spec != changed
    assert spec == read_specs(load_pipeline(small).text)[0]


def test_the_platform_spec_is_sent_too(tmp_path: Path) -> None:
    from kfp import kubernetes

    @dsl.pipeline
    def pipeline():
        kubernetes.mount_pvc(echo(text="a"), "claim", "/data")

    spec, platform = read_specs(load_pipeline(pipeline).text)
    assert "pipelineInfo" in spec
    [executor] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    assert executor["pvcMount"][0]["mountPath"] == "/data"


def test_an_experiment_is_created_once(kfp_host: KfpHost, host: Host) -> None:
    for _ in range(2):
        host.submit(load_pipeline(small), submission=Submission(experiment="tries"))
    assert kfp_host.count("experiments", "POST") == 1


def experiments_of(settings: Settings, environ: dict[str, str], experiment: str = "") -> tuple[list[Any], Any]:
    """Submit to a host without experiments, and return the bodies of the requests that create them."""
    with scripted(lambda request: Reply({"experiment_id": "1", "run_id": uuid(2)})) as server:
        connection = Connection(Settings(host=server.url, namespace=settings.namespace, experiment=settings.experiment))
        Host(connection).submit(load_pipeline(small), submission=Submission(experiment=experiment), environ=environ)
        created = [request.body for request in server.requests if request.method == "POST"][:-1]
        return created, [request.path for request in server.requests]


def test_the_name_of_the_experiment() -> None:
    override = {"KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME": "override"}
    assert experiments_of(Settings(), {})[0] == [{"display_name": "Default"}]
    assert experiments_of(Settings(experiment="mine"), {})[0] == [{"display_name": "mine"}]
    assert experiments_of(Settings(experiment="mine"), {}, "given")[0] == [{"display_name": "given"}]
    assert experiments_of(Settings(experiment="mine"), override, "given")[0] == [{"display_name": "override"}]


def test_the_namespace_of_a_user() -> None:
    created, paths = experiments_of(Settings(namespace="alice"), {})
    assert created == [{"display_name": "Default", "namespace": "alice"}]
    assert "namespace=alice" in paths[0]


def test_an_experiment_that_another_process_creates_first() -> None:
    found: list[dict[str, str]] = []

    def answer(request: Request) -> Reply:
        if request.path.startswith("/apis/v2beta1/experiments"):
            if request.method == "POST":
                found.append({"experiment_id": "7", "display_name": "Default"})
                return status(6, "Experiment Default already exists", 409)
            return Reply({"experiments": found})
        return Reply({"run_id": uuid(2)})

    with scripted(answer) as server:
        assert Host(Connection(Settings(host=server.url))).submit(load_pipeline(small)) == uuid(2)
        assert server.requests[-1].body["experiment_id"] == "7"


def test_a_pipeline_that_the_host_refuses(kfp_host: KfpHost, host: Host) -> None:
    kfp_host.fail(400, path="/runs", method="POST")
    with pytest.raises(HostRefusedError, match=says("POST", "/apis/v2beta1/runs")):
        host.submit(load_pipeline(small))


def test_a_host_of_something_else_that_accepts_everything() -> None:
    with (
        scripted(lambda request: Reply({})) as server,
        pytest.raises(HostUnreachableError, match=says(server.url, "without a run id")),
    ):
        Host(Connection(Settings(host=server.url))).submit(load_pipeline(small))


def test_a_busy_host_takes_a_run_once(kfp_host: KfpHost, host: Host) -> None:
    kfp_host.fail(429, times=2, path="/runs", method="POST", headers={"Retry-After": "1"})
    host.submit(load_pipeline(small))
    assert len(kfp_host.runs) == 1


def test_a_run_whose_answer_is_lost_is_not_submitted_again(kfp_host: KfpHost, host: Host) -> None:
    from tests.fake_kfp.faults import Fault

    kfp_host.add(Fault(path="/runs", method="POST", cut=0.5))
    facts = says(
        "may have accepted the run 'mine'", "Before you submit it again", f"torchx-kfp runs --host {kfp_host.url}"
    )
    with pytest.raises(HostAnswerLostError, match=facts):
        host.submit(load_pipeline(small), submission=Submission("mine"))
    assert len(kfp_host.runs) == 1


@pytest.mark.parametrize("wrong", ["2", "../../x", [], "a" * 100_000, uuid(1).upper() + "/", 7])
def test_a_run_id_that_is_none(wrong: Any) -> None:
    answer = {"run_id": wrong, "runs": [{"run_id": wrong}]}
    with scripted(lambda request: Reply(answer)) as server:
        host = Host(Connection(Settings(host=server.url, namespace="alice")))
        facts = says(
            "/apis/v2beta1/runs", "run id", "may have accepted the run 'small", f"--host {server.url} -n alice"
        )
        with pytest.raises(HostAnswerLostError, match=facts) as caught:
            host.submit(load_pipeline(small))
        assert len(str(caught.value)) < 1000
        if wrong:
            with pytest.raises(HostError, match=says("run id", "UUIDs")):
                list(host.list())


# Find


@pytest.fixture
def submitted(kfp_host: KfpHost) -> list[str]:
    """The ids of runs with these names."""
    return [kfp_host.make_run(1, name=name).record.run_id for name in ("first", "same", "same", "deadbeef")]


def test_names_of_a_run(host: Host, submitted: list[str], kfp_host: KfpHost) -> None:
    first = submitted[0]
    before = len(kfp_host.requests)
    assert host.find(first) == first
    assert host.find(first.upper()) == first
    assert host.find(f"https://kfp.example.com/pipeline/#/runs/details/{first}?x=1") == first
    assert host.find(f"kfp://torchx/{first}") == first
    assert len(kfp_host.requests) == before, "an id is a name without any request"
    assert host.find("first") == first
    assert host.find(first[:8]) == first
    assert host.find(first[:13]) == first
    assert host.find("latest") == next(iter(host.list())).run_id
    assert host.find("deadbeef") == submitted[3], "a name, although it looks like the beginning of an id"


def test_a_name_may_mention_another_run(host: Host, submitted: list[str]) -> None:
    again = host.submit(load_pipeline(small), submission=Submission(f"again: {submitted[0]}"))
    assert host.find(f"again: {submitted[0]}") == again
    with pytest.raises(UnknownRunError, match=says(f"{submitted[0]}/train")):
        host.find(f"{submitted[0]}/train")


def test_a_name_that_is_not_text(host: Host, submitted: list[str]) -> None:
    with pytest.raises(UnknownRunError, match=says(r"'\udcff'")):
        host.find("\udcff")


@pytest.mark.parametrize("wrong", [5, "x", {"a": 1}, [None, 5, ["x"]]])
def test_lists_that_are_none(wrong: Any) -> None:
    with scripted(lambda request: Reply({"runs": wrong, "experiments": wrong, "experiment_id": "new"})) as server:
        host = Host(Connection(Settings(host=server.url)))
        assert list(host.list(limit=1)) == []
        with pytest.raises(HostUnreachableError, match="without a run id"):
            host.submit(load_pipeline(small))


def test_a_name_of_several_runs(host: Host, submitted: list[str]) -> None:
    facts = says("'same'", "2 runs", submitted[1], submitted[2], time.strftime("%Y-%m-"), "run id")
    with pytest.raises(UnknownRunError, match=facts):
        host.find("same")


def test_an_unknown_name(host: Host, submitted: list[str], kfp_host: KfpHost) -> None:
    facts = says("'frist'", kfp_host.url, "Did you mean 'first'?", submitted[3], "the newest first")
    with pytest.raises(UnknownRunError, match=facts):
        host.find("frist")
    with pytest.raises(UnknownRunError, match=says("'00000000'")):
        host.find("00000000")


def test_a_host_without_runs(host: Host) -> None:
    for name in ("latest", "x"):
        with pytest.raises(UnknownRunError, match="no run"):
            host.find(name)
    assert list(host.list()) == []


def test_the_host_selects(host: Host, kfp_host: KfpHost) -> None:
    """Archived runs, and runs with another id, cost no requests; a filter lasts for all pages."""
    kfp_host.checks = False
    runs = [kfp_host.make_run(1, name=f"run-{number}") for number in range(130)]
    for number, run in enumerate(runs):
        run.record.created += number
        run.record.storage_state = "AVAILABLE" if number < 120 else "ARCHIVED"
    archived, newest, middle = (runs[number].record.run_id for number in (129, 119, 60))
    for name, found in {"latest": newest, middle[:8]: middle, archived[:8]: archived, "run-129": archived}.items():
        before = len(kfp_host.requests)
        assert host.find(name) == found
        assert len(kfp_host.requests) - before == (1 if name in ("latest", "run-129") else 2), "its name, then its id"
    for run in runs:
        run.advance(started=1)
    before = len(kfp_host.requests)
    where = RunFilter(states=["running"], newer_than=9999, older_than=-9999)
    found = [run.run_id for run in host.list(where, limit=99)]
    assert found == [run.record.run_id for run in reversed(runs[21:120])]
    assert len(kfp_host.requests) - before == 2


# List


def run_json(number: int, **more: Any) -> dict[str, Any]:
    return {"run_id": uuid(number), "display_name": f"run-{number}", **more}


def pages(count: int, size: int) -> Any:
    def answer(request: Request) -> Reply:
        token = int(next((word[11:] for word in request.path.split("&") if word.startswith("page_token=")), 0))
        runs = [run_json(number) for number in range(token, min(token + size, count))]
        return Reply({"runs": runs, "next_page_token": str(token + size) if token + size < count else ""})

    def paged(request: Request) -> Reply:
        return answer(Request(request.method, request.path.replace("?", "&"), request.headers))

    return paged


@pytest.mark.parametrize(("limit", "found", "requests"), [(None, 120, 3), (1, 1, 1), (60, 60, 2), (500, 120, 3)])
def test_pages_are_asked_for_as_they_are_needed(limit: int | None, found: int, requests: int) -> None:
    with scripted(pages(120, 50)) as server:
        runs = list(Host(Connection(Settings(host=server.url))).list(limit=limit))
        assert [run.name for run in runs] == [f"run-{number}" for number in range(found)]
        assert len(server.requests) == requests
        first, *others = (request.path for request in server.requests)
        assert "sort_by=created_at%20desc" in first
        # KFP finds a filter with lists or times in a token different from the same one in a request.
        assert not [path for path in others if "sort_by" in path or "filter" in path]


def test_a_token_that_repeats_ends_the_list() -> None:
    with scripted(lambda request: Reply({"runs": [run_json(1)], "next_page_token": "x"})) as server:
        assert len(list(Host(Connection(Settings(host=server.url))).list())) == 2


def test_only_some_hundred_runs_are_looked_at_for_a_name() -> None:
    with scripted(pages(100_000, 50)) as server:
        with pytest.raises(UnknownRunError):
            Host(Connection(Settings(host=server.url))).find("99999999")
        assert len(server.requests) < 15


def test_runs_with_missing_fields_and_archived_ones() -> None:
    runs = [
        {"display_name": "no id"},
        {"run_id": uuid(1)},
        {"run_id": uuid(2), "storage_state": "ARCHIVED", "state": "FAILED", "state_history": [{"state": "CANCELING"}]},
        {"run_id": uuid(3), "state": "NEW", "pipeline_spec": 1, "created_at": "soon", "state_history": 3},
        7,
    ]
    with scripted(lambda request: Reply({"runs": runs})) as server:
        host = Host(Connection(Settings(host=server.url)))
        assert [run.run_id for run in host.list()] == [uuid(1), uuid(3)]
        archived = [run for run in host.list(RunFilter(archived=None)) if run.is_archived]
        assert [(run.run_id, run.state) for run in archived] == [(uuid(2), State.CANCELED)]


# Terminate


def test_a_run_is_terminated(host: Host, kfp_host: KfpHost) -> None:
    run_id = host.submit(load_pipeline(long))
    host.terminate(run_id)
    end_of(kfp_host, run_id)
    [run] = host.list()
    assert run.state is State.CANCELED


def test_an_unknown_run_cannot_be_terminated(host: Host, kfp_host: KfpHost) -> None:
    with pytest.raises(UnknownRunError, match=says("'0000'", kfp_host.url)):
        host.terminate("0000")


def test_a_run_that_cannot_be_terminated_says_why(host: Host, kfp_host: KfpHost) -> None:
    run_id = host.submit(load_pipeline(small))
    body = json.dumps({"code": 9, "message": "the run has ended"})
    kfp_host.fail(400, path=":terminate", body=body)
    with pytest.raises(HostError, match="the run has ended"):
        host.terminate(run_id)


def test_the_pipeline_of_a_file_is_what_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    compiler.Compiler().compile(small, str(tmp_path / "small.yaml"))
    loaded: Pipeline = load_pipeline(tmp_path / "small.yaml")
    path.write_text(json.dumps(read_specs(loaded.text)[0]))
    assert read_specs(load_pipeline(path).text) == read_specs(loaded.text)
