"""JobSet (its real controller) and Volcano (a double of its controller) on the control plane."""

from __future__ import annotations

import pytest

from tests.cluster.api import ApiError
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import container, jobset, python, volcano_job
from tests.cluster.namespaces import Namespace
from tests.cluster.volcano import Volcano
from tests.cluster.waiting import until
from tests.facts import says


def test_a_jobset_is_checked_against_its_rules(namespace: Namespace) -> None:
    valid = jobset("training", ("trainer", container("true"), 2))
    assert namespace.validate(valid)["spec"]["replicatedJobs"][0]["name"] == "trainer"
    with pytest.raises(ApiError, match=says('unknown field "spec.suspended"')):
        namespace.validate({**valid, "spec": {**valid["spec"], "suspended": True}})
    # A rule in CEL.
    waiting = jobset("training", ("reader", container("true"), 1), ("trainer", container("true"), 2))
    waiting["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    waiting["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "reader", "status": "Complete"}]
    with pytest.raises(ApiError, match=says("StartupPolicy and DependsOn APIs are mutually exclusive")) as refused:
        namespace.validate(waiting)
    assert refused.value.status == 422


def test_a_volcano_job_is_checked_against_its_schema(namespace: Namespace) -> None:
    valid = volcano_job("training", ("trainer", container("true"), 2))
    assert namespace.validate(valid)["spec"]["minAvailable"] == 2
    with pytest.raises(ApiError, match=says('unknown field "spec.minAvailabel"')):
        namespace.validate({**valid, "spec": {**valid["spec"], "minAvailabel": 1}})


FAILS_ONCE = """
import pathlib
first = pathlib.Path("once")
if not first.exists():
    first.touch()
    raise SystemExit(3)
"""


def state(namespace: Namespace) -> str:
    """Return the state of the namespace's JobSet."""
    return str(namespace.list("jobset.x-k8s.io/v1alpha2/jobsets")[0].get("status", {}).get("terminalState", ""))


@pytest.mark.usefixtures("jobset_controller")
def test_the_roles_of_a_jobset_meet(namespace: Namespace, kubelet: Kubelet, unused_port: int) -> None:
    server = f"""
import socket
with socket.create_server(("", {unused_port})) as server:
    connection, _ = server.accept()
    print(socket.gethostname(), "met", connection.recv(100).decode())
    connection.close()
"""
    client = f"""
import socket, time
while True:
    try:
        with socket.create_connection(("training-chief-0-0.training", {unused_port})) as connection:
            connection.sendall(socket.gethostname().encode())
        break
    except OSError:
        time.sleep(0.05)
"""
    roles = ("chief", container(*python(server)), 1), ("worker", container(*python(client)), 1)
    namespace.create(jobset("training", *roles))
    until(lambda: state(namespace) == "Completed")
    (chief,) = [each for each in namespace.list("pods") if each["metadata"]["name"].startswith("training-chief-0-0-")]
    assert kubelet.log(chief["metadata"]["name"]) == "training-chief-0-0 met training-worker-0-0\n"
    labels = chief["metadata"]["labels"]
    assert labels["jobset.sigs.k8s.io/jobset-name"] == "training"
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == "chief"
    assert labels["batch.kubernetes.io/job-completion-index"] == "0"


@pytest.mark.usefixtures("jobset_controller")
@pytest.mark.parametrize(("restarts", "end"), [(0, "Failed"), (1, "Completed")])
def test_a_jobset_restarts_as_often_as_it_says(restarts: int, end: str, namespace: Namespace, kubelet: Kubelet) -> None:
    roles = ("chief", container(*python(FAILS_ONCE)), 1), ("worker", container("sleep", "1"), 1)
    namespace.create(jobset("training", *roles, failurePolicy={"maxRestarts": restarts}))
    assert until(lambda: state(namespace)) == end
    (found,) = namespace.list("jobset.x-k8s.io/v1alpha2/jobsets")
    assert found["status"].get("restarts", 0) == restarts


@pytest.mark.usefixtures("jobset_controller")
def test_the_webhook_of_jobset_refuses_names_that_are_too_long(namespace: Namespace) -> None:
    with pytest.raises(ApiError, match=says("jobset", "63")) as refused:
        namespace.validate(jobset("training", ("x" * 60, container("true"), 1)))
    assert refused.value.status == 422


def phase(namespace: Namespace) -> str:
    """Return the phase of the namespace's Volcano Job."""
    (found,) = namespace.list("batch.volcano.sh/v1alpha1/jobs")
    return str(found.get("status", {}).get("state", {}).get("phase", ""))


