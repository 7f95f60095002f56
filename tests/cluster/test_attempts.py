"""An attempt of a distributed stage and its object: only its own, or an earlier attempt's, is deleted.

Steps of the launcher run in this process, so that another attempt can act between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.authoring.engines.goldens import golden_file
from tests.cluster.api import Object
from tests.cluster.faults import FaultyServer, Request
from tests.cluster.manifests import config_map, container, pod
from tests.cluster.namespaces import Namespace
from tests.facts import says
from torchx_kfp.contract.carried import cluster_api, engine_object, replica_roles

Attempts = Callable[..., engine_object.Stage]


class LeftError(BaseException):
    """The launcher has left, with this exit code."""


@pytest.fixture
def attempt(namespace: Namespace, faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Make attempts of a stage, each with its own pod, which nobody starts. All of them use the faulty server."""
    account = namespace.service_account_folder(tmp_path / "account", url=faulty.url, authority=faulty.authority)
    monkeypatch.setattr(cluster_api, "FOLDER", str(account.path))
    variables = {**account.environ, "KFP_ARGO_NODE": "w(0).train(0)", "KFP_SERVICE_ACCOUNT": "pipeline-runner"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def leave(code: int) -> None:
        raise LeftError(code)

    monkeypatch.setattr(engine_object, "leave", leave)
    monkeypatch.setattr(engine_object.signal, "signal", lambda *_: None)
    golden = yaml.safe_load(golden_file("one-role.job").read_text(encoding="utf-8"))
    words = [str(word) for word in golden["words"]]
    counts = [replica_roles.count(role, words) for role in golden["spec"]["roles"]]

    def make(name: str, executor_input: Any = None, *, has_pod: bool = True) -> engine_object.Stage:
        if has_pod:
            namespace.create(pod(name, container("true"), nodeName="none"))
        monkeypatch.setenv("KFP_POD_NAME", name)
        return engine_object.Stage(golden["spec"], words, counts, executor_input or {})

    return make


def jobs(namespace: Namespace) -> list[Object]:
    """Return the Jobs that nobody has deleted."""
    return [one for one in namespace.list("batch/v1/jobs") if "deletionTimestamp" not in one["metadata"]]


def follower(namespace: Namespace) -> str:
    (job,) = jobs(namespace)
    return str(job["metadata"]["annotations"]["torchx-kfp/launcher"])


def is_stopped(stage: engine_object.Stage) -> None:
    with pytest.raises(LeftError, match="143"):
        stage.stop(15, None)


# Signals


def test_a_signal_before_anything_is_seen_deletes_nothing(
    namespace: Namespace, attempt: Attempts, capfd: pytest.CaptureFixture[str]
) -> None:
    """A node was cut off while the first attempt started, and is back while the second one runs."""
    first, second = attempt("first"), attempt("second")
    second.make()
    is_stopped(first)
    assert follower(namespace) == "second"
    assert capfd.readouterr().err.splitlines()[-1] == "torchx-kfp: ended by signal 15"


def test_a_signal_when_another_attempt_follows_the_object(namespace: Namespace, attempt: Attempts) -> None:
    """A launcher that finds another attempt must not delete the object, even on a signal."""
    first, second = attempt("first"), attempt("second")
    made = first.make()
    second.make()
    with pytest.raises(replica_roles.Failure, match="another attempt"):
        first.follow(made)
    is_stopped(first)
    assert follower(namespace) == "second"


def test_a_signal_deletes_what_an_earlier_attempt_has_left(namespace: Namespace, attempt: Attempts) -> None:
    attempt("first").make()
    second = attempt("second")
    second.seen = second.find()
    is_stopped(second)
    assert not jobs(namespace)


def test_a_signal_does_not_delete_what_another_attempt_takes_over(namespace: Namespace, attempt: Attempts) -> None:
    attempt("first").make()
    second, third = attempt("second"), attempt("third")
    second.seen = second.find()
    third.make()
    is_stopped(second)
    assert follower(namespace) == "third"


@pytest.mark.parametrize("fault", [None, "lost"])
def test_a_signal_while_the_object_is_created(
    namespace: Namespace, attempt: Attempts, faulty: FaultyServer, fault: Any
) -> None:
    stage = attempt("first")
    faulty.before = lambda request: stage.stop(15, None) if request.method == "POST" else None
    faulty.inject([fault], "POST")
    with pytest.raises(LeftError, match="143"):
        stage.make()
    assert not jobs(namespace)
    after = [request.method for request in faulty.requests if request.method != "POST"][3:]
    assert after[:2] == ["GET", "DELETE"] if fault else after[:1] == ["DELETE"], "nothing else comes first"


def test_a_signal_while_another_attempt_creates_the_object(
    namespace: Namespace, attempt: Attempts, faulty: FaultyServer
) -> None:
    first, second = attempt("first"), attempt("second")

    def between(request: Request) -> None:
        if request.method == "POST":
            faulty.before = lambda _: None
            second.make()
            first.stop(15, None)

    faulty.before = between
    with pytest.raises(LeftError, match="143"):
        first.make()
    assert follower(namespace) == "second"


# Adoption


@pytest.mark.parametrize("there", [False, True], ids=["absent", "there"])
def test_a_process_that_has_outlived_its_pod_does_nothing(namespace: Namespace, attempt: Attempts, there: bool) -> None:
    """Argo has made another attempt by then."""
    if there:
        attempt("second").make()
    first = attempt("first", has_pod=False)
    with pytest.raises(replica_roles.Failure, match=says("pod first", "gone")):
        first.run()
    assert [one["metadata"]["annotations"]["torchx-kfp/launcher"] for one in jobs(namespace)] == ["second"] * there


def test_an_object_that_is_deleted_meanwhile_is_not_adopted(
    namespace: Namespace, attempt: Attempts, faulty: FaultyServer
) -> None:
    made = attempt("first").make()

    def delete(request: Request) -> None:
        if request.method == "PATCH":
            faulty.before = lambda _: None
            path = namespace.path("batch/v1/jobs", made["metadata"]["name"])
            namespace.api.delete(path, {"propagationPolicy": "Foreground"})

    faulty.before = delete
    again = attempt("second").make()
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


def test_annotations_that_somebody_removes(namespace: Namespace, attempt: Attempts) -> None:
    """It is not known any more whose object it is."""
    stage = attempt("first")
    made = stage.make()
    path = namespace.path("batch/v1/jobs", made["metadata"]["name"])
    namespace.api.patch(path, {"metadata": {"annotations": None}})
    with pytest.raises(replica_roles.Failure, match="another attempt"):
        stage.follow(made)
    assert len(jobs(namespace)) == 1


def test_nobody_would_follow_the_object_after_an_error(namespace: Namespace, attempt: Attempts) -> None:
    """Here, of the disk: the run id of the earlier attempt cannot be written."""
    attempt("first", {}).make()
    outputs = {"parameters": {"run_id": {"outputFile": "/missing/run_id"}}}
    second = attempt("second", {"outputs": outputs})
    (job,) = jobs(namespace)
    path = namespace.path("batch/v1/jobs", job["metadata"]["name"])
    namespace.api.patch(path, {"metadata": {"annotations": {"torchx-kfp/run-id": "r"}}})
    with pytest.raises(FileNotFoundError):
        second.run()
    assert not jobs(namespace)


# The service


@pytest.mark.parametrize("owned", [True, False], ids=["of another object", "of nobody"])
def test_a_service_that_vanishes_while_it_is_taken_over(
    namespace: Namespace, attempt: Attempts, faulty: FaultyServer, owned: bool
) -> None:
    """The garbage collector deletes what a gone object owned, even if it has another owner a moment later."""
    stage = attempt("first")
    other = namespace.create(config_map("other"))
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"]}]
    services = namespace.path("services")

    def left(request: Request) -> None:
        """Let it be there when the launcher creates its own, and delete it when the launcher has seen it."""
        if str(request) == f"POST {services}":
            faulty.before = lambda _: None
            spec = {"clusterIP": "None", "selector": {"a": "b"}}
            metadata = {"name": stage.name, "ownerReferences": owners if owned else []}
            namespace.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def collected(request: Request) -> None:
        if str(request) == f"GET {services}/{stage.name}":
            faulty.after = lambda _: None
            namespace.api.delete(f"{services}/{stage.name}")

    faulty.before, faulty.after = left, collected
    made = stage.make()
    stage.accompany(made)
    (service,) = namespace.list("services")
    assert [one["uid"] for one in service["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    assert not owned or not faulty.count("PATCH")
