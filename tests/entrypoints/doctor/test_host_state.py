"""Checks of a host: each thing that may be wrong there is one clear line, and the other checks go on where they can."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import manifest
from tests.execution.host.scripted import CLOSE, Reply, Request, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.entrypoints.doctor.host_state import artifacts_root, check_host
from torchx_kfp.entrypoints.doctor.verdicts import Verdict
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.manifest import manifest_of
from torchx_kfp.execution.host.settings import Settings

QUICK = Patience(connect=2, read=5, whole=10, retries=0, wait=0.001, longest_wait=0.01)
HEALTH = {"tag_name": "2.17.0", "multi_user": False}
NOT_SERVED = Reply({"code": 5, "message": "Not Found", "details": []}, 404)
FORBIDDEN = status(7, "User 'me' is not authorized with reason: nope", 403)
BROKEN = status(13, "Failed to create a new run: unknown template format: pipeline spec is invalid", 500)
NO_RUN = status(5, "Failed to get a run: Run 0 not found", 404)
#: The answers of a host on which all is well, by method and the beginning of the path.
WELL: Mapping[tuple[str, str], Reply | None] = {
    ("GET", "/apis/v2beta1/healthz"): Reply(HEALTH),
    ("GET", "/apis/v2beta1/runs"): Reply({}),
    ("GET", "/apis/v1beta1/runs"): NO_RUN,
    ("GET", "/apis/v1alpha1/runs"): Reply({"error_message": "no such log"}, 500),
    ("GET", "/apis/v2beta1/experiments"): Reply({"experiments": [{"experiment_id": "e1"}]}),
    ("POST", "/apis/v2beta1/runs"): BROKEN,
    ("POST", "/apis/v2beta1/runs/"): NO_RUN,
}


def looked_at(
    change: Mapping[tuple[str, str], Reply | None] | None = None, *, late: float = 0.0, **settings: Any
) -> tuple[dict[str, Verdict], list[Request]]:
    """Return what is found on a host that is well but for some answers, by subject, and what it was asked."""
    replies = {**WELL, **(change or {})}

    def answer(request: Request) -> Reply | None:
        fitting = [key for key in replies if key[0] == request.method and request.path.startswith(key[1])]
        return replies[max(fitting, key=lambda key: len(key[1]))]

    with scripted(answer) as server:
        connection = Connection(Settings(host=server.url, **settings), QUICK)
        found = list(check_host(connection, lambda: time.time() + late))
    assert len({verdict.subject for verdict in found}) == len(found)
    assert not [verdict for verdict in found if "\n" in str(verdict) or "Traceback" in str(verdict)]
    return {verdict.subject: verdict for verdict in found}, server.requests


def levels(found: Mapping[str, Verdict]) -> dict[str, str]:
    return {name: verdict.level.value for name, verdict in found.items() if verdict.level.value != "ok"}


def test_a_host_on_which_all_is_well() -> None:
    found, requests = looked_at()
    assert levels(found) == {"pipeline root": "skipped"}
    assert found["version"].found == "KFP 2.17.0, for one user."
    assert {"host", "clock", "login and namespace", "API v1beta1", "API v1alpha1", "right to run"} <= set(found)
    [run] = [request for request in requests if request.path == "/apis/v2beta1/runs" and request.method == "POST"]
    assert (run.body["pipeline_spec"], run.body["experiment_id"]) == ({"root": 1}, "e1")


def test_the_host_of_the_tests_is_well_and_nothing_is_left_there(kfp_host: KfpHost, connection: Connection) -> None:
    found = {verdict.subject: verdict for verdict in check_host(connection)}
    assert levels(found) == {"pipeline root": "skipped"}
    assert not kfp_host.runs
    kfp_host.served -= {"v1beta1", "v1alpha1"}
    assert levels({verdict.subject: verdict for verdict in check_host(connection)}) == {
        "API v1beta1": "warning",
        "API v1alpha1": "warning",
        "pipeline root": "skipped",
    }


@pytest.mark.parametrize(
    ("reply", "facts"),
    [
        (Reply("<!DOCTYPE html><html>Kubeflow</html>", kind="text/html"), ["web page", "/pipeline"]),
        (Reply("<html>Log in, <input type='password'> sign in</html>", kind="text/html"), ["a page to sign in"]),
        (Reply("hello"), ["something other than KFP's API", "hello"]),
        (Reply({"status": "UP", "a": 1}), ["healthz is not KFP's", "'status', 'a'", "its port"]),
        (Reply({}), ["healthz is not KFP's", "nothing"]),
        (NOT_SERVED, ["Not Found", "Is this the URL of a KFP host?"]),
        (status(16, "no token", 401), ["HTTP status 401", "--existing-token"]),
        (CLOSE, ["the connection broke"]),
        (Reply("", 503), ["busy or restarts"]),
    ],
)
def test_something_else_answers(reply: Reply | None, facts: list[str]) -> None:
    found, requests = looked_at({("GET", "/apis/v2beta1/healthz"): reply})
    assert [verdict.level.value for verdict in found.values()] == ["missing", "skipped"]
    assert re.search(says(*facts), found["host"].found), found["host"]
    assert len({request.path for request in requests}) == 1


def test_nothing_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        host, rest = check_host(Connection(Settings(host=url), QUICK))
    assert (host.level.value, rest.level.value) == ("missing", "skipped")
    assert re.search(says("does not answer", "kubectl port-forward"), host.found)


def test_no_host_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    [verdict] = check_host(Connection(Settings(), QUICK))
    assert verdict.level.value == "skipped"
    assert re.search(says("--host", "TORCHX_KFP_HOST"), verdict.found)


@pytest.mark.parametrize(
    ("health", "level", "facts"),
    [
        ({"apiServerReady": True, "apiServerTagName": "2.14.3", "multi_user": False}, "ok", ["KFP 2.14.3"]),
        ({"tag_name": "unknown"}, "ok", ["does not say its version"]),
        ({"tag_name": "1.8.5"}, "missing", ["KFP 1.8.5", "KFP 2"]),
        ({"tag_name": "2.5.0"}, "warning", ["KFP 2.5.0", "2.14"]),
        ({"apiServerReady": False}, "missing", ["its API server does not", "kubectl -n kubeflow get pods"]),
    ],
)
def test_the_version(health: dict[str, Any], level: str, facts: list[str]) -> None:
    verdict = looked_at({("GET", "/apis/v2beta1/healthz"): Reply(health)})[0]["version"]
    assert verdict.level.value == level
    assert re.search(says(*facts), str(verdict)), verdict


@pytest.mark.parametrize(
    ("late", "level", "fact"),
    [(2, "ok", "agree"), (-90, "warning", "behind"), (600, "missing", "10m 0"), (-1e6, "missing", "behind")],
)
def test_the_clock(late: float, level: str, fact: str) -> None:
    verdict = looked_at(late=late)[0]["clock"]
    assert verdict.level.value == level
    assert fact in verdict.found
    assert ("timedatectl" in verdict.way_out) == (level != "ok")


def test_a_host_of_several_users() -> None:
    many = {("GET", "/apis/v2beta1/healthz"): Reply({**HEALTH, "multi_user": True})}
    found, _ = looked_at(many)
    assert levels(found) == {
        "login and namespace": "missing",
        "APIs, rights and pipeline root of the host": "skipped",
    }
    assert re.search(says("several users", "--namespace"), str(found["login and namespace"]))
    through_ui = {"apiServerReady": True, "apiServerMultiUser": True}
    assert "several users" in looked_at({("GET", "/apis/v2beta1/healthz"): Reply(through_ui)})[0]["version"].found
    found, requests = looked_at(many, namespace="team")
    assert "'team'" in found["login and namespace"].found
    assert [request for request in requests if "namespace=team" in request.path]
    assert levels(found) == {"pipeline root": "skipped"}
    found, requests = looked_at({**many, ("GET", "/apis/v2beta1/experiments"): Reply({})}, namespace="team")
    assert "no experiment" in found["right to run"].found
    assert not [request for request in requests if request.method == "POST" and request.path.endswith("runs")]


@pytest.mark.parametrize(
    ("where", "reply", "subject", "level", "facts"),
    [
        (("GET", "/apis/v2beta1/runs"), FORBIDDEN, "login and namespace", "missing", ["403", "not authorized"]),
        (("GET", "/apis/v1beta1/runs"), NOT_SERVED, "API v1beta1", "warning", ["does not serve", "states of stages"]),
        (("GET", "/apis/v1beta1/runs"), FORBIDDEN, "API v1beta1", "warning", ["403", "states of stages"]),
        (("GET", "/apis/v1beta1/runs"), CLOSE, "API v1beta1 and pipeline root", "missing", ["connection broke"]),
        (("GET", "/apis/v1alpha1/runs"), NOT_SERVED, "API v1alpha1", "warning", ["does not serve", "logs"]),
        (("GET", "/apis/v1alpha1/runs"), FORBIDDEN, "API v1alpha1", "warning", ["403", "Logs"]),
        (("POST", "/apis/v2beta1/runs"), FORBIDDEN, "right to run", "missing", ["403", "administrator"]),
        (("POST", "/apis/v2beta1/runs"), Reply("", 503), "right to run", "warning", ["does not say"]),
        (("POST", "/apis/v2beta1/runs"), status(3, "no names", 400), "right to run", "warning", ["no names"]),
        (("POST", "/apis/v2beta1/runs/"), FORBIDDEN, "right to cancel", "missing", ["403", "administrator"]),
        (("POST", "/apis/v2beta1/runs/"), NOT_SERVED, "right to cancel", "warning", ["does not know"]),
        (("POST", "/apis/v2beta1/runs/"), Reply("", 503), "right to cancel", "missing", ["503"]),
    ],
)
def test_one_thing_is_wrong(
    where: tuple[str, str], reply: Reply | None, subject: str, level: str, facts: list[str]
) -> None:
    found, _ = looked_at({where: reply})
    assert found[subject].level.value == level, found[subject]
    assert re.search(says(*facts), str(found[subject])), found[subject]
    assert set(levels(found)) <= {subject, "pipeline root", "APIs, rights and pipeline root of the host"}


def test_a_run_that_is_taken_by_mistake_is_deleted() -> None:
    taken = {("POST", "/apis/v2beta1/runs"): Reply({"run_id": "r1"}), ("DELETE", "/apis/v2beta1/runs"): Reply({})}
    found, requests = looked_at(taken)
    assert found["right to run"].level.value == "ok"
    assert [request.path for request in requests if request.method == "DELETE"] == ["/apis/v2beta1/runs/r1"]


def test_the_pipeline_root_is_that_of_the_newest_run() -> None:
    answer = manifest("succeeded")
    run_id = answer["run"]["id"]
    assert artifacts_root(manifest_of(answer), run_id) == "minio://mlpipeline/v2/artifacts"
    assert artifacts_root(manifest_of(answer), "another") == ""
    newest = {("GET", "/apis/v2beta1/runs"): Reply({"runs": [{"run_id": run_id}]})}
    found, _ = looked_at({**newest, ("GET", "/apis/v1beta1/runs"): Reply(json.loads(json.dumps(answer)))})
    assert found["pipeline root"].level.value == "ok"
    assert "minio://mlpipeline/v2/artifacts" in found["pipeline root"].found
