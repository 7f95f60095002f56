"""The double of the kubelet does with pods what the kubelet does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cluster.api import ApiError, Object
from tests.cluster.expansion import expand
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import config_map, container, finished, headless_service, job, pod, python, secret
from tests.cluster.namespaces import Namespace
from tests.cluster.waiting import until
from tests.facts import says

MEET = """
import os, socket, time
name, service = socket.gethostname(), os.environ["SERVICE"]
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    with socket.create_server(("", int(os.environ["PORT"]))) as server:
        connection, _ = server.accept()
        print(name, "met", connection.recv(100).decode())
        connection.close()
else:
    while True:
        try:
            with socket.create_connection((os.environ["HOST"], int(os.environ["PORT"]))) as connection:
                connection.sendall(name.encode())
            break
        except OSError:
            time.sleep(0.05)
"""


def phase(namespace: Namespace, name: str) -> str:
    return str(namespace.api.get(namespace.path("pods", name))["status"]["phase"])


def ended(namespace: Namespace, name: str) -> Object:
    """Return how the container of a pod has ended."""
    until(lambda: phase(namespace, name) in ("Succeeded", "Failed"))
    (status,) = namespace.api.get(namespace.path("pods", name))["status"]["containerStatuses"]
    return dict(status["state"]["terminated"])


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y$(A)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(MISSING)", "$(MISSING)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$(A)$$", "1$"),
        ("$(EMPTY)|", "|"),
        ("$($(A))", "$($(A))"),
    ],
)
def test_references_are_expanded_once(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "$(A)", "EMPTY": ""}) == expanded


def test_a_container_has_the_variables_of_its_manifest(namespace: Namespace, kubelet: Kubelet) -> None:
    namespace.create(secret("credentials", key="a$(FIRST)"))
    namespace.create(config_map("settings", size="9"))
    variables = {
        "FIRST": "$(LATER)$$",
        "LATER": "<$(FIRST)>",
        "KEY": {"secretKeyRef": {"name": "credentials", "key": "key"}},
        "SIZE": {"configMapKeyRef": {"name": "settings", "key": "size"}},
        "NONE": {"secretKeyRef": {"name": "nothing", "key": "key", "optional": True}},
        "NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "UID": {"fieldRef": {"fieldPath": "metadata.uid"}},
        "LABEL": {"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}},
        "NO_LABEL": {"fieldRef": {"fieldPath": "metadata.labels['other']"}},
        "NODE": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        "IP": {"fieldRef": {"fieldPath": "status.podIP"}},
    }
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getpid(), os.getcwd(), dict(os.environ)]))"
    manifest = pod("one", container(*python(program), env=variables, args=["$(LATER)", "$$(KEY)", "$(NONE)"]))
    manifest["metadata"]["labels"] = {"a.b/c": "d"}
    uid = namespace.create(manifest)["metadata"]["uid"]
    assert ended(namespace, "one")["exitCode"] == 0
    arguments, pid, folder, environ = json.loads(kubelet.log("one"))
    assert arguments == ["<$(LATER)$>", "$(KEY)", "$(NONE)"]
    assert (pid, folder) == (1, str(kubelet.working_folder))
    images = {"PATH", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}
    assert {name: value for name, value in environ.items() if name not in images | {"LC_CTYPE", "IP"}} == {
        "FIRST": "$(LATER)$",
        "LATER": "<$(LATER)$>",
        "KEY": "a$(FIRST)",
        "SIZE": "9",
        "NAME": "one",
        "NAMESPACE": namespace.name,
        "UID": uid,
        "LABEL": "d",
        "NO_LABEL": "",
        "NODE": kubelet.node,
    }
    assert environ["HOSTNAME"] == "one"
    assert environ["IP"].startswith("127.")


def test_a_pod_may_use_the_api_as_its_service_account(namespace: Namespace, kubelet: Kubelet) -> None:
    program = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
read = lambda name: open(folder + name).read()
root = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}/api/v1".format(**os.environ)
path = f"/namespaces/{read('namespace')}/pods/{os.environ['HOSTNAME']}"
request = urllib.request.Request(root + path, headers={"Authorization": "Bearer " + read("token")})
context = ssl.create_default_context(cafile=folder + "ca.crt")
print(urllib.request.urlopen(request, context=context).status)
"""
    until(lambda: any(each["metadata"]["name"] == "kube-root-ca.crt" for each in namespace.list("configmaps")))
    namespace.create(pod("one", container(*python(program)), serviceAccountName="pipeline-runner"))
    assert ended(namespace, "one")["exitCode"] == 0
    assert kubelet.log("one") == "200\n"


