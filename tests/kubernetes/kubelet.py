"""The double of a node: scheduler, kubelet and name service for the pods of a namespace.

Containers are processes on this machine. The name of an image does not matter, since nothing is pulled: a container has
this machine's files, and the working folder and variables that the test names. Grace periods are cut to
``longest_grace``, since a container's first process that does not handle SIGTERM uses all of it (30 s).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.kubernetes.api import ApiError, Object
from tests.kubernetes.informer import Informer
from tests.kubernetes.names import Names
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.node_server import RefusedError, serve_logs
from tests.kubernetes.pods import Pod, path_of_programs
from tests.kubernetes.sandbox import NOT_STARTED


class Kubelet:
    """Runs the pods of a namespace.

    Args:
        namespace: Its pods run here.
        folder: For hosts files and volumes.
        working_folder: Where containers start that have no ``workingDir``.
    """

    def __init__(
        self,
        namespace: Namespace,
        folder: Path,
        working_folder: Path,
    ) -> None:
        self.namespace = namespace
        self.api = namespace.api
        self.folder = folder
        self.working_folder = working_folder
        #: Seconds; longer grace periods are cut to this.
        self.longest_grace = 2.0
        self.errors: list[BaseException] = []
        self.names = Names(namespace.name)
        parts = urlsplit(namespace.cluster.url)
        self.environ = {
            "PATH": path_of_programs(),
            "KUBERNETES_SERVICE_HOST": str(parts.hostname),
            "KUBERNETES_SERVICE_PORT": str(parts.port),
        }
        folder.mkdir(parents=True, exist_ok=True)
        # Names are looked up nowhere else.
        self.name_service = folder / "nsswitch.conf"
        self.name_service.write_text("hosts: files\n")
        self._number = _next_number(namespace.cluster.folder / "nodes")
        self._addresses = itertools.count(1)
        self._nodes = itertools.count(1)
        self._pods: dict[str, Pod] = {}
        self._removed: dict[str, Pod] = {}
        self._ending = False
        self._lock = threading.RLock()

    def start(self) -> None:
        authority = self.namespace.cluster.folder
        self._server = serve_logs((authority / "server.crt", authority / "server.key"), self._read_log)
        self._register()
        slices = self.namespace.path("discovery.k8s.io/v1/endpointslices")
        self._informers = [
            Informer(self.api, self.namespace.path("pods"), self._on_pod),
            Informer(self.api, slices, self.names.update),
        ]

    def end(self) -> None:
        """End all processes; raise what has gone wrong in a thread."""
        if self._ending:
            return
        self._ending = True
        for informer in self._informers:
            informer.end()
            self.errors += informer.errors
        self._leave_pods()
        self._server.end()
        with contextlib.suppress(ApiError):
            self.api.delete(f"/api/v1/nodes/{self.node}")
        if self.errors:
            raise self.errors[0]

    def kill(self, pod: str) -> None:
        """Kill the processes of a pod at once."""
        for process in self._processes(pod):
            process.kill()

    def terminate(self, pod: str) -> None:
        """Send SIGTERM to a pod that stays, as Argo does when a run is terminated."""
        for process in self._processes(pod):
            process.terminate()

    def _processes(self, pod: str) -> list[subprocess.Popen[bytes]]:
        found = next(each for each in reversed(list(self._pods.values())) if each.name == pod)
        return [container.process for container in found.containers.values() if container.process]

    def log(self, pod: str, container: str = "") -> str:
        """Return what a pod has written until now, or until it was removed."""
        pods = [*self._removed.values(), *self._pods.values()]
        found = next(each for each in reversed(pods) if each.name == pod)
        return (found.containers[container] if container else next(iter(found.containers.values()))).log.text

    def new_address(self) -> str:
        """Return an address that no other pod of this node has; pods of long ago may have had it."""
        last = next(self._addresses) % 254 + 1
        return f"10.{100 + self._number // 256 % 100}.{self._number % 256}.{last}"

    def read(self, collection: str, name: str) -> Object:
        """Return an object of the namespace that a container refers to."""
        found = self.api.get(self.namespace.path(collection, name))
        return {"kind": {"secrets": "Secret", "configmaps": "ConfigMap"}[collection], **found}

    def token(self, account: str, source: Object) -> str:
        """Return a token of a service account."""
        specification = {"expirationSeconds": source.get("expirationSeconds", 3600)}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": specification}
        path = self.namespace.path("serviceaccounts", f"{account}/token")
        return str(self.api.post(path, body)["status"]["token"])

    def _register(self) -> None:
        self.node = f"node-{self._number}-{next(self._nodes)}"
        resources = {"cpu": "64", "memory": "512Gi", "pods": "250"}
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.port}},
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}, "status": status})

    def _on_pod(self, event: str, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        with self._lock:
            pod = self._pods.get(uid)
            if event == "DELETED":
                if pod:
                    pod.leave()
                    self._removed[uid] = self._pods.pop(uid)
            elif pod:
                pod.update(manifest)
            elif self._is_for_here(manifest):
                self._pods[uid] = Pod(self, manifest)

    def _is_for_here(self, manifest: Object) -> bool:
        spec = manifest["spec"]
        if manifest["status"]["phase"] != "Pending" or "deletionTimestamp" in manifest["metadata"]:
            return False
        if "nodeName" in spec:
            return bool(spec["nodeName"] == self.node)
        return spec.get("schedulerName") == "default-scheduler" and not spec.get("schedulingGates")

    def _leave_pods(self) -> None:
        with self._lock:
            pods = list(self._pods.values())
            self._pods.clear()
        for pod in pods:
            pod.leave()
        for pod in pods:
            pod.thread.join()

    def _read_log(self, namespace: str, pod: str, container: str, options: Mapping[str, str]) -> Iterable[bytes]:
        with self._lock:
            found = [each for each in self._pods.values() if each.name == pod and namespace == self.namespace.name]
        if not found:
            raise RefusedError(f'pod "{pod}" not found')
        read = found[-1].containers[container]
        return read.log.read(options)


def _next_number(file: Path) -> int:
    """Return a number that no other node of the cluster has."""
    with file.open("a+") as numbers:
        fcntl.flock(numbers, fcntl.LOCK_EX)
        numbers.seek(0)
        number = len(numbers.read())
        numbers.write("x")
        return number


def why_it_cannot_run(folder: Path) -> str | None:
    """Return why this machine does not let processes have mounts and host names of their own, if so."""
    specification = {
        "hostname": "x",
        "mounts": [],
        "folder": "/",
        "command": ["true"],
        "env": {"PATH": path_of_programs()},
    }
    file, error = folder / "try.json", folder / "try.error"
    file.write_text(json.dumps({**specification, "error": str(error)}))
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("sandbox.py")), str(file)]
    code = subprocess.run(command, check=False).returncode
    return error.read_text() if code == NOT_STARTED else None
