"""A pod on the double of a node: its life from the binding to its removal."""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kubernetes.api import ApiError, Object
from tests.kubernetes.expansion import command_line, environment
from tests.kubernetes.logs import Log
from tests.kubernetes.names import hostname, reachable
from tests.kubernetes.sandbox import NOT_STARTED
from tests.kubernetes.volumes import mounts

if TYPE_CHECKING:
    from tests.kubernetes.kubelet import Kubelet

#: Seconds before a container is started again. The kubelet waits 10 s from the second time on.
RESTART = 5


class _StoppedError(Exception):
    """The pod is being deleted before its end."""


class _GoneError(Exception):
    """The pod has been removed, or its node is lost."""


class Container:
    """A container of a pod: its process, log and state, as in ``containerStatuses``."""

    def __init__(self, manifest: Object) -> None:
        self.manifest = manifest
        self.name = str(manifest["name"])
        self.log = Log()
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self, specification: Object, folder: Path, on_end: Callable[[Container], None]) -> None:
        """Start it; the function is called once it has ended, and its log with it."""
        if self.restarts:
            self.log = Log()
        file, error = folder / f"{self.name}.json", folder / f"{self.name}.error"
        file.write_text(json.dumps({**specification, "error": str(error)}))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("sandbox.py")), str(file)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.state = {"running": {"startedAt": now()}}
        arguments = (self.process, self.log, error, on_end)
        self._reader = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._reader.start()

    def _read(
        self, process: subprocess.Popen[bytes], log: Log, error: Path, on_end: Callable[[Container], None]
    ) -> None:
        assert process.stdout
        with process.stdout as output:
            log.fill(output)
        code = process.wait()
        # The process that waits for the container's first one was killed, and that one with it.
        code = 128 - code if code < 0 else code
        reason = "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "finishedAt": now()}
        if code == NOT_STARTED and error.exists():
            ended |= {"reason": "StartError", "message": error.read_text()}
        self.state = {"terminated": {**self.state.get("running", {}), **ended}}
        log.end()
        on_end(self)

    def back_off(self) -> None:
        """Take note that it is started again."""
        self.last_state = self.state
        self.state = {"waiting": {"reason": "CrashLoopBackOff"}}
        self.restarts += 1

    def end(self) -> None:
        """End its processes at once, and wait until nothing of them is left."""
        if self.process:
            self.process.kill()
        if self._reader:
            self._reader.join()
        self.log.end()

    @property
    def exit_code(self) -> int | None:
        return int(self.state["terminated"]["exitCode"]) if "terminated" in self.state else None

    @property
    def status(self) -> Object:
        ready = "running" in self.state
        return {
            "name": self.name, "image": self.manifest["image"], "imageID": "", "ready": ready, "started": ready,
            "restartCount": self.restarts, "state": self.state, "lastState": self.last_state,
        }  # fmt: skip


