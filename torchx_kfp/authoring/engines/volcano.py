"""Volcano: https://volcano.sh. It schedules the replicas of a stage together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torchx_kfp.authoring.engines.engine import (
    Engine,
    Manifest,
    marker,
    restarts_alone,
)
from torchx_kfp.errors import AppDefError

if TYPE_CHECKING:
    from torchx import specs

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
    OBJECT: ClassVar[tuple[str, str, str]] = ("batch.volcano.sh/v1alpha1", "Job", "jobs")
    STATE: ClassVar[tuple[Sequence[str], str, Sequence[str]]] = (
        ["status", "state", "phase"],
        "Completed",
        ["Failed", "Aborted", "Terminated"],
    )
    INDEX: ClassVar[str] = "volcano.sh/task-index"
    HOST: ClassVar[str] = "%(name)s-%(role)s-0.%(name)s"
    QUEUE: ClassVar[str | None] = None
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "Role": {
            "min_replicas": "mapped: minAvailable",
            "max_retries": "mapped: maxRetry",
            "retry_policy": "rejected if it is REPLICA and there are retries: Volcano does not count those of single "
            "replicas. Every other policy starts all replicas again",
        },
    }

    min_available: int | None = None
    succeeds_with: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.min_available
        if least is not None and least < 1:
            raise self._error(f"min_available={least!r}. Give a number of replicas, 1 or more")

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str], restarts: int
    ) -> tuple[Manifest, Mapping[str, Any]]:
        ends_with = success if len(success) < len(roles) else []
        if len(ends_with) > 1:
            raise AppDefError(
                f"Volcano has succeeds_with={list(self.succeeds_with)!r}, but a Job of Volcano ends with one of its "
                "tasks. Name one role, or use engine=JobSet(...)."
            )
        for role in roles.values():
            if restarts_alone(role):
                raise AppDefError(
                    f"role {role.name!r} has max_retries={role.max_retries} with RetryPolicy.REPLICA, but Volcano does "
                    "not count restarts of single replicas. Use RetryPolicy.APPLICATION, or engine='jobset'."
                )
        most = sum(role.num_replicas for role in roles.values())
        if self.min_available is not None and self.min_available > most:
            raise self._error(f"min_available={self.min_available}, but the AppDef has {most} replicas")
        # The priority class is the Job's: Volcano gives it to the pods.
        tasks: list[Manifest] = [
            {
                "name": name,
                "replicas": marker(f"{position}.replicas"),
                "minAvailable": marker(f"{position}.fewest"),
                "template": pod,
                **({"policies": [{"event": "TaskCompleted", "action": "CompleteJob"}]} if name in ends_with else {}),
            }
            for position, (name, pod) in enumerate(zip(roles, pods, strict=True))
        ]
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
        return spec, {"available": self.min_available}
