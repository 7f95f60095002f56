"""Launchers that die one after the other, each at another of its requests: the next one goes on with what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.passing import PassingServer, Request
from tests.kubernetes.stages import COLLECTIONS, Stage, give_rights, replicas, waiting
from torchx_kfp.tracking import FsspecResultTracker

#: The requests at which they die: those of attempts that find nothing, and then an object of an earlier attempt.
DEATHS = [*range(6), *range(6)]


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("engine", ["job", "jobset"])
@pytest.mark.parametrize("death", ["kill", "terminate"])
def test_a_launcher_dies_while_it_waits_for_an_answer(
    death: str, engine: str, cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    give_rights(namespace, engine, "launcher")
    app, go = waiting(tmp_path)
    stage = Stage(namespace, kubelet, tmp_path, app, engine=engine, results={"loss": float})
    stage.account = "launcher"
    requests: list[Request] = []
    for number in DEATHS:

        def die(request: Request, number: int = number) -> None:
            if request.number == number:
                getattr(kubelet, death)(f"workflow-{stage.component}-{stage.attempts - 1}")

        with PassingServer(cluster, die) as server:
            stage.environ = {"KUBERNETES_SERVICE_PORT": server.port}
            attempt = stage.start()
            assert attempt.ended() == (137 if death == "kill" else 143), attempt.log
        requests += server.requests
        assert len(namespace.list(COLLECTIONS[engine])) <= 1
    stage.environ = {}
    attempt = stage.start()
    attempt.says("2 of 2 replicas run")
    go.touch()
    assert attempt.ended() == 0, attempt.log
    assert attempt.outputs == {"loss": "0.5", "run_id": attempt.run_id}
    assert FsspecResultTracker(str(stage.base))[attempt.run_id] == {"loss": 0.5}
    (made,) = namespace.list(COLLECTIONS[engine])
    assert made["metadata"]["annotations"]["torchx-kfp/run-id"] == attempt.run_id
    if death == "kill":
        posts = [one for one in requests if one.method == "POST" and one.path == namespace.path(COLLECTIONS[engine])]
        assert [one.status for one in posts] == [201], "the first object serves all attempts"
        assert len(replicas(namespace)) == 2, "and each replica has run once"
    else:
        assert 200 in [one.status for one in requests if one.method == "DELETE"], (
            "it deletes an object that it has seen"
        )
