"""The double of Volcano's controller for the jobs of a namespace.

It does what Volcano does with pods, the plugins ``env`` and ``svc``, policies and states. There are no queues and no
pod groups: pods are scheduled by the double of the kubelet, one by one.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import threading
import time
from collections import Counter
from collections.abc import Iterable

from tests.cluster.api import ApiError, Object
from tests.cluster.informer import Informer
from tests.cluster.namespaces import Namespace
from tests.cluster.pods import now

JOBS = "batch.volcano.sh/v1alpha1/jobs"
FINAL = ("Completed", "Failed", "Aborted", "Terminated")
#: The phase that follows an action, and the one after it.
_ACTIONS = {"CompleteJob": "Completing", "AbortJob": "Aborting", "TerminateJob": "Terminating"}
_ENDS = {"Completing": "Completed", "Aborting": "Aborted", "Terminating": "Terminated"}


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
            if self._expired(job):
                with contextlib.suppress(ApiError):
                    self._api.delete(self._namespace.path(JOBS, job["metadata"]["name"]))
                return
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
                codes = [
                    each["state"]["terminated"]["exitCode"]
                    for each in pod["status"].get("containerStatuses", ())
                    if "terminated" in each["state"]
                ]
                if action := _policy(job, _task(pod), "PodFailed", codes[0] if codes else 0):
                    return action
        for pod in gone:
            evicted = pod["metadata"]["uid"] not in self._deleted_here
            current = pod["metadata"]["annotations"]["volcano.sh/job-version"] == version
            if evicted and current and (action := _policy(job, _task(pod), "PodEvicted", 0)):
                return action
        for task in job["spec"]["tasks"]:
            done = [each for each in pods if _task(each) == task["name"] and _phase(each) == "Succeeded"]
            complete = done and len(done) == task["replicas"]
            if complete and (action := _policy(job, task["name"], "TaskCompleted", 0)):
                return action
        return ""

    def _add(self, job: Object) -> None:
        """Create what the plugins need."""
        controlled = job["status"].setdefault("controlledResources", {})
        for plugin in job["spec"].get("plugins", {}):
            controlled[f"plugin-{plugin}"] = plugin
        if "svc" not in job["spec"].get("plugins", {}):
            return
        name = job["metadata"]["name"]
        data = {}
        for task in job["spec"]["tasks"]:
            hosts = [f"{pod_name(job, task, index)}.{name}" for index in range(task["replicas"])]
            key = task["name"].replace("-", "_")
            data[f"{key}.host"] = "\n".join(hosts)
            data[f"VC_{key.upper()}_HOSTS"] = ",".join(hosts)
            data[f"VC_{key.upper()}_NUM"] = str(len(hosts))
        metadata = {"ownerReferences": [_reference(job)]}
        service = {
            "clusterIP": "None",
            "selector": {"volcano.sh/job-name": name, "volcano.sh/job-namespace": self._namespace.name},
            "publishNotReadyAddresses": _has_flag(job, "svc", "publish-not-ready-addresses"),
        }
        for manifest in (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "name": f"{name}-svc"}, "data": data},
            {"apiVersion": "v1", "kind": "Service", "metadata": {**metadata, "name": name}, "spec": service},
        ):
            with contextlib.suppress(ApiError):
                self._namespace.create(manifest)

    def _create_pods(self, job: Object, pods: list[Object]) -> None:
        present = {each["metadata"]["name"] for each in pods}
        for task in job["spec"]["tasks"]:
            for index in range(task["replicas"]):
                if pod_name(job, task, index) not in present:
                    try:
                        self._namespace.create(pod_manifest(job, task, index, self._namespace.name))
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
        leaving = sum("deletionTimestamp" in each["metadata"] for each in pods)
        phases = Counter(_phase(each) for each in pods if "deletionTimestamp" not in each["metadata"])
        tasks: dict[str, Object] = {}
        for pod in pods:
            counts = tasks.setdefault(_task(pod), {"phase": {}})["phase"]
            counts[_phase(pod)] = counts.get(_phase(pod), 0) + 1
        status |= {each.lower(): phases[each] for each in ("Pending", "Running", "Succeeded", "Failed")}
        status |= {"terminating": leaving, "taskStatusCount": tasks, "minAvailable": _minimum(job)}
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

    def _expired(self, job: Object) -> bool:
        if "ttlSecondsAfterFinished" not in job["spec"]:
            return False
        ended = datetime.datetime.fromisoformat(job["status"]["state"]["lastTransitionTime"].replace("Z", "+00:00"))
        return time.time() >= ended.timestamp() + job["spec"]["ttlSecondsAfterFinished"]


def pod_name(job: Object, task: Object, index: int) -> str:
    return f"{job['metadata']['name']}-{task['name']}-{index}"


def pod_manifest(job: Object, task: Object, index: int, namespace: str) -> Object:
    """Return a pod of a task."""
    template = copy.deepcopy(task["template"])
    name, version = job["metadata"]["name"], str(job["status"].get("version", 0))
    labels = {
        "volcano.sh/job-name": name,
        "volcano.sh/job-namespace": namespace,
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
    }
    annotations = {
        "scheduling.k8s.io/group-name": f"{name}-{job['metadata']['uid']}",
        "volcano.sh/job-name": name,
        "volcano.sh/job-retry-count": str(job["status"].get("retryCount", 0)),
        "volcano.sh/job-version": version,
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
        "volcano.sh/task-index": str(index),
        "volcano.sh/task-spec": task["name"],
        "volcano.sh/template-uid": f"{name}-{task['name']}",
    }
    spec = template["spec"]
    spec.setdefault("schedulerName", job["spec"].get("schedulerName", "volcano"))
    plugins = job["spec"].get("plugins", {})
    variables: list[Object] = []
    if "env" in plugins:
        variables += [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    if "svc" in plugins:
        spec.setdefault("hostname", pod_name(job, task, index))
        spec.setdefault("subdomain", name)
        for other in job["spec"]["tasks"]:
            for end in ("HOSTS", "NUM"):
                key = f"VC_{other['name'].replace('-', '_').upper()}_{end}"
                reference = {"configMapKeyRef": {"name": f"{name}-svc", "key": key}}
                variables.append({"name": key, "valueFrom": reference})
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        # After the container's own ones.
        container["env"] = [*container.get("env", ()), *variables]
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


def _has_flag(job: Object, plugin: str, flag: str) -> bool:
    words = job["spec"]["plugins"][plugin] or ()
    return any(word.lstrip("-") in (flag, f"{flag}=true") for word in words)


def _minimum(job: Object) -> int:
    return int(job["spec"].get("minAvailable") or sum(task["replicas"] for task in job["spec"]["tasks"]))


def _policy(job: Object, task: str, event: str, exit_code: int) -> str:
    """Return the action of the first policy for an event: the task's policies come before the job's."""
    own = [policy for each in job["spec"]["tasks"] if each["name"] == task for policy in each.get("policies", ())]
    for policy in (*own, *job["spec"].get("policies", ())):
        events = {policy.get("event"), *policy.get("events", ())}
        if events & {event, "*"} or (exit_code != 0 and policy.get("exitCode") == exit_code):
            return str(policy["action"])
    return ""


def _next_phase(job: Object, pods: list[Object], phase: str) -> str:
    """Return the phase that the pods give a job whose pods are all wanted."""
    phases = Counter(_phase(each) for each in pods if "deletionTimestamp" not in each["metadata"])
    ended = phases["Succeeded"] + phases["Failed"]
    if phase == "Pending":
        return "Running" if phases["Running"] + ended >= _minimum(job) else phase
    if ended == sum(task["replicas"] for task in job["spec"]["tasks"]):
        enough = phases["Succeeded"] >= job["spec"].get("minSuccess", _minimum(job))
        for task in job["spec"]["tasks"]:
            done = sum(_phase(each) == "Succeeded" for each in pods if _task(each) == task["name"])
            enough = enough and done >= task.get("minAvailable", 0)
        return "Completed" if enough else "Failed"
    if "minSuccess" in job["spec"] and phases["Succeeded"] >= job["spec"]["minSuccess"]:
        return "Completed"
    return phase
