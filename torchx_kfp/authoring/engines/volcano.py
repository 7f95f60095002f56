"""Volcano: https://volcano.sh. It schedules the replicas of a stage together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torchx_kfp.authoring.engines.engine import (
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

#: The annotation with a pod's index among those of its task.
INDEX = "volcano.sh/task-index"
#: The events of a replica that the others should not wait for. Volcano calls a deleted pod evicted.
_LOST = ("PodEvicted", "PodFailed")


@dataclass(frozen=True)
class Volcano(Engine):
    """A Job of Volcano, with one task for each role. ``queue`` is a queue of Volcano.

    Attributes:
        min_available: the number of replicas with which the stage may start. The default is that of all roles
            (``min_replicas`` where a role has it, else all).
        succeeds_with: the role whose success is the stage's: the others, such as a parameter server that never ends,
            are ended then. The default is all.

    With ``RetryPolicy.APPLICATION``, a failed replica makes Volcano start all of them again, up to ``max_retries``
    times. ``RetryPolicy.REPLICA`` is rejected, because Volcano does not count restarts of single replicas.
    """

    NAME: ClassVar[str] = "volcano"
    NEEDS: ClassVar[str] = "Volcano"
    RESOURCE: ClassVar[tuple[str, str]] = ("batch.volcano.sh", "jobs")

    min_available: int | None = None
    succeeds_with: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.min_available
        if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
            raise self._error(f"min_available={least!r}. Give a number of replicas, 1 or more")

    def workload(self, roles: Sequence[Role]) -> Workload:
        success = check_success(self, self.succeeds_with, roles)
        if len(success) > 1:
            raise AppDefError(
                f"Volcano has succeeds_with={list(self.succeeds_with)!r}, but a Job of Volcano ends with one of its "
                "tasks. Name one role, or use engine=JobSet(...)."
            )
        for role in roles:
            if role.restarts and not role.restarts_all:
                raise AppDefError(
                    f"role {role.given!r} has max_retries={role.restarts} with RetryPolicy.REPLICA, but Volcano does "
                    "not count restarts of single replicas. Use RetryPolicy.APPLICATION, or engine='jobset'."
                )
        most = sum(role.replicas for role in roles)
        if self.min_available is not None and self.min_available > most:
            raise self._error(f"min_available={self.min_available}, but the AppDef has {most} replicas")
        restarts = shared_restarts(self, roles)
        tasks = []
        for position, role in enumerate(roles):
            # The priority class is the Job's: Volcano gives it to the pods.
            template = pod_template(self, role, position)
            task: Manifest = {
                "name": role.name,
                "replicas": marker(f"{position}.replicas"),
                "minAvailable": marker(f"{position}.fewest"),
                "template": template,
            }
            if role.name in success:
                task["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
            tasks.append(task)
        spec: Manifest = {
            "schedulerName": "volcano",
            "minAvailable": marker("fewest"),
            # A job fails when its count of restarts reaches this number (volcano-sh/volcano, job/state/restarting.go).
            "maxRetry": restarts + 1,
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            "policies": [{"event": event, "action": "RestartJob" if restarts else "AbortJob"} for event in _LOST],
            "tasks": tasks,
            "ttlSecondsAfterFinished": self.ttl,
        }
        if self.queue:
            spec["queue"] = self.queue
        if self.priority_class:
            spec["priorityClassName"] = self.priority_class
        return Workload(
            api="apis/batch.volcano.sh/v1alpha1",
            plural="jobs",
            manifest={
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": metadata(self),
                "spec": spec,
            },
            state=("status", "state", "phase"),
            succeeded=("Completed",),
            failed=("Failed", "Aborted", "Terminated"),
            index=INDEX,
            host=f"%(name)s-{roles[0].name}-0.%(name)s",
            restarts=restarts,
            success=success,
            available=self.min_available,
        )
