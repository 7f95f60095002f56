"""The object of the cluster's engine: create or adopt it, follow it to its end, and delete it.

The cluster has exactly one object at any time, whichever process dies. Its name comes from the Argo node of the
stage, which is the same in all attempts, and Kubernetes accepts a name only once. An attempt adopts the object if it
runs or has succeeded; if it has failed, or was made from another SPEC, the attempt deletes it, waits until it is gone
with its pods, and makes a new one. The execution id of the object is that of the attempt that made it, so that results
of a failed one are never those of the next. An annotation names the attempt that follows the object, and a process
whose pod is gone follows none: a disconnected node may return during the next attempt. An attempt deletes an object
only if that names this attempt or the one before.

Argo kills a stage's processes about a second after SIGTERM (0.16 to 0.95 s were seen on KFP 2.17), so deleting the
object is the first thing that the handler does. The owner of the object, and of the service that gives its pods names,
is the run's Workflow: if the launcher's pod is lost with its node, the replicas go on, and the next attempt adopts
them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from torchx_kfp.contract.carried.cluster_api import PATIENCE, Cluster, Replica
from torchx_kfp.contract.carried.replica_roles import (
    ENDING,
    KEPT,
    Failure,
    configure,
    fill,
    last_lines,
    say,
    show_end,
    tally,
    texts,
    use_run_id,
)

#: The annotation of a Job's pods with the index of a replica.
INDEX = "batch.kubernetes.io/job-completion-index"


def object_name(stage: str, run_id: object, node: str, /) -> str:
    """Return the name of a stage's object, from the stage's name, the run and the Argo node of any attempt."""
    node = re.sub(r"\(\d+\)", "", node)  # ``(1)`` counts attempts, ``(0:0)`` is an iteration
    return f"{stage}-{hashlib.sha256(f'{run_id} {node}'.encode()).hexdigest()[:10]}"


def conditions_of(found: Any, /) -> Any:
    """Return the conditions of an object."""
    return (found.get("status") or {}).get("conditions") or ()


def state_of(spec: Any, found: Any, /) -> str:
    """Return ``succeeded``, ``failed`` or an empty string."""
    true = [one["type"] for one in conditions_of(found) if one["status"] == "True"]
    return "succeeded" if spec["succeeded"] in true else "failed" if "Failed" in true else ""


def note_of(found: Any, name: str, /) -> str:
    """Return an attempt's notes on its object: the attempt that follows it, and its specification."""
    return str((found["metadata"].get("annotations") or {}).get(f"torchx-kfp/{name}", ""))


