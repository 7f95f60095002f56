"""Distributed stages on clusters in use: lost nodes, queues, quotas, missing rights."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchx.specs import RetryPolicy

from tests.authoring.engines.goldens import golden_file
from tests.cluster.certificates import Authority
from tests.cluster.faults import FaultyServer
from tests.cluster.kubelet import Kubelet
from tests.cluster.namespaces import PIPELINE_RUNNER, Namespace
from tests.cluster.stages import FAIL, TRAIN, Stage, python, replicas, waiting
from tests.cluster.waiting import until
from tests.facts import says
from torchx_kfp import engines
from torchx_kfp.contract.carried import cluster_api, engine_object, replica_roles
from torchx_kfp.entrypoints.cli.commands.rbac import rights_text

#: Runs until the file is there, and does not end at SIGTERM.
SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"saves a checkpoint\\n"))
print("waits")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture(params=["job", "jobset", "volcano"])
def engine(request: pytest.FixtureRequest, namespace: Namespace, kubelet: Kubelet) -> str:
    """The name of an engine that the namespace has, with the rights for it."""
    name = str(request.param)
    if name != "job":
        request.getfixturevalue({"jobset": "jobset_controller", "volcano": "volcano"}[name])
        grant(namespace, name)
    return name


def grant(namespace: Namespace, engine: str) -> None:
    for manifest in yaml.safe_load_all(rights_text(engines.ENGINES[engine], PIPELINE_RUNNER, namespace.name)):
        namespace.create(manifest)


def through(stage: Stage, faulty: FaultyServer) -> Stage:
    """Let the launcher use an API server whose requests fail."""
    stage.environ["KUBERNETES_SERVICE_PORT"] = faulty.url.rpartition(":")[2]
    return stage


def delete_pod(namespace: Namespace, name: str) -> None:
    namespace.api.delete(namespace.path("pods", name), gracePeriodSeconds=0)


# Nodes


def test_a_replica_is_lost_with_its_node(engine: str, namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """The others would wait for it in a collective operation."""
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine=engine).start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    lost = next(pod["metadata"]["name"] for pod in replicas(namespace) if "-1" in pod["metadata"]["name"][-8:])
    delete_pod(namespace, lost)
    assert attempt.ended() != 0
    assert lost in attempt.log


def test_the_launcher_is_lost_with_its_node(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Its pod is gone, too. The replicas go on, and nothing has to be done again."""
    go = tmp_path / "go"
    kubelet.longest_grace = 8
    stage = Stage(namespace, kubelet, tmp_path, python(SAVES, arguments=[str(go)]), engine="job")
    first = stage.start()
    for index in (0, 1):
        first.says(f"trainer/{index} | waits")
    before = {pod["metadata"]["uid"] for pod in replicas(namespace)}
    kubelet.kill(first.name)
    delete_pod(namespace, first.name)
    time.sleep(2)
    second = stage.start()
    second.says("of an earlier attempt")
    go.touch()
    assert second.ended() == 0, second.log
    assert {pod["metadata"]["uid"] for pod in replicas(namespace)} == before


