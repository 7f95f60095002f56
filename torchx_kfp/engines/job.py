"""Kubernetes' own Indexed Job, with a headless Service for the names of its pods. Nothing has to be installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchx_kfp.engines.engine import Engine, Manifest, Role, Workload, marker
from torchx_kfp.engines.pods import STAGE_LABEL, metadata, pod_template
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
