"""The control plane is the real one: what it does is not up to the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import REPOSITORY
from tests.cluster.history import History
from tests.cluster.manifests import config_map, container, job
from tests.cluster.namespaces import Namespace
from tests.cluster.waiting import until
from tests.facts import says


def test_a_service_account_may_do_what_its_role_says(namespace: Namespace, tmp_path: Path) -> None:
    api = namespace.service_account_folder(tmp_path).api
    api.create(job("training", container("true")), namespace.name)
    assert [each["metadata"]["name"] for each in namespace.list("batch/v1/jobs")] == ["training"]
    with pytest.raises(
        ApiError, match=says("pipeline-runner", "cannot create", "jobsets", "jobset.x-k8s.io")
    ) as refused:
        api.post(namespace.path("jobset.x-k8s.io/v1alpha2/jobsets"), {})
    assert refused.value.status == 403


def test_a_token_that_the_api_server_did_not_sign_is_refused(namespace: Namespace, tmp_path: Path) -> None:
    account = namespace.service_account_folder(tmp_path)
    token = account.rotate()
    assert account.api.get(namespace.path("pods"))["items"] == []
    (tmp_path / "token").write_text(token[:-8] + "AAAAAAAA")
    with pytest.raises(ApiError) as refused:
        account.api.get(namespace.path("pods"))
    assert refused.value.status == 401
    account.rotate()
    assert account.api.get(namespace.path("pods"))["items"] == []


def test_a_quota_refuses_what_exceeds_it(namespace: Namespace) -> None:
    namespace.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small"},
            "spec": {"hard": {"count/jobs.batch": "0"}},
        }
    )
    until(lambda: "hard" in namespace.list("resourcequotas")[0]["status"])
    with pytest.raises(ApiError, match=says("exceeded quota: small", "count/jobs.batch")) as refused:
        namespace.create(job("training", container("true")))
    assert refused.value.status == 403


def test_a_manifest_can_be_tried(namespace: Namespace) -> None:
    assert (
        namespace.validate(job("training", container("true")))["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    )
    assert namespace.list("batch/v1/jobs") == []
    with pytest.raises(ApiError, match=says('unknown field "template.spec.containers[0].comand"')):
        namespace.validate(
            {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "x"},
                "template": {"spec": {"containers": [{"name": "main", "image": "any", "comand": []}]}},
            }
        )


@pytest.mark.parametrize(("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_without_the_programs_tests_are_skipped_or_fail(require: str, outcome: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rs", "-k", "quota", __file__],
        env={**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path), "TORCHX_KFP_REQUIRE_CLUSTER": require},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout.splitlines()[-1]
    assert f"{tmp_path} has no etcd, kube-apiserver, kube-controller-manager: " in run.stdout
    assert ".ci/with-cluster" in run.stdout
    assert run.returncode == (0 if require == "0" else 1)


def test_a_history_misses_nothing(namespace: Namespace) -> None:
    namespace.create(config_map("one-is-there"))
    with closing(History(namespace, ["configmaps"])) as history:
        namespace.create(config_map("one-is-made"))
        path = namespace.path("configmaps", "one-is-made")
        namespace.api.patch(path, {"data": {"a": "b"}})
        namespace.api.delete(path)
        again = namespace.create(config_map("one-is-made"))
        history.wait_for("configmaps", int(again["metadata"]["resourceVersion"]))
        types = ["ADDED", "ADDED", "MODIFIED", "DELETED", "ADDED"]
        assert [each.type for each in history.events("one-")] == types
        assert sorted(history.left("one-")) == ["one-is-made", "one-is-there"]
        assert history.last("one-is-made")["metadata"]["uid"] == again["metadata"]["uid"]
        history.forget("one-")
        assert not history.left("one-")
