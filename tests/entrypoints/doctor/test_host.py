"""Checks of a host: each thing that may be wrong there is one clear line, and the other checks go on where they can."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import pytest

from tests.entrypoints.doctor.conftest import Check, Doctor
from tests.execution.host.answers_of_kfp import manifest
from tests.execution.host.scripted import CLOSE, Reply, Request, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost

HEALTH = {"tag_name": "2.17.0", "multi_user": False}
NOT_SERVED = Reply({"code": 5, "message": "Not Found", "details": []}, 404)
FORBIDDEN = status(7, "User 'me' is not authorized with reason: nope", 403)
BROKEN = status(13, "Failed to create a new run: unknown template format: pipeline spec is invalid", 500)
NO_RUN = status(5, "Failed to get a run: Run 0 not found", 404)
BUSY = Reply("", 503)
HEALTHZ = ("GET", "/apis/v2beta1/healthz")
LIST, OLD, LOGS = ("GET", "/apis/v2beta1/runs"), ("GET", "/apis/v1beta1/runs"), ("GET", "/apis/v1alpha1/runs")
EXPERIMENTS = ("GET", "/apis/v2beta1/experiments")
RUN, CANCEL = ("POST", "/apis/v2beta1/runs"), ("POST", "/apis/v2beta1/runs/")
#: The answers of a host on which all is well, by method and the beginning of the path.
WELL: Mapping[tuple[str, str], Reply | None] = {
    HEALTHZ: Reply(HEALTH),
    LIST: Reply({}),
    OLD: NO_RUN,
    LOGS: Reply({"error_message": "no such log"}, 500),
    EXPERIMENTS: Reply({"experiments": [{"experiment_id": "e1"}]}),
    RUN: BROKEN,
    CANCEL: NO_RUN,
}
#: What is skipped if the host does not answer, and if its runs cannot be listed.
ALL = "version, clock, login, namespace, APIs, rights and pipeline root"
REST = "APIs, rights and pipeline root of the host"
MACHINE = ("Python", "packages", "container engine", "settings", "tracker base", "run")

Changed = Mapping[tuple[str, str], Reply | None]


def look(doctor: Doctor, change: Changed | None = None, *words: str) -> tuple[dict[str, Check], list[Request]]:
    """Return what is found on a host that is well but for some answers, and what it was asked."""
    replies = {**WELL, **(change or {})}

    def answer(request: Request) -> Reply | None:
        fitting = [key for key in replies if key[0] == request.method and request.path.startswith(key[1])]
        return replies[max(fitting, key=lambda key: len(key[1]))]

    with scripted(answer) as server:
        return doctor("--host", server.url, *words), server.requests


def levels(found: Mapping[str, Check]) -> dict[str, str]:
    """Return the levels of the checks of the host that are not ok."""
    return {name: it.level for name, it in found.items() if it.level != "ok" and name not in MACHINE}


def test_a_host_on_which_all_is_well(doctor: Doctor) -> None:
    found, requests = look(doctor)
    assert levels(found) == {"pipeline root": "skipped"}
    assert found["version"].said.startswith("KFP 2.17.0, for one user.")
    assert {"host", "clock", "login and namespace", "API v1beta1", "API v1alpha1", "right to run"} <= set(found)
    [run] = [request for request in requests if request.path == "/apis/v2beta1/runs" and request.method == "POST"]
    assert (run.body["pipeline_spec"], run.body["experiment_id"]) == ({"root": 1}, "e1")


def test_the_host_of_the_tests_is_well_and_nothing_is_left_there(doctor: Doctor, kfp_host: KfpHost) -> None:
    assert levels(doctor("--host", kfp_host.url)) == {"pipeline root": "skipped"}
    assert not kfp_host.runs
    kfp_host.served -= {"v1beta1", "v1alpha1"}
    lacking = {"API v1beta1": "warning", "API v1alpha1": "warning", "pipeline root": "skipped"}
    assert levels(doctor("--host", kfp_host.url)) == lacking


def health(**content: Any) -> Reply:
    return Reply(content)


LOGIN = Reply("<html>Log in, <input type='password'> sign in</html>", kind="text/html")
WRONG = [
    (HEALTHZ, Reply("<!DOCTYPE html><html>Kubeflow</html>", kind="text/html"), "host", ["web page", "/pipeline"]),
    (HEALTHZ, LOGIN, "host", ["a page to sign in"]),
    (HEALTHZ, Reply("hello"), "host", ["something other than KFP's API", "hello"]),
    (HEALTHZ, health(status="UP", a=1), "host", ["healthz is not KFP's", "'status', 'a'", "its port"]),
    (HEALTHZ, health(), "host", ["healthz is not KFP's", "nothing"]),
    (HEALTHZ, NOT_SERVED, "host", ["Not Found", "Is this the URL of a KFP host?"]),
    (HEALTHZ, status(16, "no token", 401), "host", ["HTTP status 401", "TORCHX_KFP_EXISTING_TOKEN"]),
    (HEALTHZ, CLOSE, "host", ["the connection broke"]),
    (HEALTHZ, BUSY, "host", ["busy or restarts"]),
    (HEALTHZ, health(tag_name="1.8.5"), "version", ["KFP 1.8.5", "KFP 2"]),
    (HEALTHZ, health(tag_name="2.5.0"), "version?", ["KFP 2.5.0", "2.14"]),
    (HEALTHZ, health(apiServerReady=False), "version", ["its API server does not", "kubectl -n kubeflow get pods"]),
    (LIST, FORBIDDEN, "login and namespace", ["403", "not authorized"]),
    (OLD, NOT_SERVED, "API v1beta1?", ["does not serve", "states of stages"]),
    (OLD, FORBIDDEN, "API v1beta1?", ["403", "states of stages"]),
    (OLD, CLOSE, "API v1beta1 and pipeline root", ["connection broke"]),
    (LOGS, NOT_SERVED, "API v1alpha1?", ["does not serve", "logs"]),
    (LOGS, FORBIDDEN, "API v1alpha1?", ["403", "Logs"]),
    (RUN, FORBIDDEN, "right to run", ["403", "administrator"]),
    (RUN, BUSY, "right to run?", ["does not say"]),
    (RUN, status(3, "no names", 400), "right to run?", ["no names"]),
    (CANCEL, FORBIDDEN, "right to cancel", ["403", "administrator"]),
    (CANCEL, NOT_SERVED, "right to cancel?", ["does not know"]),
    (CANCEL, BUSY, "right to cancel", ["503"]),
]


@pytest.mark.parametrize(("where", "reply", "subject", "facts"), WRONG)
def test_one_thing_is_wrong(
    doctor: Doctor, where: tuple[str, str], reply: Reply | None, subject: str, facts: list[str]
) -> None:
    """It is missing, or a warning where a question mark follows the subject."""
    found, requests = look(doctor, {where: reply})
    level, subject = "warning" if subject.endswith("?") else "missing", subject.rstrip("?")
    assert found[subject].level == level
    assert re.search(says(*facts), found[subject].said), found[subject]
    if subject == "host":
        assert levels(found) == {"host": "missing", ALL: "skipped"}
        assert len({request.path for request in requests}) == 1
    else:
        assert set(levels(found)) <= {subject, "pipeline root", REST}


def test_nothing_answers_or_no_host_is_given(doctor: Doctor) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = doctor("--host", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert levels(found) == {"host": "missing", ALL: "skipped"}
    assert re.search(says("does not answer", "kubectl port-forward"), found["host"].said)
    found = doctor()
    assert levels(found) == {"host": "skipped"}
    assert re.search(says("--host", "TORCHX_KFP_HOST"), found["host"].said)


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        ({"apiServerReady": True, "apiServerTagName": "2.14.3", "multi_user": False}, "KFP 2.14.3"),
        ({"tag_name": "unknown"}, "does not say its version"),
    ],
)
def test_versions_that_are_well(doctor: Doctor, answer: dict[str, Any], fact: str) -> None:
    found, _ = look(doctor, {HEALTHZ: Reply(answer)})
    assert (found["version"].level, fact in found["version"].said) == ("ok", True)


@pytest.mark.parametrize(
    ("late", "level", "fact"),
    [(2, "ok", "agree"), (-90, "warning", "behind"), (600, "missing", "10m 0"), (-1e6, "missing", "behind")],
)
def test_the_clock(doctor: Doctor, late: float, level: str, fact: str) -> None:
    date = formatdate(time.time() - late, usegmt=True)
    found, _ = look(doctor, {HEALTHZ: Reply(HEALTH, headers={"Date": date})})
    assert found["clock"].level == level
    assert fact in found["clock"].said
    assert ("timedatectl" in found["clock"].said) == (level != "ok")


def test_a_host_of_several_users(doctor: Doctor) -> None:
    many: Changed = {HEALTHZ: Reply({**HEALTH, "multi_user": True})}
    found, _ = look(doctor, many)
    assert levels(found) == {"login and namespace": "missing", REST: "skipped"}
    assert re.search(says("several users", "--namespace"), found["login and namespace"].said)
    through_ui, _ = look(doctor, {HEALTHZ: health(apiServerReady=True, apiServerMultiUser=True)})
    assert "several users" in through_ui["version"].said
    found, requests = look(doctor, many, "--namespace", "team")
    assert "'team'" in found["login and namespace"].said
    assert [request for request in requests if "namespace=team" in request.path]
    assert levels(found) == {"pipeline root": "skipped"}
    found, requests = look(doctor, {**many, EXPERIMENTS: Reply({})}, "--namespace", "team")
    assert "no experiment" in found["right to run"].said
    assert not [request for request in requests if request.method == "POST" and request.path.endswith("runs")]


def test_a_run_that_is_taken_by_mistake_is_deleted(doctor: Doctor) -> None:
    found, requests = look(doctor, {RUN: Reply({"run_id": "r1"}), ("DELETE", "/apis/v2beta1/runs"): Reply({})})
    assert found["right to run"].level == "ok"
    assert [request.path for request in requests if request.method == "DELETE"] == ["/apis/v2beta1/runs/r1"]


def test_the_pipeline_root_is_that_of_the_newest_run(doctor: Doctor) -> None:
    answer = Reply(json.loads(json.dumps(manifest("succeeded"))))
    for run_id, level in ((answer.content["run"]["id"], "ok"), ("another", "skipped")):
        found, _ = look(doctor, {LIST: Reply({"runs": [{"run_id": run_id}]}), OLD: answer})
        assert found["pipeline root"].level == level
        assert ("minio://mlpipeline/v2/artifacts" in found["pipeline root"].said) == (level == "ok")
