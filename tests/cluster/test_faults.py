"""Faults of the API server, as its client sees them."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path

import pytest

from tests.cluster.api import Api, ApiError
from tests.cluster.faults import Fault, FaultyServer, Lines, Request
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import config_map, container, pod
from tests.cluster.namespaces import Namespace
from tests.cluster.waiting import until


@pytest.fixture
def api(namespace: Namespace, faulty: FaultyServer, tmp_path: Path) -> Api:
    return namespace.service_account_folder(tmp_path / "account", url=faulty.url, authority=faulty.authority).api


def names(namespace: Namespace) -> list[str]:
    return [each["metadata"]["name"] for each in namespace.list("pods")]


def test_requests_are_passed_on_and_recorded(namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    api.create(pod("one", container("true")), namespace.name)
    assert names(namespace) == ["one"]
    assert api.get(namespace.path("pods", "one"))["metadata"]["name"] == "one"
    with pytest.raises(ApiError, match="cannot"):
        api.get("/api/v1/nodes")
    path = namespace.path("pods")
    assert [(each.number, str(each), each.status) for each in faulty.requests] == [
        (0, "GET /api/v1", 200),
        (1, f"POST {path}", 201),
        (2, f"GET {path}/one", 200),
        (3, "GET /api/v1/nodes", 403),
    ]
    assert faulty.count("^GET .*/one") == 1


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_status_is_answered_once(status: int, namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    faulty.inject([None, status], "POST")
    api.post(namespace.path("pods"), pod("one", container("true")))
    with pytest.raises(ApiError, match="a fault of the test") as refused:
        api.post(namespace.path("pods"), pod("two", container("true")))
    assert refused.value.status == status
    api.post(namespace.path("pods"), pod("three", container("true")))
    assert names(namespace) == ["one", "three"]
    assert [each.status for each in faulty.requests] == [201, status, 201]


@pytest.mark.parametrize(("fault", "done"), [("cut", False), ("lost", True), ("half", True)])
def test_a_connection_breaks(fault: Fault, done: bool, namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    faulty.inject([fault])
    with pytest.raises((OSError, http.client.HTTPException)):
        api.post(namespace.path("pods"), pod("one", container("true")))
    assert names(namespace) == (["one"] if done else [])
    assert api.get(namespace.path("pods"))["kind"] == "PodList"


def test_a_request_is_delayed(namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    faulty.inject([0.3])
    start = time.monotonic()
    api.get(namespace.path("pods"))
    assert time.monotonic() - start >= 0.3


@pytest.mark.parametrize("complete", [False, True])
def test_an_answer_that_goes_on_breaks_in_the_middle_of_a_line(
    complete: bool, namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, api: Api
) -> None:
    program = "echo first; echo second; sleep 0.1; echo third; sleep 600"
    namespace.create(pod("one", container("sh", "-c", program)))
    until(lambda: namespace.list("pods")[0]["status"]["phase"] == "Running")
    faulty.inject([Lines(2, complete=complete)], "GET .*/log")
    path = namespace.path("pods", "one/log")
    with api.stream(path, follow=True) as log:
        assert b"".join(log) in (b"first\nsecond\nth", b"first\nsecond\n")
    with api.stream(path, follow=True) as log:
        lines = iter(log)
        assert [next(lines) for _ in range(3)] == [b"first\n", b"second\n", b"third\n"]


def test_a_test_is_called_before_and_after_each_request(namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    seen: list[tuple[str, int, list[str]]] = []

    def note(when: str, request: Request) -> None:
        seen.append((when, request.number, names(namespace)))

    faulty.before = lambda request: note("before", request)
    faulty.after = lambda request: note("after", request)
    api.post(namespace.path("pods"), pod("one", container("true")))
    api.delete(namespace.path("pods", "one"))
    assert seen == [("before", 0, []), ("after", 0, ["one"]), ("before", 1, ["one"]), ("after", 1, [])]


def test_a_watch_goes_through(namespace: Namespace, faulty: FaultyServer, api: Api) -> None:
    seen: list[bytes] = []
    path = namespace.path("configmaps")
    version = api.get(path)["metadata"]["resourceVersion"]
    with api.stream(path, watch=1, resourceVersion=version) as watched:
        thread = threading.Thread(target=lambda: seen.append(next(iter(watched))))
        thread.start()
        namespace.create(config_map("one", key="value"))
        thread.join(30)
    assert b'"name":"one"' in seen[0] or b"kube-root-ca.crt" in seen[0]
