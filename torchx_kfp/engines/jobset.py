"""JobSet: https://jobset.sigs.k8s.io. Kubeflow Trainer brings its controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchx_kfp.engines.engine import Engine, Manifest, Role, Workload, marker
from torchx_kfp.engines.job import INDEX, QUEUE, indexed_job
from torchx_kfp.engines.pods import metadata, pod_template
from torchx_kfp.engines.roles import check_success, shared_restarts


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