class ClusterStage:
    """One attempt of a distributed stage on the cluster."""

    def __init__(
        self, spec: Any, words: Sequence[str], counts: Sequence[int], executor_input: Any, attempt: int = 1, /
    ) -> None:
        self.spec = spec
        self.words = words
        self.counts = counts
        self.given = executor_input
        self.cluster = Cluster(spec["engine"])
        self.name = object_name(spec["stage"], os.environ.get("KFP_RUN_ID"), os.environ["KFP_ARGO_NODE"])
        self.collection = self.cluster.path(spec["api"], spec["plural"])
        self.object = f"{self.collection}/{self.name}"
        self.pod, self.uid = os.environ.get("KFP_POD_NAME", ""), os.environ.get("KFP_POD_UID")
        #: The name of this attempt. When KFP retries a run, Argo gives the new pod the name of the one that failed.
        self.attempt = f"{self.pod}{f'_{self.uid[:8]}' if self.uid else ''}{f'/{attempt}' * (attempt > 1)}"
        #: The attempts whose object this one may delete.
        self.own = {self.attempt}
        self.replicas: dict[str, Replica] = {}
        self.told: Any = ""
        self.began = time.monotonic()
        config = ((executor_input.get("inputs") or {}).get("parameterValues") or {}).get(spec["config"]) or {}
        self.config = json.loads(config) if isinstance(config, str) else dict(config)
        # The launcher's own claims, which the manifest has for the roles that mount them.
        mounts = [one for one in self.config.get("volumeMounts") or () if one["mountPath"] not in spec["claims"]]
        used = {one["name"] for one in mounts}
        volumes = [one for one in self.config.get("volumes") or () if one["name"] in used]
        self.config.update(volumeMounts=mounts, volumes=volumes)
        #: The input from which the object is made; the execution id differs from attempt to attempt.
        self.digest = hashlib.sha256(json.dumps([spec, words, self.config], sort_keys=True).encode()).hexdigest()[:16]

    # Making and ending the object

    def find(self, patience: float = PATIENCE, /) -> Any:
        """Return the object of this name, or None."""
        code, found = self.cluster.call("GET", self.object, None, patience)
        return None if code == 404 else found

    def remove(self, found: Any, patience: float = PATIENCE, /) -> bool:
        """Delete the object unless it has changed since; return whether it was deleted.

        Kubernetes deletes its pods first.
        """
        known = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {"propagationPolicy": "Foreground", "preconditions": known}
        return self.cluster.call("DELETE", self.object, body, patience)[0] != 409

    def delete(self, patience: float, /) -> str:
        """Delete the object if this attempt may do so; return a sentence if it no longer has replicas."""
        while True:
            found = self.find(patience)
            if not found:
                return f"{self.name} does not exist"
            if note_of(found, "launcher") not in self.own:
                return ""
            if self.remove(found, patience):
                return f"{self.name} is deleted"

    def stop(self, number: int, _: object, /) -> None:
        """Handle a signal that ends the stage: delete first, report later."""
        try:
            said = self.delete(5)
            said = said and f"; {said}"
        except Failure as failure:
            said = f", but {self.name} is not deleted: {failure}"
        say(f"ended by signal {number}{said}")
        os._exit(128 + number)

    def make(self) -> Any:
        """Create the object, or adopt an earlier attempt's."""
        said = ""
        while True:
            owners = self.owners()
            found = self.find()
            obstacle = self.obstacle(found)
            if not obstacle:
                made = self.adopt(found, owners) if found else self.create(owners)
                if made:
                    return made
                continue
            if obstacle != said:
                say(obstacle)
                said = obstacle
            if found and "deletionTimestamp" not in found["metadata"]:
                self.remove(found)
            time.sleep(0.5)

    def obstacle(self, found: Any, /) -> str:
        """Return why the object cannot be adopted or created yet; empty if it can."""
        if not found:
            left = any(pod["status"].get("phase") in ("Pending", "Running") for pod in self.list_pods())
            return "waiting until the pods of an earlier attempt are gone" * left
        self.own.add(note_of(found, "launcher"))
        if "deletionTimestamp" in found["metadata"]:
            what = "is being deleted"
        elif note_of(found, "spec") != self.digest:
            what = "was made from another specification"
        elif state_of(self.spec, found) == "failed" and note_of(found, "launcher") != self.attempt:
            what = "has failed"
        else:
            return ""  # if this attempt made it, and did not get the answer, its failure is that of the attempt
        return f"{self.name} of an earlier attempt {what}; waiting until it and its pods are gone"

    def create(self, owners: Any, /) -> Any:
        """Create the object after its companions; return it, or None if it exists."""
        for api, plural, one in self.spec["companions"]:
            companion = fill(one, {"name": self.name})
            companion["metadata"]["ownerReferences"] = owners
            # With 409, there is that of an earlier attempt, which is the same.
            self.cluster.call("POST", self.cluster.path(api, plural), companion)
        # A signal waits until the API server has answered: then it is known what to delete.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            code, found = self.cluster.call("POST", self.collection, self.manifest(owners))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if code == 404:
            needs = f"the engine {self.spec['engine']!r} needs {self.spec['needs']}"
            raise Failure(f"{self.collection}: {found.strip()}: {needs}")
        if code == 409:
            return None
        say(f"created {found['kind']} {self.cluster.namespace}/{self.name}")
        return found

    def adopt(self, found: Any, owners: Any, /) -> Any:
        """Record that this attempt follows the object, and take over its execution id; None if it has changed."""
        mine = {"torchx-kfp/launcher": self.attempt}
        version = found["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "ownerReferences": owners, "annotations": mine}}
        code, adopted = self.cluster.call("PATCH", self.object, body)
        if code in (404, 409):
            return None
        run_id = note_of(found, "run-id")
        if run_id:
            use_run_id(self.given, run_id)
        if note_of(found, "launcher") != self.attempt:
            known = f", execution id {run_id}" * bool(run_id)
            say(f"following {found['kind']} {self.cluster.namespace}/{self.name} of an earlier attempt{known}")
        return adopted

    def owners(self) -> Any:
        """Return the Workflow that owns this pod, as the owner of the object."""
        for pod in self.cluster.pods(f"fieldSelector=metadata.name%3D{self.pod}"):
            if self.uid in (None, pod["metadata"]["uid"]):
                owners = [one for one in pod["metadata"]["ownerReferences"] if one["kind"] == "Workflow"]
                return [{key: one[key] for key in ("apiVersion", "kind", "name", "uid")} for one in owners]
        # A node that was cut off and is back: this process has outlived its pod.
        raise Failure(f"the pod {self.pod} is gone")

    def list_pods(self) -> Any:
        """Return the pods of the stage's replicas, including those of earlier attempts."""
        return self.cluster.pods(f"labelSelector=torchx-kfp%2Fstage%3D{self.name}")

    def manifest(self, owners: Any = (), /) -> Any:
        """Return the object, completed with values known only at run time."""
        spec, replica = self.spec, "$(TORCHX_REPLICA_ID)"

        def escape(text: str, /) -> str:
            return text.replace("$", "$$")  # the kubelet would expand it

        words = [*map(escape, self.words)]
        index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        values: dict[str, Any] = {"name": self.name, "service_account": self.cluster.account}
        for position, role in enumerate(spec["roles"]):
            count = self.counts[position]
            alone = position == 0 and count == 1
            command = [texts(parts, words, replica) for parts in role["command"]]
            if position == 0 and not alone:
                # For replica 0, the host is localhost, as TorchX has it: its own name may not resolve yet.
                script = '[ "$$TORCHX_REPLICA_ID" != 0 ] || TORCHX_RANK0_HOST=localhost; exec "$$@"'
                command = ["sh", "-c", script, "sh", *command]
            variables = {
                "TORCHX_NUM_REPLICAS": str(count),
                "TORCHX_RANK0_HOST": "localhost" if alone else spec["host"] % {"name": self.name},
                **{
                    name: escape(os.environ[name]) if parts is None else texts(parts, words, replica)
                    for name, parts in role["env"]
                    if parts is not None or name in os.environ
                },
            }
            env = [{"name": name, "value": value} for name, value in variables.items()]
            own: dict[str, Any] = {
                "command": command,
                "env": [{"name": "TORCHX_REPLICA_ID", "valueFrom": index}, *env],
                "replicas": count,
                "image": texts(role["image"], self.words, "") if "image" in role else "",
            }
            values[f"{position}"] = own
            own["pod"] = fill(role["pod"], values)
            configure(own["pod"]["spec"], self.config)
        made = fill(spec["object"], values)
        notes = {"spec": self.digest, "run-id": os.environ.get("TORCHX_JOB_ID", ""), "launcher": self.attempt}
        made["metadata"]["annotations"].update({f"torchx-kfp/{key}": value for key, value in notes.items()})
        made["metadata"]["ownerReferences"] = list(owners)
        return made

    # Following it

    def run(self) -> int:
        """Create or adopt the object, follow it to its end, and return the exit code of the stage."""
        for number in ENDING:
            signal.signal(number, self.stop)
        try:
            return self.finish(self.follow(self.make()))
        except Exception:  # whatever it is, nobody would follow the object
            with contextlib.suppress(Failure):
                said = self.delete(5)
                if said:
                    say(said)
            raise

    def follow(self, found: Any, /) -> Any:
        """Follow the object to its end, and return it."""
        failed: set[str] = set()
        preempted: set[str] = set()
        while True:
            items = self.list_pods()
            suspended = bool((found.get("spec") or {}).get("suspend"))
            self.watch(items, suspended)
            # A queue gives their places to others, and resumes it later, which may take less time than a look.
            times = [one.get("lastTransitionTime", "") for one in conditions_of(found) if one["type"] == "Suspended"]
            preempted |= {uid for uid, one in self.replicas.items() if suspended or one.made < max(times, default="")}
            # Those that had failed before the object was found: then, it says if a queue has ended them.
            if state_of(self.spec, found) or ("ends" in self.spec and failed - preempted):
                return found
            failed = {uid for uid, replica in self.replicas.items() if replica.code or replica.gone}
            # A list of 1,000 pods has several megabytes. After a minute, news can wait for 3 s: trainings take days.
            time.sleep(max(0.5 + len(items) / 100, min(3, (time.monotonic() - self.began) / 20)))
            found = self.find()
            if not found:
                raise Failure(f"{self.name} was deleted by something else before its replicas ended")
            if note_of(found, "launcher") != self.attempt:
                raise Failure(f"another attempt of this stage follows {self.name} now")

    def finish(self, found: Any, /) -> int:
        """Read the logs to their ends; return the exit code of the finished stage."""
        deadline = time.monotonic() + 30
        for replica in self.replicas.values():
            if replica.reader:
                replica.reader.join(max(0.0, deadline - time.monotonic()))
        if state_of(self.spec, found) == "succeeded":
            say(f"{self.name} succeeded")
            return 0
        code = self.explain(found)
        try:
            self.delete(60)
        except Failure as failure:
            say(f"{self.name} is not deleted: {failure}")
        return code

    def watch(self, items: Any, suspended: bool, /) -> None:
        """Record the pods, start reading logs of new ones, and report why others are waiting."""
        seen = set()
        for item in sorted(items, key=lambda item: item["metadata"]["creationTimestamp"]):
            meta = item["metadata"]
            seen.add(meta["uid"])
            if meta["uid"] not in self.replicas:
                index = (meta.get("annotations") or {}).get(INDEX, "?")
                role = meta["labels"]["torchx-kfp/role"]
                label, container = f"{role}/{index}", self.spec.get("container", role)
                first = label == f"{self.spec['roles'][0]['name']}/0"
                follows = {"all": True, "first": first, "none": False}[self.spec["logs"]]
                self.replicas[meta["uid"]] = Replica(self.cluster, item, label, container, follows)
            self.replicas[meta["uid"]].update(item)
        for uid, replica in self.replicas.items():
            if uid not in seen and not replica.ended:
                replica.end(0, {})
                replica.gone = True
                say(f"{replica.label}: its pod {replica.pod} is gone")
        present = [self.replicas[uid] for uid in seen]
        total = sum(self.counts)
        done = sum(replica.ended != "" and not replica.code for replica in present)
        text = tally([replica.label for replica in present if replica.runs], total, done)
        if done == total:
            text = f"all {total} replicas succeeded"
        waiting = min(((replica.label, *replica.waiting) for replica in present if replica.waiting), default=())
        reason = waiting[1].replace("ErrImagePull", "ImagePullBackOff") if waiting else ""  # they alternate
        details = ""
        if waiting:
            details = f"; {waiting[0]} waits: {': '.join(filter(None, waiting[1:]))}"
        elif suspended:
            details = reason = "; it is suspended: a queue has not admitted it yet"
        elif not present:
            details = reason = "; it has no pods yet"
            if time.monotonic() > self.began + 10:
                kind = self.spec["plural"] + "." * ("/" in self.spec["api"]) + self.spec["api"].split("/")[1]
                details = reason = f"{details}: kubectl describe {kind} {self.name} -n {self.cluster.namespace}"
        if (text, reason) != self.told:
            say(text + details)
            self.told = text, reason

    def explain(self, found: Any, /) -> int:
        """Report why the object failed, and the first failed replica with its last lines; return its exit code."""
        true = [one for one in conditions_of(found) if one["status"] == "True"]
        failures = [one for one in true if "Fail" in one["type"]]
        messages = [one["message"] for one in failures if one.get("message")]
        what = ": ".join([f"{self.name} failed", *messages[:1]])
        # Of pods that replaced each other, the last one counts.
        last = {one.label: one for one in self.replicas.values()}
        failed = [one for one in last.values() if one.code or one.gone]
        if not failed:
            say(what)
            return 1
        # Times are whole seconds: the engine may have ended others in that of the first failure. That of a pod that is
        # gone is when it was missed: the engine may have ended others before.
        lost = any(one.gone and not one.deleted for one in failed)
        first = min(failed, key=lambda one: (lost and one.deleted, one.ended, one.deleted, one.gone, one.label))
        lines = list(first.lines)
        if not lines and not first.gone:
            with contextlib.suppress(OSError, http.client.HTTPException):
                lines = self.cluster.open("GET", first.log(f"tailLines={KEPT}")).read(1 << 16).splitlines()
        how = "is gone" if first.gone else f"failed first, with exit code {first.code}{first.why}"
        what += f"\n{first.label} (pod {first.pod}, node {first.node}) {how}"
        show_end(first.label, what, last_lines(lines, 20))
        if first.gone or first.lost:  # its node has failed, not the application
            return int(self.spec.get("failure", 1))
        return first.code if 0 < first.code < 256 else 1
