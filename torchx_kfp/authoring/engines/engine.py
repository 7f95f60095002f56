"""The common part of all engines: options, the roles that they run, their pods, and the data for the launcher."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from torchx_kfp.common.text import did_you_mean
from torchx_kfp.errors import AppDefError, ChannelError

#: A JSON object for the launcher's ``fill``.
Manifest = dict[str, Any]
Logs = Literal["all", "first", "none"]

_LOGS = ("all", "first", "none")
#: The lowest ``ttl``: an object that has vanished before the launcher has seen its success would be made again. The
#: launcher waits for the API server for 10 minutes.
SHORTEST_TTL = 900
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
#: Kubernetes' rules for names of labels and annotations, and for values of labels.
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_NAME_RULE = "small letters, digits, '-' and '.', with a letter or digit at both ends"
_QUANTITY = re.compile(r"[1-9][0-9]*([kMGT]|[KMGT]i)?", re.ASCII)
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)


@dataclass(frozen=True)
class PodMount:
    """A volume of a role's pods: its source as Kubernetes writes it, and where it is mounted."""

    source: Mapping[str, Any]
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Role:
    """One role of a distributed stage, as pods.

    ``name`` is a DNS label that differs from those of other roles; in logs, a replica is ``<name>/<index>``. ``given``
    is the role's name in the AppDef.
    ``replicas`` is the most that the stage may have, ``fewest`` the number with which it may start, and ``image`` the
    image or a marker. ``env`` has the entries of the container that are known when the pipeline is compiled: values
    from secrets and from fields of the pod. ``restarts`` is how often the engine starts failed replicas again: all of
    them if ``restarts_all``, otherwise only the one that failed. ``overlay`` is applied to the finished pod.
    """

    name: str
    given: str
    replicas: int
    image: str | Manifest
    fewest: int | None = None
    env: Sequence[Mapping[str, Any]] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[PodMount] = ()
    privileged: bool = False
    ports: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    restarts_all: bool = True
    overlay: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """The objects of a stage, and what the launcher must know to follow them.

    ``api`` and ``plural`` name the collection of ``manifest``, ``companions`` are objects that it owns, as (api,
    plural, manifest). ``state`` is the path of the field that tells the state: text, or a list of conditions;
    ``succeeded`` and ``failed`` are its final values. ``index`` is the pods' annotation with the index of a replica,
    and ``host`` the name of replica 0 of the first role, as a format for ``%``. ``retries`` is how often the launcher
    makes the object again, because the engine does not start replicas again, and ``restarts`` how often the engine
    starts all of them again. ``success`` names the roles whose success is the stage's; none if it is that of all.
    ``available`` is the number of replicas with which the stage may start, if it is not that of the roles.
    """

    api: str
    plural: str
    manifest: Manifest
    state: Sequence[str]
    succeeded: Sequence[str]
    failed: Sequence[str]
    index: str
    host: str
    retries: int = 0
    restarts: int = 0
    companions: Sequence[tuple[str, str, Manifest]] = ()
    success: Sequence[str] = ()
    available: int | None = None


@dataclass(frozen=True)
class Engine:
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
        shared_memory: the largest size of ``/dev/shm`` in each replica, such as ``"8Gi"``. The default is as much as
            the replica's memory.
        labels: further labels of the object and its pods.
        annotations: further annotations of the object and its pods.
    """

    NAME: ClassVar[str]
    #: The requirements of the cluster, for messages.
    NEEDS: ClassVar[str]
    #: The API group and the resource that the launcher creates, for the Role of its service account.
    RESOURCE: ClassVar[tuple[str, str]]
    #: The same for what the object owns.
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = ()
    #: Whether KFP's stock service account has the rights that the launcher needs.
    STOCK_RIGHTS: ClassVar[bool] = False
    #: Whether the engine runs several roles.
    HAS_ROLES: ClassVar[bool] = True

    queue: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    launcher_image: str | None = None
    logs: Logs = "all"
    ttl: int = 24 * 60 * 60
    shared_memory: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            # Text of kfp: this module is imported without it.
            if "{{channel:" in f"{value}":
                raise ChannelError(
                    f"{option.name} of {type(self).__name__} is or contains a pipeline channel. It must be known "
                    "when the pipeline is compiled: give a constant."
                )
        for name in ("queue", "priority_class", "service_account"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and _DNS_NAME.fullmatch(value)):
                raise self._error(f"{name}={value!r}, which is not the name of a Kubernetes object: {_NAME_RULE}")
        if self.queue is not None and not _VALUE.fullmatch(self.queue):
            raise self._error(f"queue={self.queue!r}, but the name of a queue has at most 63 characters")
        if self.shared_memory is not None and not (
            isinstance(self.shared_memory, str) and _QUANTITY.fullmatch(self.shared_memory)
        ):
            raise self._error(f"shared_memory={self.shared_memory!r}. Give a size such as '8Gi'")
        if self.launcher_image is not None and not (isinstance(self.launcher_image, str) and self.launcher_image):
            raise self._error(f"launcher_image={self.launcher_image!r}. Give the name of an image with python3")
        if self.logs not in _LOGS:
            raise self._error(f"logs={self.logs!r}. Give {', '.join(map(repr, _LOGS))}")
        if isinstance(self.ttl, bool) or not isinstance(self.ttl, int) or self.ttl < SHORTEST_TTL:
            raise self._error(f"ttl={self.ttl!r}. Give seconds, {SHORTEST_TTL} or more")
        for name in ("labels", "annotations"):
            self._check_metadata(name)

    def workload(self, roles: Sequence[Role]) -> Workload:
        """Return the objects that run the roles.

        Raises:
            AppDefError: the engine cannot run these roles.
        """
        raise NotImplementedError

    def _check_metadata(self, name: str) -> None:
        pairs = getattr(self, name)
        if not isinstance(pairs, Mapping):
            raise self._error(f"{name}={pairs!r}. Give a dict of text")
        for key, value in pairs.items():
            if not isinstance(value, str):
                raise self._error(f"{key!r}: {value!r} in {name}. Give text, such as {str(value)!r}")
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise self._error(f"{key!r}: {value!r} in {name}, which Kubernetes does not accept there")
            if name == "labels" and not _VALUE.fullmatch(value):
                raise self._error(
                    f"{key!r}: {value!r} in labels. A label's value has at most 63 letters, digits, '-', '_' and '.'"
                )

    def _error(self, what: str) -> AppDefError:
        return AppDefError(f"{type(self).__name__} has {what}.")


def marker(name: str) -> Manifest:
    """Return an object that the launcher replaces with a value: see ``fill`` in ``carried.replica_roles``."""
    return {"@": name}


def check_success(engine: Engine, names: Sequence[str], roles: Sequence[Role]) -> list[str]:
    """Return the Kubernetes names of the roles whose success is the stage's; none if it is that of all."""
    known = {role.given: role.name for role in roles}
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise AppDefError(
            f"{type(engine).__name__} has succeeds_with={names!r}. Give the names of roles, such as ['trainer']."
        )
    given = list(dict.fromkeys(given))
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise AppDefError(
                f"{type(engine).__name__} has succeeds_with={names!r}, but there is no role {name!r}.{hint} The "
                f"AppDef's roles: {', '.join(map(repr, known))}."
            )
    return [known[name] for name in given] if len(given) < len(known) else []