PLUGINS = {"svc": ["--publish-not-ready-addresses"], "env": []}


def test_the_tasks_of_a_volcano_job_meet(
    namespace: Namespace, kubelet: Kubelet, volcano: Volcano, unused_port: int
) -> None:
    program = f"""
import os, socket, time
index, hosts = os.environ["VC_TASK_INDEX"], os.environ["VC_THE_TRAINER_HOSTS"].split(",")
if index == "0":
    with socket.create_server(("", {unused_port})) as server:
        connection, _ = server.accept()
        print(os.environ["VK_TASK_INDEX"], hosts, os.environ["VC_THE_TRAINER_NUM"], connection.recv(100).decode())
        connection.close()
else:
    while True:
        try:
            with socket.create_connection((hosts[0], {unused_port})) as connection:
                connection.sendall(socket.gethostname().encode())
            break
        except OSError:
            time.sleep(0.05)
"""
    namespace.create(volcano_job("training", ("the-trainer", container(*python(program)), 2), plugins=PLUGINS))
    until(lambda: phase(namespace) == "Completed")
    hosts = ["training-the-trainer-0.training", "training-the-trainer-1.training"]
    assert kubelet.log("training-the-trainer-0") == f"0 {hosts} 2 training-the-trainer-1\n"
    (found,) = namespace.list("batch.volcano.sh/v1alpha1/jobs")
    assert (found["status"]["succeeded"], found["status"]["minAvailable"]) == (2, 2)
    assert [each["status"] for each in found["status"]["conditions"]] == ["Pending", "Running", "Completed"]
    pods = namespace.list("pods", labelSelector="volcano.sh/job-name=training")
    assert {each["metadata"]["labels"]["volcano.sh/task-index"] for each in pods} == {"0", "1"}
    assert {each["metadata"]["annotations"]["volcano.sh/task-spec"] for each in pods} == {"the-trainer"}
    # The real garbage collection deletes what it owns.
    namespace.api.delete(namespace.path("batch.volcano.sh/v1alpha1/jobs", "training"))
    until(lambda: not namespace.list("pods") and not namespace.list("services"))


@pytest.mark.parametrize(
    ("retries", "end", "counted", "left"),
    [(2, "Completed", 1, ["training-chief-0", "training-worker-0"]), (1, "Failed", 1, [])],
)
def test_a_volcano_job_restarts_as_its_policies_say(
    retries: int, end: str, counted: int, left: list[str], namespace: Namespace, kubelet: Kubelet, volcano: Volcano
) -> None:
    tasks = ("chief", container(*python(FAILS_ONCE)), 1), ("worker", container("sleep", "1"), 1)
    policies = [{"event": "PodFailed", "action": "RestartJob"}]
    namespace.create(volcano_job("training", *tasks, policies=policies, maxRetry=retries))
    assert until(lambda: phase(namespace) in ("Completed", "Failed") and phase(namespace)) == end
    (found,) = namespace.list("batch.volcano.sh/v1alpha1/jobs")
    assert found["status"]["retryCount"] == counted
    # Those of an attempt that is restarted are gone, also after the last one.
    until(lambda: [each["metadata"]["name"] for each in namespace.list("pods")] == left)


def test_a_volcano_job_ends_with_its_chief_if_its_policies_say_so(
    namespace: Namespace, kubelet: Kubelet, volcano: Volcano
) -> None:
    tasks = ("chief", container("true"), 1), ("worker", container("sleep", "600"), 1)
    manifest = volcano_job("training", *tasks)
    manifest["spec"]["tasks"][0]["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    namespace.create(manifest)
    until(lambda: phase(namespace) == "Completed")
    # The job may be complete before the controller has seen the worker that it has just made.
    until(lambda: [each["metadata"]["name"] for each in namespace.list("pods")] == ["training-chief-0"])


def test_a_volcano_job_fails_without_policies_once_all_have_ended(
    namespace: Namespace, kubelet: Kubelet, volcano: Volcano
) -> None:
    tasks = ("chief", container("sh", "-c", "exit 3"), 1), ("worker", container("sleep", "1"), 1)
    namespace.create(volcano_job("training", *tasks, ttlSecondsAfterFinished=1))
    until(lambda: phase(namespace) == "Failed")
    assert [each["status"]["phase"] for each in namespace.list("pods")] == ["Failed", "Succeeded"]
    until(lambda: not namespace.list("batch.volcano.sh/v1alpha1/jobs"))
