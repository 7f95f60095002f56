"""The double of Volcano's controller for the jobs of a namespace.

It does what Volcano does with pods, the plugin ``svc``, policies and states. There are no queues and no
pod groups: pods are scheduled by the double of the kubelet, one by one.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Iterable

from tests.kubernetes.api import ApiError, Object
from tests.kubernetes.informer import Informer
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.pods import now

JOBS = "batch.volcano.sh/v1alpha1/jobs"
FINAL = ("Completed", "Failed", "Aborted")
#: The phase that follows an action, and the one after it.
_ACTIONS = {"CompleteJob": "Completing", "AbortJob": "Aborting"}
_ENDS = {"Completing": "Completed", "Aborting": "Aborted"}


class Volcano:
    """Runs the jobs of a namespace until `end`."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._api = namespace.api
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._deleted_here: set[str] = set()
        self._failed: set[str] = set()
        self._gone: list[Object] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = False
        self.errors: list[BaseException] = []
        self._informers = [
            Informer(self._api, namespace.path(JOBS), self._on_job),
            Informer(self._api, namespace.path("pods"), self._on_pod),
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending = True
        self._wake.set()
        for informer in self._informers:
            informer.end()
            self.errors += informer.errors
        self._thread.join()
        if self.errors:
            raise self.errors[0]

    def _on_job(self, event: str, job: Object) -> None:
        with self._lock:
            self._jobs.pop(job["metadata"]["uid"], None)
            if event != "DELETED":
                self._jobs[job["metadata"]["uid"]] = job
        self._wake.set()

    def _on_pod(self, event: str, pod: Object) -> None:
        with self._lock:
            self._pods.pop(pod["metadata"]["uid"], None)
            if event != "DELETED":
                self._pods[pod["metadata"]["uid"]] = pod
            else:
                self._gone.append(pod)
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._ending:
                # Jobs with a time to live end without an event.
                self._wake.wait(0.2)
                self._wake.clear()
                with self._lock:
                    jobs = list(self._jobs.values())
                for job in jobs:
                    if "deletionTimestamp" not in job["metadata"]:
                        self._sync(job)
        except BaseException as error:
            if not self._ending:
                self.errors.append(error)

    def _sync(self, seen: Object) -> None:
        with self._lock:
            job = copy.deepcopy(self._jobs.get(seen["metadata"]["uid"], seen))
            pods = [each for each in self._pods.values() if _owner(each) == job["metadata"]["uid"]]
            gone = [each for each in self._gone if _owner(each) == job["metadata"]["uid"]]
            self._gone = [each for each in self._gone if each not in gone]
        status = job.setdefault("status", {})
        before = copy.deepcopy(status)
        phase = status.get("state", {}).get("phase")
        if phase is None:
            self._add(job)
            phase = "Pending"
        elif phase in FINAL:
            self._delete(each for each in pods if _phase(each) not in ("Succeeded", "Failed"))
        elif phase == "Restarting":
            self._delete(pods)
            if status["retryCount"] >= job["spec"].get("maxRetry", 3):
                phase = "Failed"
            elif not pods:
                phase = "Pending"
        elif phase in _ENDS:
            running = [each for each in pods if _phase(each) not in ("Succeeded", "Failed")]
            self._delete(running)
            phase = _ENDS[phase] if not running else phase
        else:
            action = self._action(job, pods, gone)
            if action == "RestartJob":
                phase = "Restarting"
                status["retryCount"] = status.get("retryCount", 0) + 1
                status["version"] = status.get("version", 0) + 1
            elif action in _ACTIONS:
                phase = _ACTIONS[action]
                status["version"] = status.get("version", 0) + 1
            else:
                self._create_pods(job, pods)
                phase = _next_phase(job, pods, phase)
        self._report(job, pods, phase, before)

    def _action(self, job: Object, pods: list[Object], gone: list[Object]) -> str:
        """Return what the policies say about what has happened since."""
        version = str(job["status"].get("version", 0))
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if _phase(pod) == "Failed" and uid not in self._failed and "deletionTimestamp" not in pod["metadata"]:
                self._failed.add(uid)
                if action := _policy(job, _task(pod), "PodFailed"):
                    return action
        for pod in gone:
            evicted = pod["metadata"]["uid"] not in self._deleted_here
            current = pod["metadata"]["annotations"]["volcano.sh/job-version"] == version
            if evicted and current and (action := _policy(job, _task(pod), "PodEvicted")):
                return action
        for task in job["spec"]["tasks"]:
            done = [each for each in pods if _task(each) == task["name"] and _phase(each) == "Succeeded"]
            complete = done and len(done) == task["replicas"]
            if complete and (action := _policy(job, task["name"], "TaskCompleted")):
                return action
        return ""

    def _add(self, job: Object) -> None:
        """Create the service of the plugin ``svc``, which publishes addresses that are not ready."""
        name = job["metadata"]["name"]
        spec = {
            "clusterIP": "None",
            "selector": {"volcano.sh/job-name": name},
            "publishNotReadyAddresses": True,
        }
        metadata = {"ownerReferences": [_reference(job)], "name": name}
        with contextlib.suppress(ApiError):
            self._namespace.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})

    def _create_pods(self, job: Object, pods: list[Object]) -> None:
        present = {each["metadata"]["name"] for each in pods}
        for task in job["spec"]["tasks"]:
            for index in range(task["replicas"]):
                if pod_name(job, task, index) not in present:
                    try:
                        self._namespace.create(pod_manifest(job, task, index))
                    except ApiError as error:
                        # It is there, or a quota is exceeded: the next change of the job or of a pod tries again.
                        if error.status not in (403, 409):
                            raise

    def _delete(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            self._deleted_here.add(pod["metadata"]["uid"])
            if "deletionTimestamp" not in pod["metadata"]:
                with contextlib.suppress(ApiError):
                    self._api.delete(self._namespace.path("pods", pod["metadata"]["name"]))

    def _report(self, job: Object, pods: list[Object], phase: str, before: Object) -> None:
        status = job["status"]
        phases = Counter(_phase(each) for each in pods if "deletionTimestamp" not in each["metadata"])
        status |= {each.lower(): phases[each] for each in ("Pending", "Running", "Succeeded", "Failed")}
        if phase != before.get("state", {}).get("phase"):
            status["state"] = {"phase": phase, "lastTransitionTime": now()}
            status["conditions"] = [
                *before.get("conditions", ()),
                {"status": phase, "lastTransitionTime": now()},
            ]
        if status != before:
            path = self._namespace.path(JOBS, job["metadata"]["name"])
            try:
                changed = self._api.put(f"{path}/status", job)
            except ApiError as error:
                # It was changed or deleted in the meantime, and there is an event of that.
                if error.status not in (404, 409):
                    raise
            else:
                with self._lock:
                    if changed["metadata"]["uid"] in self._jobs:
                        self._jobs[changed["metadata"]["uid"]] = changed


def pod_name(job: Object, task: Object, index: int) -> str:
    return f"{job['metadata']['name']}-{task['name']}-{index}"


def pod_manifest(job: Object, task: Object, index: int) -> Object:
    """Return a pod of a task."""
    template = copy.deepcopy(task["template"])
    name, version = job["metadata"]["name"], str(job["status"].get("version", 0))
    labels = {"volcano.sh/job-name": name}
    annotations = {
        "volcano.sh/job-version": version,
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
    }
    spec = {"hostname": pod_name(job, task, index), "subdomain": name, **template["spec"]}
    spec.setdefault("schedulerName", job["spec"].get("schedulerName", "volcano"))
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job, task, index),
            "labels": {**metadata.get("labels", {}), **labels},
            "annotations": {**metadata.get("annotations", {}), **annotations},
            "ownerReferences": [_reference(job)],
        },
        "spec": spec,
    }