def shared_restarts(engine: Engine, roles: Sequence[Role]) -> int:
    """Return how often the engine starts all roles again."""
    counts = {role.given: role.restarts if role.restarts_all else 0 for role in roles}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r}: {count}" for name, count in counts.items())
        raise AppDefError(
            f"The roles differ in how often all of them start again ({told}), "
            f"but {type(engine).__name__} counts that once. Give all roles the same max_retries and retry_policy."
        )
    return next(iter(counts.values()))


#: The labels by which the launcher finds the pods of its object, and their roles.
STAGE_LABEL = "torchx-kfp/stage"
ROLE_LABEL = "torchx-kfp/role"


def metadata(engine: Engine) -> Manifest:
    """Return the metadata of the engine's object."""
    return {
        "name": marker("name"),
        "labels": {**engine.labels, "app.kubernetes.io/managed-by": "torchx-kfp", STAGE_LABEL: marker("name")},
        "annotations": dict(engine.annotations),
    }


def pod_template(engine: Engine, role: Role, position: int) -> Manifest:
    """Return the template of a role's pods.

    Like TorchX's Kubernetes scheduler, it gives the pod a ``/dev/shm`` of the size of its memory, which the workers of
    PyTorch's data loaders need, and keeps Istio's sidecar away, which would not end with the application.

    Args:
        engine: the engine, for its options.
        role: the role.
        position: the role's position in the AppDef, by which the launcher's markers name it.
    """
    shared_memory = {"medium": "Memory"}
    if engine.shared_memory:
        shared_memory["sizeLimit"] = engine.shared_memory
    container: Manifest = {
        "name": role.name,
        "image": role.image,
        "command": [marker(f"{position}.command")],
        "env": [marker(f"{position}.env"), *map(dict, role.env)],
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
    }
    if role.limits:
        container["resources"] = {"requests": dict(role.limits), "limits": dict(role.limits)}
    if role.ports:
        container["ports"] = [{"name": name, "containerPort": port} for name, port in role.ports.items()]
    if role.privileged:
        container["securityContext"] = {"privileged": True}
    spec: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": engine.service_account or marker("service_account"),
        "containers": [container],
        "volumes": [{"name": "dshm", "emptyDir": shared_memory}],
    }
    for number, mount in enumerate(role.mounts):
        name = f"mount-{number}"
        spec["volumes"].append({"name": name, **mount.source})
        place = {"name": name, "mountPath": mount.path}
        container["volumeMounts"].append({**place, "readOnly": True} if mount.read_only else place)
    if role.node_selector:
        spec["nodeSelector"] = dict(role.node_selector)
    if engine.priority_class:
        spec["priorityClassName"] = engine.priority_class
    pod: Manifest = {
        "metadata": {
            "labels": {**role.labels, **engine.labels, STAGE_LABEL: marker("name"), ROLE_LABEL: role.name},
            "annotations": {"sidecar.istio.io/inject": "false", **engine.annotations},
        },
        "spec": spec,
    }
    return _overlaid(pod, role.overlay)


def _overlaid(base: Manifest, overlay: Mapping[str, Any]) -> Manifest:
    """Return the pod with TorchX's overlay.

    TorchX's nightly has operators for overlays; without them, dicts are merged, lists appended, tuples and other values
    replaced, as its documentation says.
    """
    if not overlay:
        return base
    try:
        from torchx.specs.overlays import apply_overlay
    except ImportError:
        return _merged(base, overlay)
    changed = copy.deepcopy(base)
    apply_overlay(changed, copy.deepcopy(dict(overlay)))
    return changed


def _merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Manifest:
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merged(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and isinstance(old, list):
            merged[key] = [*old, *value]
        else:
            merged[key] = list(value) if isinstance(value, tuple) else value
    return merged
