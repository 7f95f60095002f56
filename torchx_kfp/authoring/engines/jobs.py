"""Indexed Jobs of Kubernetes: ``Job`` for one role, which needs nothing installed, and ``JobSet`` for several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchx_kfp.authoring.engines.engine import (
    STAGE_LABEL,
    Engine,
    Manifest,
    Role,
    Workload,
    check_success,
    marker,
    metadata,
    pod_template,
    shared_restarts,
)
from torchx_kfp.errors import AppDefError

#: The annotation with a pod's index: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
INDEX = "batch.kubernetes.io/job-completion-index"
#: Kueue's label for its queue: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
QUEUE = "kueue.x-k8s.io/queue-name"


def indexed_job(role: Role, position: int, template: Manifest) -> Manifest:
    """Return the spec of a Job whose pods are the role's replicas.

    A replica is replaced when it has ended: two pods at the same time would have its name.
    """
    return {
        "podReplacementPolicy": "Failed",
        "completionMode": "Indexed",
        "completions": marker(f"{position}.replicas"),
        "parallelism": marker(f"{position}.replicas"),
        "backoffLimit": 0 if role.restarts_all else role.restarts,
        "template": template,
    }


@dataclass(frozen=True)
class Job(Engine):
    """An Indexed Job of Kubernetes. It runs one role; ``queue`` is a LocalQueue of Kueue.

    Replicas are scheduled one by one, unless Kueue admits them together. If a replica fails, the Job fails; with
    ``RetryPolicy.REPLICA``, it starts up to ``max_retries`` failed replicas again. With ``RetryPolicy.APPLICATION``,
    the stage creates another Job when one has failed.
    """

    NAME: ClassVar[str] = "job"
    NEEDS: ClassVar[str] = "Kubernetes 1.24 or newer"
    RESOURCE: ClassVar[tuple[str, str]] = ("batch", "jobs")
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = (("", "services"),)
    STOCK_RIGHTS: ClassVar[bool] = True
    HAS_ROLES: ClassVar[bool] = False

    def workload(self, roles: Sequence[Role]) -> Workload:
        if len(roles) > 1:
            names = ", ".join(repr(role.given) for role in roles)
            raise AppDefError(
                f"engine='job' runs one role, but the AppDef has {len(roles)} ({names}). Use engine='jobset' or "
                "engine='volcano', which run several."
            )
        (role,) = roles
        template = pod_template(self, role, 0)
        template["spec"]["subdomain"] = marker("name")
        job: Manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(self),
            "spec": {**indexed_job(role, 0, template), "ttlSecondsAfterFinished": self.ttl},
        }
        if self.queue:
            job["metadata"]["labels"][QUEUE] = self.queue
        service: Manifest = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(self),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {STAGE_LABEL: marker("name")},
            },
        }
        return Workload(
            api="apis/batch/v1",
            plural="jobs",
            manifest=job,
            companions=(("api/v1", "services", service),),
            state=("status", "conditions"),
            succeeded=("Complete",),
            failed=("Failed",),
            index=INDEX,
            host="%(name)s-0.%(name)s",
            retries=role.restarts if role.restarts_all else 0,
        )


@dataclass(frozen=True)
class JobSet(Engine):
    """A JobSet, with one Indexed Job for each role. ``queue`` is a LocalQueue of Kueue.

    Attributes:
        succeeds_with: the roles whose success is the stage's: the others, such as a parameter server that never ends,
            are ended then. The default is all.

    With ``RetryPolicy.APPLICATION``, a failed replica makes the JobSet start all of them again, up to ``max_retries``
    times (``failurePolicy.maxRestarts``). With ``RetryPolicy.REPLICA``, only the failed one is started again.
    """

    NAME: ClassVar[str] = "jobset"
    NEEDS: ClassVar[str] = "the JobSet controller (Kubeflow Trainer brings it)"
    RESOURCE: ClassVar[tuple[str, str]] = ("jobset.x-k8s.io", "jobsets")

    succeeds_with: Sequence[str] = ()

    def workload(self, roles: Sequence[Role]) -> Workload:
        success = check_success(self, self.succeeds_with, roles)
        jobs = [
            {
                "name": role.name,
                "replicas": 1,
                "template": {"spec": indexed_job(role, position, pod_template(self, role, position))},
            }
            for position, role in enumerate(roles)
        ]
        spec: Manifest = {
            "network": {"enableDNSHostnames": True, "subdomain": marker("name"), "publishNotReadyAddresses": True},
            "replicatedJobs": jobs,
            "ttlSecondsAfterFinished": self.ttl,
        }
        restarts = shared_restarts(self, roles)
        if restarts:
            # All pods are gone before others have their names.
            spec["failurePolicy"] = {"maxRestarts": restarts, "restartStrategy": "BlockingRecreate"}
        if success:
            spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": success}
        jobset: Manifest = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(self),
            "spec": spec,
        }
        if self.queue:
            jobset["metadata"]["labels"][QUEUE] = self.queue
        return Workload(
            api="apis/jobset.x-k8s.io/v1alpha2",
            plural="jobsets",
            manifest=jobset,
            # JobSets of all versions have these; `terminalState` came later.
            state=("status", "conditions"),
            succeeded=("Completed",),
            failed=("Failed",),
            index=INDEX,
            host=f"%(name)s-{roles[0].name}-0-0.%(name)s",
            restarts=restarts,
            success=success,
        )