def test_an_old_launcher_does_not_end_the_work_of_the_next(
    namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    """A node was cut off, Argo has made another attempt, and then the node is back: the old pod gets SIGTERM."""
    app, go = waiting(tmp_path)
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job", results={"loss": float})
    first = stage.start()
    first.says("trainer/0 | waits")
    second = stage.start()
    second.says("of an earlier attempt")
    namespace.api.delete(namespace.path("pods", first.name))
    time.sleep(2)
    go.touch()
    assert second.ended() == 0, second.log


def test_nothing_is_made_after_sigterm(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    """The launcher does not know whether its object was made, and would ask for it again."""
    app, _ = waiting(tmp_path)
    stage = through(Stage(namespace, kubelet, tmp_path, app, engine="job"), faulty)
    faulty.inject(["lost", 503], "POST .*/jobs$")
    faulty.after = lambda request: request.method == "POST" and kubelet.terminate(f"workflow-{stage.component}-0")
    attempt = stage.start()
    assert attempt.ended() == 143
    assert faulty.count("POST .*/jobs$") == 1
    until(lambda: not namespace.list("batch/v1/jobs"))


def test_an_object_fails_before_its_launcher_knows_of_it(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    """It is the attempt that has failed: another object would have the same run id, and a retry that nobody wants."""
    faulty.inject(["lost", 503, 503, 503, 503], "POST .*/jobs$")
    stage = through(Stage(namespace, kubelet, tmp_path, python("exit(7)"), engine="job"), faulty)
    attempt = stage.start()
    assert attempt.ended() == 7, attempt.log
    assert [each.handled for each in faulty.requests if each.method == "POST"][:2] == [201, 0]
    assert sum(each.handled == 201 and each.path.endswith("/jobs") for each in faulty.requests) == 1
    until(lambda: not namespace.list("batch/v1/jobs"))


def test_a_replica_is_replaced_when_it_has_ended(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Two pods at the same time would have the same name."""
    kubelet.longest_grace = 4
    go = tmp_path / "go"
    app = python(SAVES, arguments=[str(go)], max_retries=3, retry_policy=RetryPolicy.REPLICA)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    lost = next(pod for pod in replicas(namespace) if "-1-" in pod["metadata"]["name"])
    namespace.api.delete(namespace.path("pods", lost["metadata"]["name"]))
    most = 0
    for _ in range(20):
        most = max(most, sum(pod["status"].get("phase") == "Running" for pod in replicas(namespace)))
        time.sleep(0.1)
    go.touch()
    attempt.ended()
    assert most == 2


# Attempts inside of an engine


def test_a_job_that_its_queue_preempts(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """Kueue suspends and resumes it. What fails then is not the pod that was preempted."""
    program = """
import os, sys, time
me = sys.argv[1] + os.environ["TORCHX_REPLICA_ID"]
if not os.path.exists(me):
    open(me, "w").close()
    print("first")
    time.sleep(1000)
if os.environ["TORCHX_REPLICA_ID"] == "1":
    time.sleep(1)
    print("about to fail")
    sys.exit(7)
time.sleep(1000)
"""
    app = python(program, arguments=[str(tmp_path / "me")])
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | first")
    path = namespace.path("batch/v1/jobs", namespace.list("batch/v1/jobs")[0]["metadata"]["name"])
    namespace.api.patch(path, {"spec": {"suspend": True}})
    attempt.says("it is suspended")
    namespace.api.patch(path, {"spec": {"suspend": False}})
    assert attempt.ended() == 7, attempt.log
    assert "about to fail" in attempt.log.splitlines()[-1]


def test_replicas_that_end_well_because_the_object_is_deleted(
    engine: str, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    """They have not done their work, although their engine may say so."""
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("waits")
time.sleep(1000)
"""
    attempt = Stage(namespace, kubelet, tmp_path, python(program), engine=engine).start()
    for index in (0, 1):
        attempt.says(f"trainer/{index} | waits")
    resource = {
        "job": "batch/v1/jobs",
        "jobset": "jobset.x-k8s.io/v1alpha2/jobsets",
        "volcano": "batch.volcano.sh/v1alpha1/jobs",
    }[engine]
    name = namespace.list(resource)[0]["metadata"]["name"]
    namespace.api.delete(namespace.path(resource, name), {"propagationPolicy": "Foreground"})
    assert attempt.ended() == 1, attempt.log
    assert f"{name} was deleted, but not by this stage" in attempt.log


@pytest.mark.usefixtures("jobset_controller")
def test_the_last_failure_of_a_replica_counts(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    program = """
import os, sys, time
index = os.environ["TORCHX_REPLICA_ID"]
me = sys.argv[1] + index
first = not os.path.exists(me)
open(me, "w").close()
time.sleep(2)
if index == ("1" if first else "0"):
    sys.exit(3 if first else 4)
time.sleep(1000)
"""
    grant(namespace, "jobset")
    app = python(program, arguments=[str(tmp_path / "me")], max_retries=1)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="jobset").start()
    assert attempt.ended() == 4, attempt.log


def test_adoption_is_said_without_a_tracker(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    program = "import os, sys, time\nprint('waits')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
    go = tmp_path / "go"
    stage = Stage(namespace, kubelet, tmp_path, python(program, arguments=[str(go)]), tracked=False, engine="job")
    first = stage.start()
    first.says("trainer/0 | waits")
    kubelet.kill(first.name)
    second = stage.start()
    second.says("trainer/0 | waits")
    go.touch()
    assert second.ended() == 0
    assert "of an earlier attempt" in second.log


# What the cluster refuses


def test_a_launcher_that_gives_up_leaves_nothing(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    app, _ = waiting(tmp_path)
    faulty.inject([None] * 4 + [400], "GET .*/pods\\?")
    attempt = through(Stage(namespace, kubelet, tmp_path, app, engine="job"), faulty).start()
    assert attempt.ended() == 1
    until(lambda: not replicas(namespace))


@pytest.mark.parametrize("requests", ["GET .*/pods\\?label", "GET .*/jobs/"])
def test_a_right_that_is_denied_for_a_moment(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path, requests: str
) -> None:
    """A training of days must not end with it: authorizers that ask others refuse when they get no answer."""
    app, go = waiting(tmp_path)
    attempt = through(Stage(namespace, kubelet, tmp_path, app, engine="job"), faulty).start()
    attempt.says("trainer/1 | waits")
    faulty.inject([403, 403], requests)
    until(lambda: sum(request.status == 403 for request in faulty.requests) == 2)
    go.touch()
    assert attempt.ended() == 0, attempt.log


def test_a_quota_for_services(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    quota = {"hard": {"count/services": "0"}}
    namespace.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": quota})
    until(lambda: namespace.list("resourcequotas")[0].get("status", {}).get("hard"))
    app, _ = waiting(tmp_path)
    attempt = Stage(namespace, kubelet, tmp_path, app, engine="job").start()
    assert attempt.ended() == 1
    assert "exceeded quota: none" in attempt.log
    until(lambda: not replicas(namespace))


def test_a_service_that_was_left_behind(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    app, go = waiting(tmp_path)
    stage = Stage(namespace, kubelet, tmp_path, app, engine="job")
    first = stage.start()
    first.says("trainer/0 | waits")
    kubelet.kill(first.name)
    name = namespace.list("batch/v1/jobs")[0]["metadata"]["name"]
    namespace.api.patch(namespace.path("services", name), {"metadata": {"ownerReferences": None}})
    namespace.api.delete(namespace.path("batch/v1/jobs", name), {"propagationPolicy": "Foreground"})
    until(lambda: not namespace.list("batch/v1/jobs"))
    second = stage.start()
    second.says("trainer/0 | waits")
    go.touch()
    assert second.ended() == 0
    (service,) = namespace.list("services")
    (job,) = namespace.list("batch/v1/jobs")
    assert [ref["uid"] for ref in service["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


def test_the_exit_code_survives_a_delete_that_fails(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    faulty.inject([403] * 100, "DELETE")
    attempt = through(Stage(namespace, kubelet, tmp_path, python(FAIL), engine="job"), faulty).start()
    assert attempt.ended() == 7
    assert "is not deleted" in attempt.log


def test_a_signal_when_nothing_can_be_deleted(
    namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path
) -> None:
    app, _ = waiting(tmp_path)
    faulty.inject([403] * 100, "DELETE")
    attempt = through(Stage(namespace, kubelet, tmp_path, app, engine="job"), faulty).start()
    attempt.says("trainer/0 | waits")
    namespace.api.delete(namespace.path("pods", attempt.name))
    assert "is not deleted" in attempt.says("ended by signal 15")


def test_logs_that_cannot_be_read(namespace: Namespace, kubelet: Kubelet, faulty: FaultyServer, tmp_path: Path) -> None:
    faulty.inject([403] * 1000, "/log")
    attempt = through(Stage(namespace, kubelet, tmp_path, python(TRAIN), engine="job"), faulty).start()
    assert attempt.ended() == 0
    assert attempt.log.count("its log cannot be read: 403") == 2, "once for each replica"
    assert faulty.count("/log") == 2


def test_the_hint_names_the_account_of_the_stage(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    """In a profile of Kubeflow, stages run as default-editor."""
    namespace.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default-editor"}})
    stage = Stage(namespace, kubelet, tmp_path, python(TRAIN), engine="job")
    stage.account = "default-editor"
    attempt = stage.start()
    assert attempt.ended() == 1
    options = f"--engine job --namespace {namespace.name} --service-account default-editor"
    assert f"torchx-kfp rbac {options} | kubectl apply -f -" in attempt.log


# Without a cluster


def shown(capfd: pytest.CaptureFixture[str], *times: str) -> list[str]:
    """Return the lines that are shown of a log whose lines have these times."""
    text = b"".join(f"2026-01-01T00:00:{time}Z {number}\n".encode() for number, time in enumerate(times))

    class Connection:
        def open(self, *_: Any, **__: Any) -> Any:
            return io.BytesIO(text)

    class Owner:
        cluster = Connection()
        over, looks = False, 0

        def path(self, *_: Any) -> str:
            return ""

    replica = cluster_api.Replica.__new__(cluster_api.Replica)
    replica.stage, replica.pod, replica.container, replica.label = Owner(), "p", "c", "c/0"
    replica.ended, replica.gone, replica.lines, replica.problem = "x", False, deque(maxlen=20), ""
    replica.read()
    return [line.split()[-1] for line in capfd.readouterr().out.splitlines()]


def test_lines_whose_times_go_back_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The runtime stamps stdout and stderr one beside the other, and clocks are set back."""
    assert shown(capfd, "01.1", "01.3", "01.2", "00.9", "02") == list("01234")


def test_an_authority_that_python_313_rejects(namespace: Namespace, tmp_path: Path) -> None:
    """Those of many clusters, and of this one, have no key identifiers, which Python 3.13 demands by default."""
    folder = namespace.service_account_folder(tmp_path / "account")
    program = f"""
import os, ssl
from torchx_kfp.contract.carried import cluster_api
cluster_api.FOLDER = {str(folder.path)!r}
strict = ssl.create_default_context
def create(**options):
    context = strict(**options)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
ssl.create_default_context = create
print(cluster_api.Cluster("").call("GET", {namespace.path("pods").lstrip("/")!r}, None, 2)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **folder.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "200\n", done.stderr


def test_an_unknown_authority_is_a_failure_at_once(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = namespace.service_account_folder(tmp_path / "account")
    (tmp_path / "other").mkdir()
    (folder.path / "ca.crt").write_bytes(Authority(tmp_path / "other").create().file.read_bytes())
    monkeypatch.setattr(cluster_api, "FOLDER", str(folder.path))
    for name, value in folder.environ.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with pytest.raises(replica_roles.Failure, match=says("https://127.0.0.1", "CERTIFICATE_VERIFY_FAILED")):
        cluster_api.Cluster("").call("GET", "api/v1/pods")
    assert time.monotonic() - began < 30


def test_fewer_replicas_than_the_least_that_volcano_starts(
    namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = namespace.service_account_folder(tmp_path / "account")
    monkeypatch.setattr(cluster_api, "FOLDER", str(folder.path))
    for name, value in {**folder.environ, "KFP_ARGO_NODE": "w(0).train(0)"}.items():
        monkeypatch.setenv(name, value)
    golden = yaml.safe_load(golden_file("min-available.volcano").read_text(encoding="utf-8"))
    counts = [1 for _ in golden["spec"]["roles"]]
    made = engine_object.Stage(golden["spec"], [str(word) for word in golden["words"]], counts, {}).manifest()
    assert made["spec"]["minAvailable"] == len(counts)


def test_a_log_whose_pod_cannot_be_looked_up(capfd: pytest.CaptureFixture[str]) -> None:
    """The thread that reads it goes on; it may be known again."""
    asked: list[str] = []

    class Connection:
        def open(self, _: str, path: str, **__: Any) -> Any:
            asked.append(path)
            replica.ended = "now" if len(asked) == 3 else ""
            return io.BytesIO(b"2026-01-01T00:00:00Z line\n" if len(asked) in (1, 3) else b"")

        def call(self, *_: Any) -> Any:
            if len(asked) == 2:
                raise replica_roles.Failure("no answer")
            return 200, {"items": [{"metadata": {"uid": "u"}}]}

    class Owner:
        cluster = Connection()
        over, looks = True, 0

        def path(self, *_: Any) -> str:
            return ""

    replica = cluster_api.Replica.__new__(cluster_api.Replica)
    replica.stage, replica.uid, replica.pod, replica.container, replica.label = Owner(), "u", "p", "c", "c/0"
    replica.ended, replica.gone, replica.lines, replica.problem = "", False, deque(maxlen=20), ""
    replica.read()
    out, err = capfd.readouterr()
    assert out == "c/0 | line\n", "once"
    assert err.count("no answer") == 1
