"""Logs over connections that break, and an API server that is away, as the launcher sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.faults import Fault, FaultyServer, Lines
from tests.cluster.kubelet import Kubelet
from tests.cluster.namespaces import Namespace
from tests.cluster.stages import Stage, python
from tests.facts import says
from torchx_kfp.contract.carried import cluster_api, replica_roles

COUNT = """
import os, time
for number in range(300):
    print("line", number)
    if number % 30 == 0:
        time.sleep(0.1)
"""


@pytest.fixture
def stage(namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path) -> Stage:
    made = Stage(namespace, kubelet, tmp_path, python(COUNT), engine="job")
    made.environ["KUBERNETES_SERVICE_PORT"] = faulty.url.rpartition(":")[2]
    return made


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Lines(50), Lines(0), Lines(1), Lines(70)],
        [Lines(50, complete=True), Lines(20, complete=True), Lines(20, complete=True)],
        ["cut", "lost", 500, 429, 401, 503],
    ],
    ids=["none", "broken", "short", "failed"],
)
def test_every_line_is_shown_once_and_in_order(stage: Stage, faulty: FaultyServer, faults: list[Fault]) -> None:
    faulty.inject(faults, "/log")
    attempt = stage.start()
    assert attempt.ended() == 0, attempt.log
    for index in range(2):
        prefix = f"trainer/{index} | "
        shown = [line.removeprefix(prefix) for line in attempt.log.splitlines() if line.startswith(prefix)]
        assert shown == [f"line {number}" for number in range(300)]


def test_an_api_server_that_is_away_for_a_while(stage: Stage, faulty: FaultyServer) -> None:
    faulty.inject([None, None, None, *([503] * 6)], "GET .*/jobs/")
    attempt = stage.start()
    assert attempt.ended() == 0
    assert "the API server does not answer (503 a fault of the test: Service Unavailable)" in attempt.log


@pytest.fixture
def client(
    namespace: Namespace, faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> cluster_api.Cluster:
    account = namespace.service_account_folder(tmp_path / "account", url=faulty.url, authority=faulty.authority)
    monkeypatch.setattr(cluster_api, "FOLDER", str(account.path))
    for name, value in account.environ.items():
        monkeypatch.setenv(name, value)
    # Clusters are not reached through proxies.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    return cluster_api.Cluster("job")


@pytest.mark.parametrize(
    ("fault", "problem"), [(503, "503"), (401, "401"), (429, "429"), ("cut", "onnection"), ("lost", "onnection")]
)
def test_patience_ends(
    client: cluster_api.Cluster, namespace: Namespace, faulty: FaultyServer, fault: Fault, problem: str
) -> None:
    faulty.inject([fault] * 10)
    with pytest.raises(replica_roles.Failure, match=says("GET", namespace.name, "API server", problem)):
        client.call("GET", namespace.path("pods").lstrip("/"), patience=0.6)
    assert len(faulty.requests) > 1


def test_a_new_token_is_used(
    client: cluster_api.Cluster, namespace: Namespace, faulty: FaultyServer, tmp_path: Path
) -> None:
    token = tmp_path / "account" / "token"
    valid = token.read_text()
    token.write_text("expired")
    # The token comes back when the API server has refused the old one twice.
    faulty.after = lambda request: token.write_text(valid) if request.number == 1 else None
    assert client.call("GET", namespace.path("pods").lstrip("/"))[0] == 200
    assert [request.status for request in faulty.requests] == [401, 401, 200]
