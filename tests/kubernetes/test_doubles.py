"""What the contract of stages does not show of the doubles: what is left behind, and what skips the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.facts import says
from tests.kubernetes.api import ApiError, Object
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.manifests import container, job, pod, python, secret
from tests.kubernetes.namespaces import Namespace
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


def test_no_process_outlives_its_node(namespace: Namespace, kubelet: Kubelet) -> None:
    def sleeping() -> list[str]:
        lines = [file.read_bytes().replace(b"\0", b" ").decode() for file in Path("/proc").glob("[0-9]*/cmdline")]
        return [line for line in lines if "98765" in line and "sandbox.py" not in line]

    namespace.create(pod("one", container("sh", "-c", "setsid sleep 98765 & echo ready; sleep 98765")))
    until(lambda: status(namespace, "one")["phase"] == "Running" and kubelet.log("one") and len(sleeping()) > 1)
    kubelet.end()
    assert sleeping() == []


def test_manifests_are_checked_strictly(namespace: Namespace) -> None:
    wrong = job("training", container("true"), parallelsim=2)
    with pytest.raises(ApiError, match=says('unknown field "spec.parallelsim"')):
        namespace.validate(wrong)
    assert namespace.validate(job("training", container("true")))["spec"]["completions"] == 1
    assert namespace.list("batch/v1/jobs") == []
