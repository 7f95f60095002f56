"""Checks of a host: each thing that may be wrong there is one clear line, and the other checks go on where they can."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.entrypoints.doctor.conftest import Check, Doctor
from tests.execution.host.answers_of_kfp import answer
from tests.execution.host.scripted import CLOSE, Reply, Request, scripted, status
from tests.facts import says
from tests.fake_kfp import KfpHost

HEALTH = {"tag_name": "2.17.0", "multi_user": False}
NOT_SERVED = Reply({"code": 5, "message": "Not Found", "details": []}, 404)
FORBIDDEN = status(7, "User 'me' is not authorized with reason: nope", 403)
NO_RUN = status(5, "Failed to get a run: Run 0 not found", 404)
BUSY = Reply("", 503)
HEALTHZ = ("GET", "/apis/v2beta1/healthz")
EXPERIMENTS = ("GET", "/apis/v2beta1/experiments")
LIST, OLD = ("GET", "/apis/v2beta1/runs"), ("GET", "/apis/v1beta1/runs")
#: The answers of a host on which all is well, by method and the beginning of the path.
WELL: Mapping[tuple[str, str], Reply | None] = {HEALTHZ: Reply(HEALTH), LIST: Reply({}), OLD: NO_RUN}
#: What is skipped if the host does not answer.
REST = dict.fromkeys(("version", "login", "states of stages"), "skipped")
MACHINE = ("Python", "packages", "container engine", "settings", "tracker base", "storage of stages")

Changed = Mapping[tuple[str, str], Reply | None]


def look(doctor: Doctor, change: Changed | None = None, *words: str) -> tuple[dict[str, Check], list[Request]]:
    """Return what is found on a host that is well but for some answers, and what it was asked."""
    replies = {**WELL, **(change or {})}

    def reply(request: Request) -> Reply | None:
        fitting = [key for key in replies if key[0] == request.method and request.path.startswith(key[1])]
        return replies[max(fitting, key=lambda key: len(key[1]))]

    with scripted(reply) as server:
        return doctor("--host", server.url, *words), server.requests


def levels(found: Mapping[str, Check]) -> dict[str, str]:
    """Return the levels of the checks of the host that are not ok."""
    return {name: it.level for name, it in found.items() if it.level != "ok" and name not in MACHINE}


def test_a_host_on_which_all_is_well_is_not_changed(doctor: Doctor, kfp_host: KfpHost) -> None:
    found, requests = look(doctor)
    assert (levels(found), {*REST} < {*found}) == ({}, True)
    assert found["version"].said.startswith("KFP 2.17.0, for one user.")
    assert {request.method for request in requests} == {"GET"}
    assert levels(doctor("--host", kfp_host.url)) == {}
    kfp_host.served -= {"v1beta1"}
    assert levels(doctor("--host", kfp_host.url)) == {"states of stages": "warning"}
    assert not kfp_host.runs


def health(**content: Any) -> Reply:
    return Reply(content)


LOGIN = Reply("<html>Log in, <input type='password'> sign in</html>", kind="text/html")
WRONG = [
    (HEALTHZ, Reply("<!DOCTYPE html><html>Kubeflow</html>", kind="text/html"), "host", ["web page", "/pipeline"]),
    (HEALTHZ, LOGIN, "host", ["a page to sign in"]),
    (HEALTHZ, Reply("hello"), "host", ["something other than KFP's API", "hello"]),
    (HEALTHZ, health(status="UP", a=1), "host", ["healthz is not from KFP", "'status', 'a'", "its port"]),
    (HEALTHZ, health(), "host", ["healthz is not from KFP", "nothing"]),
    (HEALTHZ, NOT_SERVED, "host", ["Not Found", "Is this the URL of a KFP host?"]),
    (HEALTHZ, status(16, "no token", 401), "host", ["HTTP status 401", "TORCHX_KFP_EXISTING_TOKEN"]),
    (HEALTHZ, CLOSE, "host", ["the connection broke"]),
    (HEALTHZ, BUSY, "host", ["busy or restarting"]),
    (HEALTHZ, health(apiServerReady=False), "host", ["its API server does not", "kubectl -n kubeflow get pods"]),
    (HEALTHZ, health(tag_name="1.8.5"), "version?", ["KFP 1.8.5", "KFP 2"]),
    (HEALTHZ, health(tag_name="2.5.0"), "version?", ["KFP 2.5.0", "2.14"]),
    (LIST, FORBIDDEN, "login", ["not authorized", "owner of this namespace's profile"]),
    (OLD, NOT_SERVED, "states of stages?", ["only the states of runs", "v1beta1", "Not Found"]),
    (OLD, FORBIDDEN, "states of stages?", ["only the states of runs", "not authorized"]),
    (OLD, CLOSE, "states of stages?", ["connection broke"]),
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
        assert levels(found) == {"host": "missing", **REST}
        assert len({request.path for request in requests}) == 1
    else:
        skipped = {"states of stages": "skipped"} if subject == "login" else {}
        assert levels(found) == {subject: level, **skipped}


def test_nothing_answers_or_no_host_is_given(doctor: Doctor) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = doctor("--host", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert levels(found) == {"host": "missing", **REST}
    assert re.search(says("does not answer", "kubectl port-forward"), found["host"].said)
    found = doctor()
    assert levels(found) == {"host": "skipped", **REST}
    assert re.search(says("--host", "TORCHX_KFP_HOST"), found["host"].said)


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        ({"apiServerReady": True, "apiServerTagName": "2.14.3", "multi_user": False}, "KFP 2.14.3"),
        ({"tag_name": "unknown"}, "its version is unknown"),
    ],
)
def test_versions_that_are_well(doctor: Doctor, answer: dict[str, Any], fact: str) -> None:
    found, _ = look(doctor, {HEALTHZ: Reply(answer)})
    assert (found["version"].level, fact in found["version"].said) == ("ok", True)


def test_a_host_of_several_users(doctor: Doctor) -> None:
    many: Changed = {HEALTHZ: Reply({**HEALTH, "multi_user": True})}
    found, _ = look(doctor, many)
    assert levels(found) == {"login": "missing", "states of stages": "skipped"}
    assert re.search(says("multi-user", "--namespace"), found["login"].said)
    through_ui, _ = look(doctor, {HEALTHZ: health(apiServerReady=True, apiServerMultiUser=True)})
    assert "several users" in through_ui["version"].said
    found, requests = look(doctor, {**many, EXPERIMENTS: Reply({})}, "--namespace", "team")
    assert found["login"].said == "Runs can be listed in the namespace 'team'."
    assert [request for request in requests if "namespace=team" in request.path]
    assert levels(found) == {}
    found, _ = look(doctor, None, "--namespace", "team")
    assert found["login"].said == "Runs can be listed. The namespace 'team' has no effect: the host has one user."


@pytest.mark.parametrize(("who", "level"), [("viewer", "warning"), ("editor", "ok")])
def test_who_may_list_runs_may_not_submit_any(doctor: Doctor, who: str, level: str) -> None:
    """KFP looks at the right to create a run before it looks at the pipeline, which is empty."""
    refused = answer("several-users")[f"create-{who}"]
    replies: Changed = {
        HEALTHZ: Reply({**HEALTH, "multi_user": True}),
        EXPERIMENTS: Reply({"experiments": [{"experiment_id": "0869851f"}]}),
        ("POST", LIST[1]): Reply(refused["answer"], refused["status"]),
    }
    found, requests = look(doctor, replies, "--namespace", "team-a")
    assert found["login"].level == level
    if level == "ok":
        assert found["login"].said == "Runs can be listed and submitted in the namespace 'team-a'."
    else:
        facts = says("not submitted", "'system:serviceaccount:team-a:default-viewer' may not create runs", "'team-a'")
        assert re.search(facts, found["login"].said), found["login"].said
    [request] = [each for each in requests if each.method == "POST"]
    assert (request.body["pipeline_spec"], request.body["experiment_id"]) == ({}, "0869851f")
    # Of other errors, nobody knows whether the right was looked at.
    replies["POST", LIST[1]] = Reply({"code": 13, "message": "InternalServerError: the database is gone"}, 500)
    found, _ = look(doctor, replies, "--namespace", "team-a")
    assert found["login"].said == "Runs can be listed in the namespace 'team-a'."