def test_replicas_meet_by_the_names_of_a_headless_service(
    namespace: Namespace, kubelet: Kubelet, unused_port: int
) -> None:
    variables = {"SERVICE": "training", "HOST": "training-0.$(SERVICE)", "PORT": str(unused_port)}
    namespace.create(job("training", container(*python(MEET), env=variables), replicas=2, subdomain="training"))
    # Their names appear with the service, not before.
    until(lambda: all(each["status"]["phase"] == "Running" for each in namespace.list("pods")))
    namespace.create(headless_service("training", "training"))
    assert until(lambda: finished(namespace.list("batch/v1/jobs")[0])) == "Complete"
    first, second = sorted(namespace.list("pods"), key=lambda each: str(each["metadata"]["name"]))
    assert kubelet.log(first["metadata"]["name"]) == "training-0 met training-1\n"
    assert first["status"]["podIP"] != second["status"]["podIP"]
    assert [first["spec"]["nodeName"], second["spec"]["nodeName"]] == [kubelet.node] * 2


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (["true"], {"exitCode": 0, "reason": "Completed"}),
        (python("raise SystemExit(3)"), {"exitCode": 3, "reason": "Error"}),
        (["sh", "-c", "sh -c 'kill -9 $$$$'"], {"exitCode": 137, "reason": "Error"}),
        (["no-such-program"], {"exitCode": 128, "reason": "StartError"}),
    ],
)
def test_a_container_ends_with_its_exit_code(
    command: list[str], end: Object, namespace: Namespace, kubelet: Kubelet
) -> None:
    namespace.create(pod("one", container(*command)))
    terminated = ended(namespace, "one")
    assert {key: terminated[key] for key in end} == end
    assert phase(namespace, "one") == ("Failed" if end["exitCode"] else "Succeeded")
    assert ("no-such-program" in kubelet.log("one") or "No such file" in terminated.get("message", "")) == (
        end["exitCode"] == 128
    )


def test_a_container_that_fails_is_started_again_if_its_pod_says_so(
    namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    program = "import pathlib; first = pathlib.Path('second'); here = first.exists(); first.touch(); assert here"
    namespace.create(pod("one", container(*python(program)), restartPolicy="OnFailure"))
    assert ended(namespace, "one")["exitCode"] == 0
    (status,) = namespace.list("pods")[0]["status"]["containerStatuses"]
    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 1)


HANDLES_SIGTERM = """
import os, signal, time
def handle(*_):
    os.write(1, b"ending\\n")  # it may have interrupted print
    raise SystemExit(7)
signal.signal(signal.SIGTERM, handle)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_deleted_pod_gets_sigterm_and_time_to_end(namespace: Namespace, kubelet: Kubelet) -> None:
    kubelet.longest_grace = 60
    namespace.create(pod("one", container(*python(HANDLES_SIGTERM))))
    until(lambda: phase(namespace, "one") == "Running")
    with namespace.api.stream(namespace.path("pods", "one/log"), follow=True) as log:
        lines = iter(log)
        assert next(lines) == b"ready\n"
        namespace.api.delete(namespace.path("pods", "one"))
        assert list(lines) == [b"ending\n"]
    until(lambda: not namespace.list("pods"))


def test_a_first_process_that_does_not_handle_sigterm_is_killed_after_the_grace_period(
    namespace: Namespace, kubelet: Kubelet
) -> None:
    kubelet.longest_grace = 0.5
    watched = namespace.api.stream(namespace.path("pods"), watch=1)
    namespace.create(pod("one", container("sh", "-c", "sleep 600 & echo ready; wait")))
    until(lambda: phase(namespace, "one") == "Running" and kubelet.log("one"))
    start = time.monotonic()
    namespace.api.delete(namespace.path("pods", "one"))
    with watched:
        events = [json.loads(line) for line in until_deleted(watched)]
    assert time.monotonic() - start >= 0.5
    assert events[-1]["object"]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert events[-1]["object"]["status"]["phase"] == "Failed"


def until_deleted(lines):
    for line in lines:
        yield line
        if json.loads(line)["type"] == "DELETED":
            return


def test_logs_are_read_through_the_api_server(namespace: Namespace, kubelet: Kubelet, tmp_path: Path) -> None:
    program = """