def _reference(job: Object) -> Object:
    names = {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    return {**kind, **names, "controller": True, "blockOwnerDeletion": True}


def _owner(pod: Object) -> str:
    return str(next((each["uid"] for each in pod["metadata"].get("ownerReferences", ())), ""))


def _phase(pod: Object) -> str:
    return str(pod["status"]["phase"])


def _task(pod: Object) -> str:
    return str(pod["metadata"]["annotations"]["volcano.sh/task-spec"])


def _policy(job: Object, task: str, event: str) -> str:
    """Return the action of the first policy for an event: the task's policies come before the job's."""
    own = [policy for each in job["spec"]["tasks"] if each["name"] == task for policy in each.get("policies", ())]
    policies = (*own, *job["spec"].get("policies", ()))
    return next((str(policy["action"]) for policy in policies if policy["event"] == event), "")


def _next_phase(job: Object, pods: list[Object], phase: str) -> str:
    """Return the phase that the pods give a job whose pods are all wanted."""
    phases = Counter(_phase(each) for each in pods if "deletionTimestamp" not in each["metadata"])
    ended = phases["Succeeded"] + phases["Failed"]
    if phase == "Pending":
        return "Running" if phases["Running"] + ended >= job["spec"]["minAvailable"] else phase
    if ended == sum(task["replicas"] for task in job["spec"]["tasks"]):
        enough = phases["Succeeded"] >= job["spec"]["minAvailable"]
        for task in job["spec"]["tasks"]:
            done = sum(_phase(each) == "Succeeded" for each in pods if _task(each) == task["name"])
            enough = enough and done >= task.get("minAvailable", 0)
        return "Completed" if enough else "Failed"
    return phase
