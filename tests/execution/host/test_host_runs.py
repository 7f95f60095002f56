"""Runs are submitted as kfp.Client submits them, found by any of their names, listed and terminated."""

import json
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from kfp import compiler, dsl
from kfp.client import Client

from tests.execution.host.scripted import Reply, Request, Scripted, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from torchx_kfp.entrypoints.cli.lookup import Lookup
from torchx_kfp.errors import (
    ArgumentError,
    HostAnswerLostError,
    HostError,
    HostUnreachableError,
    UnknownRunError,
)
from torchx_kfp.host import Host, RunFilter, connect, submit
from torchx_kfp.local import State, load_pipeline


@dsl.container_component
def echo(text: str):
    return dsl.ContainerSpec(image="x", command=["echo", text])


@dsl.pipeline(name="small")
def small(text: str = "hi", count: int = 1, share: float = 0.5, flag: bool = False, names: list = [], more: dict = {}):  # noqa: B006 (KFP takes the text of defaults)
    echo(text=text)
    with dsl.If(flag == True):  # noqa: E712 (KFP's condition)
        echo(text="inside")


def uuid(number: int) -> str:
    return f"{number:08}-0000-0000-0000-000000000000"


# Submit


def taking(experiment: str) -> AbstractContextManager[Scripted]:
    """Serve a host that takes every run, and that has this experiment."""

    def answer(request: Request) -> Reply:
        if request.path.startswith("/apis/v2beta1/experiments"):
            found = {"experiment_id": "1", "display_name": experiment}
            return Reply({"experiments": [found]} if request.method == "GET" else found)
        return Reply({"run_id": uuid(2), "multi_user": False})

    return scripted(answer)


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
    with taking(options.get("experiment", "Default")) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = Client(host=server.url)
            client.list_runs("token", 5, "created_at", namespace="n", filter="{}")
            known = dict(parse_qsl(urlsplit(server.requests[-1].path).query))
            client.create_run_from_pipeline_package(file, arguments=arguments, **theirs_options)
        theirs = server.requests[-1]
        assert submit(file, arguments, host=server.url, **options).run_id == uuid(2)
        ours = server.requests[-1]
        assert not list(connect(host=server.url, namespace="n").list(RunFilter(name="x"), limit=5))
        asked = dict(parse_qsl(urlsplit(server.requests[-1].path).query))
        assert {"filter", "namespace"} <= asked.keys() <= known.keys(), "the names of parameters"
    assert (ours.method, ours.path) == (theirs.method, theirs.path) == ("POST", "/apis/v2beta1/runs")
    assert numbers(simple(ours.body, options)) == numbers(simple(theirs.body, options))
    tasks = tasks_of(ours.body["pipeline_spec"])
    assert len(tasks) == 3
    if options == {"cache": False}:
        assert [task["cachingOptions"]["enableCache"] for task in tasks] == [False] * 3, "also inside of a branch"


def tasks_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    spec = spec.get("pipeline_spec", spec)
    return [
        task
        for component in (spec["root"], *spec["components"].values())
        for task in component.get("dag", {}).get("tasks", {}).values()
    ]