import pathlib, time
print("first", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("second"); print("third", end="")
"""
    api = namespace.service_account_folder(tmp_path / "account").api
    path = namespace.path("pods", "one/log")
    namespace.create(pod("one", container(*python(program))))
    until(lambda: phase(namespace, "one") == "Running" and kubelet.log("one"))
    with api.stream(path, follow=True, timestamps=True) as log:
        lines = iter(log)
        stamp, text = next(lines).split(b" ", 1)
        assert text == b"first\n"
        # The API server hands on whole seconds, so lines of the same second come again.
        time.sleep(1.1)
        (tmp_path / "go").touch()
        rest = [line.split(b" ", 1) for line in lines]
    assert [text for _, text in rest] == [b"second\n", b"third"]
    assert stamp < rest[0][0]
    assert len(stamp) == len("2026-01-02T03:04:05.123456789Z")
    assert api.get(path) == "first\nsecond\nthird"
    assert api.get(path, tailLines=2) == "second\nthird"
    assert api.get(path, limitBytes=8) == "first\nse"
    assert api.get(path, sinceTime=stamp.decode()) == "first\nsecond\nthird"
    assert api.get(path, sinceTime=rest[0][0].decode()) == "second\nthird"
    assert api.get(path, sinceTime=rest[0][0].decode(), follow=True, tailLines=1) == "third"


def test_pods_wait_for_what_a_test_holds(namespace: Namespace, kubelet: Kubelet) -> None:
    kubelet.hold("Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    kubelet.hold("ImagePullBackOff", 'Back-off pulling image "bad"', image="bad")
    namespace.create(pod("one", container("true")))
    namespace.create(pod("two", container("true", image="bad")))

    def condition() -> Object:
        return next(iter(namespace.api.get(namespace.path("pods", "one"))["status"].get("conditions", ())), {})

    until(lambda: condition().get("reason") == "Unschedulable")
    assert condition()["message"].endswith("nvidia.com/gpu.")
    kubelet.release()
    assert ended(namespace, "one")["exitCode"] == 0

    def status() -> Object:
        return dict(namespace.api.get(namespace.path("pods", "two"))["status"])

    waiting = until(lambda: status().get("containerStatuses"))[0]["state"]["waiting"]
    assert waiting == {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "bad"'}
    assert status()["phase"] == "Pending"
    with pytest.raises(ApiError, match=says("main", "two", "waiting to start", "pull image")) as refused:
        namespace.api.get(namespace.path("pods", "two/log"))
    assert refused.value.status == 400
    kubelet.release("bad")
    assert ended(namespace, "two")["exitCode"] == 0


def test_a_secret_that_comes_later_lets_its_pod_start(namespace: Namespace, kubelet: Kubelet) -> None:
    variables = {"KEY": {"secretKeyRef": {"name": "late", "key": "key"}}}
    namespace.create(pod("one", container("sh", "-c", "echo $KEY", env=variables)))
    status = until(lambda: namespace.list("pods")[0]["status"].get("containerStatuses"))
    assert status[0]["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'secrets "late" not found',
    }
    namespace.create(secret("late", key="here"))
    ended(namespace, "one")
    assert kubelet.log("one") == "here\n"


def test_pods_of_a_lost_node_are_removed(namespace: Namespace, kubelet: Kubelet) -> None:
    namespace.create(job("training", container("sleep", "600"), backoffLimit=3))
    (lost,) = until(lambda: [each for each in namespace.list("pods") if each["status"]["phase"] == "Running"])
    kubelet.lose_node()
    # Their Job makes another one after 10 s.
    until(lambda: namespace.list("batch/v1/jobs")[0]["status"].get("failed") == 1 and not namespace.list("pods"))
    namespace.create(pod("one", container("true")))
    assert ended(namespace, "one")["exitCode"] == 0
    assert namespace.list("pods")[0]["spec"]["nodeName"] != lost["spec"]["nodeName"]


def test_what_a_deleted_object_owns_is_collected(namespace: Namespace, kubelet: Kubelet) -> None:
    owner = namespace.create(pod("launcher", container("sleep", "600")))
    manifest = job("training", container("sleep", "600"))
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "launcher", "uid": owner["metadata"]["uid"]}
    manifest["metadata"]["ownerReferences"] = [reference]
    namespace.create(manifest)
    until(lambda: [each["status"]["phase"] for each in namespace.list("pods")] == ["Running"] * 2)
    namespace.api.delete(namespace.path("pods", "launcher"), gracePeriodSeconds=0)
    until(lambda: not namespace.list("batch/v1/jobs") and not namespace.list("pods"))


def test_no_process_outlives_its_node(namespace: Namespace, kubelet: Kubelet) -> None:
    program = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "98765"], start_new_session=True)
print("ready", flush=True)
time.sleep(98765)
"""
    namespace.create(pod("one", container(*python(program))))
    until(lambda: phase(namespace, "one") == "Running" and kubelet.log("one"))
    assert len(sleeping()) == 2
    kubelet.end()
    assert sleeping() == []


def sleeping() -> list[str]:
    lines = [file.read_bytes().replace(b"\0", b" ").decode() for file in Path("/proc").glob("[0-9]*/cmdline")]
    return [line for line in lines if "98765" in line and "sandbox.py" not in line]
