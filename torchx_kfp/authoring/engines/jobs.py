"""Indexed Jobs of Kubernetes: ``Job`` for one role, which needs nothing installed, and ``JobSet`` for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torchx_kfp.authoring.engines.engine import (
    STAGE_LABEL,
    Engine,
    Manifest,
    marker,
    metadata,
    restarts_alone,
)
from torchx_kfp.errors import AppDefError

if TYPE_CHECKING:
    from torchx import specs

#: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
_INDEX = "batch.kubernetes.io/job-completion-index"
_ONE_BY_ONE = "ignored: replicas start one by one, so that fewer run at first; Kueue admits all at once"


def indexed_job(role: specs.Role, position: int, template: Manifest) -> Manifest:
    """Return the spec of a Job whose pods are the role's replicas.

    A replica is replaced when it has ended: two pods at the same time would have its name.
    """
    return {
        "podReplacementPolicy": "Failed",
        "completionMode": "Indexed",
        "completions": marker(f"{position}.replicas"),
        "parallelism": marker(f"{position}.replicas"),
        "backoffLimit": restarts_alone(role),
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
    OBJECT: ClassVar[tuple[str, str, str]] = ("batch/v1", "Job", "jobs")
    STATE: ClassVar[tuple[Sequence[str], str, Sequence[str]]] = (["status", "conditions"], "Complete", ["Failed"])
    INDEX: ClassVar[str] = _INDEX
    HOST: ClassVar[str] = "%(name)s-0.%(name)s"
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = (("", "services"),)
    STOCK_RIGHTS: ClassVar[bool] = True
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "AppDef": {"roles": "rejected unless it is one: the pods of a Job are of one kind"},
        "Role": {
            "min_replicas": _ONE_BY_ONE,
            "max_retries": "mapped: the stage makes the Job again; with REPLICA, the Job's backoffLimit",
        },
    }

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str], restarts: int
    ) -> tuple[Manifest, Mapping[str, Any]]:
        if len(roles) > 1:
            names = ", ".join(repr(role.name) for role in roles.values())
            raise AppDefError(
                f"engine='job' runs one role, but the AppDef has {len(roles)} ({names}). Use engine='jobset' or "
                "engine='volcano', which run several."
            )
        (role,), (pod,) = roles.values(), pods
        template = {**pod, "spec": {**pod["spec"], "subdomain": marker("name")}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata({}),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {STAGE_LABEL: marker("name")},
            },
        }
        spec = {**indexed_job(role, 0, template), "ttlSecondsAfterFinished": self.ttl}
        # Kubernetes does not start all of a Job again: the launcher does.
        return spec, {"companions": [("api/v1", "services", service)], "restarts": 0, "retries": restarts or None}


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
    OBJECT: ClassVar[tuple[str, str, str]] = ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
    #: JobSets of all versions have these; `terminalState` came later.
    STATE: ClassVar[tuple[Sequence[str], str, Sequence[str]]] = (["status", "conditions"], "Completed", ["Failed"])
    INDEX: ClassVar[str] = _INDEX
    HOST: ClassVar[str] = "%(name)s-%(role)s-0-0.%(name)s"
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "Role": {
            "min_replicas": _ONE_BY_ONE,
            "max_retries": "mapped: failurePolicy.maxRestarts; with REPLICA, the Jobs' backoffLimit",
        },
    }

    succeeds_with: Sequence[str] = ()

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str], restarts: int
    ) -> tuple[Manifest, Mapping[str, Any]]:
        jobs = [
            {"name": name, "replicas": 1, "template": {"spec": indexed_job(role, position, pods[position])}}
            for position, (name, role) in enumerate(roles.items())
        ]
        spec: Manifest = {
            "network": {"enableDNSHostnames": True, "subdomain": marker("name"), "publishNotReadyAddresses": True},
            "replicatedJobs": jobs,
            "ttlSecondsAfterFinished": self.ttl,
        }
        if restarts:
            # All pods are gone before others have their names.
            spec["failurePolicy"] = {"maxRestarts": restarts, "restartStrategy": "BlockingRecreate"}
        if len(success) < len(roles):
            spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": success}
        return spec, {}
