"""The common part of all engines: options, and helpers for their manifests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torchx_kfp.common.text import describe_unknown
from torchx_kfp.errors import AppDefError, ChannelError

if TYPE_CHECKING:  # `torchx_kfp.engines` is imported without TorchX
    from torchx import specs

#: A JSON object for the launcher's ``fill``.
Manifest = dict[str, Any]
Logs = Literal["all", "first", "none"]

_LOGS = ("all", "first", "none")
#: The lowest ``ttl``: an object that has vanished before the launcher has seen its success would be made again. The
#: launcher waits for the API server for 10 minutes.
SHORTEST_TTL = 900
#: The labels by which the launcher finds the pods of its object, and their roles.
STAGE_LABEL = "torchx-kfp/stage"
ROLE_LABEL = "torchx-kfp/role"


@dataclass(frozen=True)
class Engine(ABC):
    """The options that all engines have.

    Attributes:
        queue: the queue that admits the object: a LocalQueue of Kueue (``Job`` and ``JobSet``), or Volcano's queue.
        priority_class: the PriorityClass of the replicas.
        service_account: the service account of the replicas. The default is the one with which the stage runs.
        launcher_image: the image of the launcher. It needs python3 (3.8 or newer); with results or artifacts, also
            fsspec. The default is the first role's image.
        logs: the replicas whose output the stage's log has: ``"all"``, the ``"first"``, or ``"none"``.
        ttl: the seconds for which the object is kept after it has succeeded, at least 900. A failed one is deleted when
            its logs have been read.
    """

    NAME: ClassVar[str]
    #: The requirements of the cluster, for messages.
    NEEDS: ClassVar[str]
    #: The API version, kind and resource of the object that the launcher creates.
    OBJECT: ClassVar[tuple[str, str, str]]
    #: The API groups and resources of what the object owns.
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = ()
    #: Where the object tells its state, and the final ones: success and failures.
    STATE: ClassVar[tuple[Sequence[str], str, Sequence[str]]]
    #: The annotation of pods with the index of a replica.
    INDEX: ClassVar[str]
    #: The host of replica 0 of the first role, as a format.
    HOST: ClassVar[str]
    #: The label of the object that names its queue; None if its spec does.
    QUEUE: ClassVar[str | None] = "kueue.x-k8s.io/queue-name"
    #: Whether KFP's stock service account has the rights that the launcher needs.
    STOCK_RIGHTS: ClassVar[bool] = False
    #: How the engine treats fields, by the classes of TorchX that have them, where that differs from engine to engine.
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    queue: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    launcher_image: str | None = None
    logs: Logs = "all"
    ttl: int = 24 * 60 * 60

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            # Text of kfp: this module is imported without it.
            if "{{channel:" in f"{value}":
                raise ChannelError(
                    f"{option.name} of {type(self).__name__} is or contains a pipeline channel. It must be known "
                    "when the pipeline is compiled: give a constant."
                )
        if self.logs not in _LOGS:
            raise self._error(f"logs={self.logs!r}. Give {', '.join(map(repr, _LOGS))}")
        if self.ttl < SHORTEST_TTL:
            raise self._error(f"ttl={self.ttl!r}. Give seconds, {SHORTEST_TTL} or more")

    def workload(self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest]) -> dict[str, Any]:
        """Return the part of the launcher's ``LauncherSpec`` that is the engine's: the object, and how to follow it.

        Args:
            roles: the roles by their names in Kubernetes: DNS labels, with which replicas are called in logs.
            pods: the template of each role's pods.

        Raises:
            AppDefError: the engine cannot run these roles.
        """
        success, restarts = self._success(roles), restarts_together(self, roles)
        spec, more = self._spec(roles, pods, success, restarts)
        (version, kind, resource), (path, succeeded, failed) = self.OBJECT, self.STATE
        own = metadata({self.QUEUE: self.queue} if self.QUEUE else {})
        return {
            "api": f"apis/{version}",
            "plural": resource,
            "object": {"apiVersion": version, "kind": kind, "metadata": own, "spec": spec},
            "state": path,
            "succeeded": [succeeded],
            "failed": failed,
            "index": self.INDEX,
            "host": self.HOST % {"name": "%(name)s", "role": next(iter(roles))},
            "restarts": restarts,
            "success": success,
            **more,
        }

    @abstractmethod
    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str], restarts: int
    ) -> tuple[Manifest, Mapping[str, Any]]:
        """Return the spec of the object, and what else differs in the ``LauncherSpec``.

        ``success`` are the names of the roles whose success is the stage's, ``restarts`` is how often all replicas
        start again.
        """

    def _success(self, roles: Mapping[str, specs.Role]) -> list[str]:
        known = {role.name: name for name, role in roles.items()}
        names = getattr(self, "succeeds_with", ())
        given = dict.fromkeys([names] if isinstance(names, str) else names)
        for name in given:
            if name not in known:
                owner = f"{type(self).__name__} has succeeds_with={names!r}, but the AppDef"
                raise AppDefError(describe_unknown(owner, "role", name, known))
        return [known[name] for name in given or known]

    def _error(self, what: str) -> AppDefError:
        return AppDefError(f"{type(self).__name__} has {what}.")


def marker(name: str) -> Manifest:
    """Return an object that the launcher replaces with a value: see ``fill`` in ``carried.replica_roles``."""
    return {"@": name}


def restarts_alone(role: specs.Role) -> int:
    """Return how often the engine starts single failed replicas of the role again."""
    return int(role.max_retries) if role.retry_policy == "REPLICA" else 0


def restarts_together(engine: Engine, roles: Mapping[str, specs.Role]) -> int:
    """Return how often the engine starts all replicas of all roles again."""
    counts = {role.name: int(role.max_retries) - restarts_alone(role) for role in roles.values()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r}: {count}" for name, count in counts.items())
        raise AppDefError(
            f"The roles differ in how often all of them start again ({told}), "
            f"but {type(engine).__name__} counts that once. Give all roles the same max_retries and retry_policy."
        )
    return next(iter(counts.values()))


def metadata(labels: Mapping[str, str | None]) -> Manifest:
    """Return the metadata of the engine's object, with those labels that have a value."""
    own = {"app.kubernetes.io/managed-by": "torchx-kfp", STAGE_LABEL: marker("name")}
    given = {key: value for key, value in labels.items() if value}
    return {"name": marker("name"), "labels": {**own, **given}, "annotations": {}}