class Pod:
    """A pod, with a thread that does what the kubelet does with it."""

    def __init__(self, kubelet: Kubelet, manifest: Object) -> None:
        self.kubelet = kubelet
        self.manifest = manifest
        self.name = str(manifest["metadata"]["name"])
        self.node = kubelet.node
        self.address = kubelet.new_address()
        self.containers = {each["name"]: Container(each) for each in manifest["spec"]["containers"]}
        self.folder = kubelet.folder / str(manifest["metadata"]["uid"])
        self._hosts = self.folder / "hosts"
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._gone = False
        self._stop_at: float | None = None
        self._started = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def update(self, manifest: Object) -> None:
        """Take over a change: above all that it is to be deleted."""
        self.manifest = manifest
        if "deletionTimestamp" in manifest["metadata"]:
            grace = manifest["metadata"].get("deletionGracePeriodSeconds", 0)
            stop_at = time.monotonic() + min(grace, self.kubelet.longest_grace)
            self._stop_at = min(stop_at, self._stop_at or stop_at)
        self._wake.put(None)

    def leave(self) -> None:
        """End all its processes, and say nothing about it to anybody."""
        self._gone = True
        self._wake.put(None)

    def _run(self) -> None:
        try:
            self._live()
        except _GoneError:
            pass
        except Exception as error:  # of this thread: the test raises it at its end
            if not self._gone:
                self.kubelet.errors.append(error)
        finally:
            self.kubelet.names.remove(self._hosts)
            for container in self.containers.values():
                container.end()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _live(self) -> None:
        try:
            self._bind()
            self._start()
            while True:
                for container in self.containers.values():
                    if container.exit_code and self.manifest["spec"]["restartPolicy"] == "OnFailure":
                        self._start_again(container)
                if all(each.exit_code is not None for each in self.containers.values()):
                    break
                self._sleep()
        except _StoppedError:
            self._terminate()
        self._report()
        while self._stop_at is None:
            with contextlib.suppress(_StoppedError):
                self._sleep()
        # With this, the deletion that the kubelet has confirmed takes place.
        with contextlib.suppress(ApiError):
            uid = self.manifest["metadata"]["uid"]
            self.kubelet.api.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    @property
    def _path(self) -> str:
        return self.kubelet.namespace.path("pods", self.name)

    def _start_again(self, container: Container) -> None:
        container.back_off()
        self._report()
        at = time.monotonic() + RESTART
        while (left := at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._sleep(left)
        self._start_container(container)
        self._report()

    def _sleep(self, seconds: float | None = None) -> None:
        """Wait for a change; raise if the pod is to end."""
        self._wake.get(timeout=seconds)
        if self._gone:
            raise _GoneError
        if self._stop_at is not None:
            raise _StoppedError

    def _bind(self) -> None:
        """Play the scheduler."""
        if not self.manifest["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
            metadata = {"name": self.name, "uid": self.manifest["metadata"]["uid"]}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
            try:
                self.kubelet.api.post(f"{self._path}/binding", body)
            except ApiError as error:
                raise _GoneError from error
        self._started = now()

    def _start(self) -> None:
        self.folder.mkdir(parents=True)
        self.kubelet.names.add(self._hosts, self.manifest, self.address)
        for container in self.containers.values():
            self._start_container(container)
        self._report()

    def _start_container(self, container: Container) -> None:
        pod = copy.deepcopy(self.manifest)
        pod["spec"]["nodeName"] = self.node
        pod["status"] = {**pod.get("status", {}), "podIP": reachable(self.address), "hostIP": "127.0.0.1"}
        variables = environment(container.manifest, pod, self.kubelet.read)
        folder = self.folder / "volumes"
        volumes = mounts(container.manifest, pod, folder, self.kubelet.read, self.kubelet.token)
        files = [(str(self._hosts), "/etc/hosts"), (str(self.kubelet.name_service), "/etc/nsswitch.conf")]
        specification = {
            "hostname": hostname(pod),
            "mounts": [*files, *volumes],
            "folder": container.manifest.get("workingDir") or str(self.kubelet.working_folder),
            "command": command_line(container.manifest, variables),
            "env": {"HOSTNAME": hostname(pod), **self.kubelet.environ, **variables},
        }
        container.start(specification, self.folder, lambda _: self._wake.put(None))

    def _terminate(self) -> None:
        """End the containers as a deletion does."""
        assert self._stop_at is not None
        running = [each for each in self.containers.values() if "running" in each.state]
        for container in running:
            assert container.process
            container.process.terminate()
        for container in running:
            while container.exit_code is None and not self._gone:
                left = self._stop_at - time.monotonic()
                if left <= 0:
                    container.end()
                    break
                with contextlib.suppress(queue.Empty):
                    self._wake.get(timeout=left)
        if self._gone:
            raise _GoneError

    def _report(self) -> None:
        codes = [each.exit_code for each in self.containers.values()]
        done = None not in codes
        running = all("running" in each.state for each in self.containers.values())
        if done:
            phase = "Failed" if any(codes) else "Succeeded"
        else:
            phase = "Running" if any("waiting" not in each.state for each in self.containers.values()) else "Pending"
        reason = {"reason": "PodCompleted"} if done else {} if running else {"reason": "ContainersNotReady"}
        ready = {"status": "True" if running else "False", **reason}
        conditions = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": "True"},
            {"type": "ContainersReady", **ready},
            {"type": "Ready", **ready},
        ]
        addresses = {"podIP": self.address, "podIPs": [{"ip": self.address}]} if phase != "Pending" else {}
        self._patch(
            {
                "phase": phase,
                "conditions": [{**each, "lastTransitionTime": now()} for each in conditions],
                "containerStatuses": [each.status for each in self.containers.values()],
                "hostIP": "127.0.0.1",
                "startTime": self._started,
                **addresses,
            }
        )

    def _patch(self, status: Object) -> None:
        body = {"metadata": {"uid": self.manifest["metadata"]["uid"]}, "status": status}
        try:
            self.kubelet.api.patch(f"{self._path}/status", body)
        except ApiError as error:
            if error.status in (404, 409):
                raise _GoneError from error
            raise


def now() -> str:
    """Return the time as objects have it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def path_of_programs() -> str:
    """Return a ``PATH`` on which this interpreter is the first one."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
