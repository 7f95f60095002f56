"""One smoke for each double, and for what skips the tests. A double that is wrong shows in the contract of stages."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.facts import says
from tests.kubernetes.api import ApiError, Object
from tests.kubernetes.control_plane import REPOSITORY
from tests.kubernetes.faults import FaultyServer, Lines
from tests.kubernetes.history import History
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.manifests import config_map, container, job, pod, python, secret, volcano_job
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.volcano import Volcano
from tests.kubernetes.waiting import until

ENDS_WELL = """
import os, signal, sys, time
def handle(*_):
    os.write(1, b"ending\\n")  # it may have interrupted print
    raise SystemExit(7)
signal.signal(signal.SIGTERM, handle)
print(sys.argv[1:], os.environ["KEY"], os.getpid(), flush=True)
time.sleep(600)
"""


def status(namespace: Namespace, name: str) -> Object:
    return dict(namespace.api.get(namespace.path("pods", name))["status"])


def test_the_kubelet_runs_a_container_and_ends_it_with_sigterm(namespace: Namespace, kubelet: Kubelet) -> None:
    kubelet.longest_grace = 60
    namespace.create(secret("credentials", key="a$(NAME)"))
    variables = {
        "NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "KEY": {"secretKeyRef": {"name": "credentials", "key": "key"}},
    }
    words = ["$(NAME)", "$$(NAME)", "$(MISSING)", "$($(NAME))", "$"]
    namespace.create(pod("one", container(*python(ENDS_WELL), env=variables, args=words)))
    until(lambda: status(namespace, "one")["phase"] == "Running" and kubelet.log("one"))
    path = namespace.path("pods", "one/log")
    with namespace.api.stream(path, follow=True, timestamps=True) as log:
        lines = iter(log)
        stamp, text = next(lines).split(b" ", 1)
        assert text.decode() == f"{['one', '$(NAME)', '$(MISSING)', '$($(NAME))', '$']} a$(NAME) 1\n"
        assert len(stamp) == len("2026-01-02T03:04:05.123456789Z")
        namespace.api.delete(namespace.path("pods", "one"))
        assert [line.split(b" ", 1)[1] for line in lines] == [b"ending\n"]
    until(lambda: not namespace.list("pods"))


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (["true"], {"exitCode": 0, "reason": "Completed"}),
        (["sh", "-c", "sh -c 'kill -9 $$$$'"], {"exitCode": 137, "reason": "Error"}),
        (["no-such-program"], {"exitCode": 128, "reason": "StartError"}),
    ],
)
def test_a_container_ends_with_its_exit_code(
    command: list[str], end: Object, namespace: Namespace, kubelet: Kubelet
) -> None:
    namespace.create(pod("one", container(*command)))
    until(lambda: status(namespace, "one")["phase"] == ("Failed" if end["exitCode"] else "Succeeded"))
    terminated = status(namespace, "one")["containerStatuses"][0]["state"]["terminated"]
    assert {key: terminated[key] for key in end} == end


def test_no_process_outlives_its_node(namespace: Namespace, kubelet: Kubelet) -> None:
    def sleeping() -> list[str]:
        lines = [file.read_bytes().replace(b"\0", b" ").decode() for file in Path("/proc").glob("[0-9]*/cmdline")]
        return [line for line in lines if "98765" in line and "sandbox.py" not in line]

    namespace.create(pod("one", container("sh", "-c", "setsid sleep 98765 & echo ready; sleep 98765")))
    until(lambda: status(namespace, "one")["phase"] == "Running" and kubelet.log("one") and len(sleeping()) > 1)
    kubelet.end()
    assert sleeping() == []


FAILS_ONCE = "import os; first = not os.path.exists('once'); open('once', 'w').close(); raise SystemExit(3 * first)"


@pytest.mark.parametrize(("retries", "end"), [(2, "Completed"), (1, "Failed")])
def test_volcano_restarts_a_job_as_its_policies_say(
    retries: int, end: str, namespace: Namespace, kubelet: Kubelet, volcano: Volcano
) -> None:
    tasks = ("chief", container(*python(FAILS_ONCE)), 1), ("worker", container("sleep", "1"), 1)
    policies = [{"event": "PodFailed", "action": "RestartJob"}]
    namespace.create(volcano_job("training", *tasks, policies=policies, maxRetry=retries))

    def phase() -> str:
        (found,) = namespace.list("batch.volcano.sh/v1alpha1/jobs")
        return str(found.get("status", {}).get("state", {}).get("phase", ""))

    until(lambda: phase() == end)


def test_faults_befall_the_requests_for_which_they_are_injected(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    account = namespace.service_account_folder(tmp_path / "account", url=faulty.url, authority=faulty.authority)
    path, made = namespace.path("pods"), pod("one", container("sh", "-c", "echo first; echo second; sleep 600"))
    for fault in (503, "cut", "lost", 0.3):
        faulty.inject([fault], "POST")
        began = time.monotonic()
        with pytest.raises((ApiError, OSError, http.client.HTTPException)):
            account.api.post(path, made)
        assert [each["metadata"]["name"] for each in namespace.list("pods")] == ["one"] * (fault in ("lost", 0.3))
    assert time.monotonic() - began >= 0.3
    assert [each.status for each in faulty.requests if each.method == "POST"][::3] == [503, 409]
    until(lambda: status(namespace, "one")["phase"] == "Running" and kubelet.log("one").count("\n") == 2)
    faulty.inject([Lines(1)], "GET .*/log")
    with account.api.stream(f"{path}/one/log", follow=True) as log:
        assert b"".join(log).startswith(b"first\n")
    with account.api.stream(f"{path}/one/log", follow=True) as log:
        assert next(iter(log)) == b"first\n"


def test_a_history_misses_nothing(namespace: Namespace) -> None:
    namespace.create(config_map("one-is-there"))
    with closing(History(namespace, ["configmaps"])) as history:
        namespace.create(config_map("one-is-made"))
        path = namespace.path("configmaps", "one-is-made")
        namespace.api.patch(path, {"data": {"a": "b"}})
        namespace.api.delete(path)
        again = namespace.create(config_map("one-is-made"))
        history.wait_for("configmaps", int(again["metadata"]["resourceVersion"]))
        assert [each.type for each in history.events("one-")] == ["ADDED", "ADDED", "MODIFIED", "DELETED", "ADDED"]
        assert sorted(history.left("one-")) == ["one-is-made", "one-is-there"]


def test_manifests_are_checked_strictly(namespace: Namespace) -> None:
    wrong = job("training", container("true"), parallelsim=2)
    with pytest.raises(ApiError, match=says('unknown field "spec.parallelsim"')):
        namespace.validate(wrong)
    assert namespace.validate(job("training", container("true")))["spec"]["completions"] == 1
    assert namespace.list("batch/v1/jobs") == []


@pytest.mark.parametrize(("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_without_the_programs_tests_are_skipped_or_fail(require: str, outcome: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rs", "-k", "strictly", __file__],
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