def simple(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without the default name, which has the time, and without caching that is off."""
    body = json.loads(json.dumps(body))
    if "name" not in options:
        name = body.pop("display_name")
        assert name.startswith("small")
        assert time.strftime(" %Y-%m-") in name
    if not options.get("cache", True):
        # Protobuf leaves out what is false; kfp.Client does not change tasks inside of others.
        for task in tasks_of(body["pipeline_spec"]):
            task.pop("cachingOptions")
    return body


def numbers(value: Any) -> Any:
    """Return a value in which numbers are those of protobuf's Struct, which kfp.Client's detour makes of them."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_arguments_are_checked_before_anything_is_sent(kfp_host: KfpHost, host: Host) -> None:
    with pytest.raises(ArgumentError, match=says("'contu'", "'count'", "'share'", "count: int = 1")):
        host.submit(load_pipeline(small), {"contu": 1, "share": "much"})
    assert not kfp_host.requests


@pytest.mark.parametrize(
    ("environ", "given", "body"),
    [
        ({}, "", {"display_name": "Default"}),
        ({"TORCHX_KFP_EXPERIMENT": "mine"}, "", {"display_name": "mine"}),
        ({"TORCHX_KFP_EXPERIMENT": "mine"}, "given", {"display_name": "given"}),
        ({"KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME": "override"}, "given", {"display_name": "override"}),
        ({"TORCHX_KFP_NAMESPACE": "alice"}, "", {"display_name": "Default", "namespace": "alice"}),
    ],
)
def test_the_experiment_of_a_run(
    environ: dict[str, str], given: str, body: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with scripted(lambda request: Reply({"experiment_id": "1", "run_id": uuid(2)})) as server:
        submit(small, experiment=given, host=server.url)
        assert [request.body for request in server.requests if request.method == "POST"][:-1] == [body]
        (asked,) = [request.path for request in server.requests if "/experiments?" in request.path]
        assert ("namespace=alice" in asked) is ("namespace" in body)


def test_an_experiment_that_another_process_creates_first_is_found() -> None:
    found: list[dict[str, str]] = []

    def answer(request: Request) -> Reply:
        if request.path.startswith("/apis/v2beta1/experiments"):
            if request.method == "POST":
                found.append({"experiment_id": "7", "display_name": "Default"})
                return status(6, "Experiment Default already exists", 409)
            return Reply({"experiments": found})
        return Reply({"run_id": uuid(2)})

    with scripted(answer) as server:
        assert submit(small, host=server.url).run_id == uuid(2)
        assert server.requests[-1].body["experiment_id"] == "7"


def test_a_run_whose_answer_is_lost_is_not_submitted_again(kfp_host: KfpHost) -> None:
    kfp_host.fail(429, times=1, path="/runs", method="POST", headers={"Retry-After": "1"})
    kfp_host.add(Fault(path="/runs$", method="POST", cut=0.5))
    facts = ("may have accepted the run 'mine'", "Before you submit it again", f"torchx-kfp runs --host {kfp_host.url}")
    with pytest.raises(HostAnswerLostError, match=says(*facts)):
        submit(small, name="mine", host=kfp_host.url)
    assert len(kfp_host.runs) == 1, "a busy host is asked again, and takes it once"


@pytest.mark.parametrize("wrong", ["2", "../../x", [], "a" * 100_000, uuid(1).upper() + "/", 7])
def test_a_run_id_that_is_none_is_an_error(wrong: Any) -> None:
    answer = {"run_id": wrong, "runs": [{"run_id": wrong}]}
    with scripted(lambda request: Reply(answer)) as server:
        host = connect(host=server.url, namespace="alice")
        facts = ("/apis/v2beta1/runs", "run id", "may have accepted the run 'small", f"--host {server.url} -n alice")
        with pytest.raises(HostAnswerLostError, match=says(*facts)) as caught:
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


def test_a_run_is_found_by_each_of_its_names(host: Host, submitted: list[str], kfp_host: KfpHost) -> None:
    first = submitted[0]
    before = len(kfp_host.requests)
    link = f"{kfp_host.url.upper()}/pipeline/#/runs/details/{first}?x=1"
    for name in (first, first.upper(), link, f"kfp://torchx/{first}"):
        assert host.find(name) == first
    assert len(kfp_host.requests) == before, "an id is a name without any request"
    for name in ("first", first[:8], first[:13]):
        assert host.find(name) == first
    assert host.find("latest") == next(iter(host.list())).run_id
    assert host.find("deadbeef") == submitted[3], "a name, although it looks like the beginning of an id"
    with pytest.raises(UnknownRunError, match=says("no run", first[:3], "at least 4 characters of an id")):
        host.find(first[:3])
    lookup = Lookup(flags={"host": kfp_host.url})
    for name in (link, f"kfp://torchx/{first}"):
        for rest, part in {"": "", "/train[2]": "train[2]", "/inner/train": "inner/train"}.items():
            source, found = lookup.find_part(f"{name.partition('?')[0]}{rest}")
            assert (source.run_id, found) == (first, part)
    assert lookup.find_part(f"{link}/execution/12")[1] == lookup.find_part(f"{link[:-4]}/execution/12")[1] == ""
    other = f"https://kfp.example.com/pipeline/#/runs/details/{first}"
    with pytest.raises(UnknownRunError, match=says(other, "another host", kfp_host.url, "--host", f"id: {first}")):
        host.find(other)
    assert connect(host=kfp_host.url, ui_host="https://kfp.example.com").find(other) == first
    again = submit(small, name=f"again: {first}", host=kfp_host.url).run_id
    assert host.find(f"again: {first}") == again, "a name may mention another run"


@pytest.mark.parametrize("wrong", [5, "x", {"a": 1}, [None, 5, ["x"]]])
def test_lists_that_are_none_are_empty(wrong: Any) -> None:
    with scripted(lambda request: Reply({"runs": wrong, "experiments": wrong, "experiment_id": "new"})) as server:
        host = connect(host=server.url)
        assert list(host.list(limit=1)) == []
        with pytest.raises(UnknownRunError, match="no run"):
            host.find("latest")
        with pytest.raises(HostUnreachableError, match=says(server.url, "without a run id")):
            host.submit(load_pipeline(small))


def test_the_host_selects(host: Host, kfp_host: KfpHost) -> None:
    """Archived runs, and runs with another id, cost no requests; a filter lasts for all pages."""
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
    where = RunFilter(states=["running"], newer_than=9999)
    found = [run.run_id for run in host.list(where, limit=99)]
    assert found == [run.record.run_id for run in reversed(runs[21:120])]
    assert len(kfp_host.requests) - before == 2


# List


def run_json(number: int, **more: Any) -> dict[str, Any]:
    return {"run_id": uuid(number), "display_name": f"run-{number}", **more}


def pages(count: int, size: int) -> AbstractContextManager[Scripted]:
    """Serve so many runs, so many in a page."""

    def answer(request: Request) -> Reply:
        words = request.path.replace("?", "&").split("&")
        token = int(next((word[11:] for word in words if word.startswith("page_token=")), 0))
        runs = [run_json(number) for number in range(token, min(token + size, count))]
        return Reply({"runs": runs, "next_page_token": str(token + size) if token + size < count else ""})

    return scripted(answer)


@pytest.mark.parametrize(("limit", "found", "requests"), [(None, 120, 3), (1, 1, 1), (60, 60, 2), (500, 120, 3)])
def test_pages_are_asked_for_as_they_are_needed(limit: int | None, found: int, requests: int) -> None:
    with pages(120, 50) as server:
        runs = list(connect(host=server.url).list(limit=limit))
        assert [run.name for run in runs] == [f"run-{number}" for number in range(found)]
        assert len(server.requests) == requests
        first, *others = (request.path for request in server.requests)
        assert "sort_by=created_at%20desc" in first
        # KFP finds a filter with lists or times in a token different from the same one in a request.
        assert not [path for path in others if "sort_by" in path or "filter" in path]


def test_a_list_without_an_end_is_left() -> None:
    with scripted(lambda request: Reply({"runs": [run_json(1)], "next_page_token": "x"})) as server:
        assert len(list(connect(host=server.url).list())) == 2, "a token that repeats"
    with pages(100_000, 50) as server:
        with pytest.raises(UnknownRunError):
            connect(host=server.url).find("99999999")
        assert len(server.requests) < 15, "only some hundred runs are looked at for a name"


def test_runs_with_missing_fields_and_archived_ones() -> None:
    runs = [
        {"display_name": "no id"},
        {"run_id": uuid(1)},
        {
            "run_id": uuid(2),
            "storage_state": "ARCHIVED",
            "state": "FAILED",
            "state_history": [{"state": "CANCELING", "update_time": "2026-11-22T03:00:00Z"}],
        },
        {"run_id": uuid(3), "state": "NEW", "pipeline_spec": 1, "created_at": "soon", "state_history": 3},
        7,
    ]
    with scripted(lambda request: Reply({"runs": runs})) as server:
        host = connect(host=server.url)
        assert [run.run_id for run in host.list()] == [uuid(1), uuid(2), uuid(3)]
        assert [run.state for run in host.list()] == [State.QUEUED, State.CANCELED, State.QUEUED]
