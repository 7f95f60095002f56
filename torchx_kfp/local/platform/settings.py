"""Kubernetes settings other than secrets and volumes, and their effect on this machine.

Field paths become environment variables with this run's values. Time limits are applied; in containers, so are users,
image pull policies and shared memory. A run lists the settings that are not applied. Unknown settings are rejected.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.contract.protocol import OF_LAUNCHERS, RUN_ID_LABEL
from torchx_kfp.contract.specification import ReplicaRole
from torchx_kfp.local.platform.secrets import VARIABLES
from torchx_kfp.local.platform.volumes import VOLUMES
from torchx_kfp.pipeline.spec import Component, Pipeline
from torchx_kfp.pipeline.volume_tasks import volume_task

_POD_METADATA = "podMetadata"
#: Prefixes of the labels that TorchX's Kubernetes scheduler and this project use to describe a pod.
_OWN_LABELS = ("app.kubernetes.io/", "torchx.pytorch.org/")
_NOT_APPLIED = {
    "enabledSharedMemory": "shared memory sizes",
    "imagePullPolicy": "image pull policies",
    "imagePullSecret": "image pull secrets",
    "nodeAffinity": "node affinities",
    "nodeSelector": "node selectors",
    "podAffinity": "pod affinities",
    _POD_METADATA: "pod labels and annotations",
    "securityContext": "security contexts",
    "tolerations": "tolerations",
}
_PIPELINE_NOT_APPLIED = {
    "mutexName": "the pipeline's mutex",
    "resourceTtl": "the time for which a finished run is kept",
    "resourceTtlOnCompletion": "the time for which a finished run is kept",
    "resourceTtlOnFailure": "the time for which a finished run is kept",
    "resourceTtlOnSuccess": "the time for which a finished run is kept",
    "semaphoreKey": "the pipeline's semaphore",
}
# Settings that are applied.
_WORKSPACE = "workspace"
_TIME_LIMIT = "activeDeadlineSeconds"
_FIELDS = "fieldPathAsEnv"
#: Settings that are applied in containers only.
_OF_CONTAINERS = ("enabledSharedMemory", "imagePullPolicy", "securityContext")
#: Settings in the spec of a replica's pod.
_OF_REPLICAS = {
    "affinity": "affinities",
    "nodeSelector": "node selectors",
    "priorityClassName": "priority classes",
    "tolerations": "tolerations",
}
#: All settings of components and of pipelines that this version knows; others are rejected.
KNOWN = {_FIELDS, _TIME_LIMIT, *_NOT_APPLIED, *VOLUMES, *VARIABLES}
KNOWN_OF_PIPELINES = {_WORKSPACE, _TIME_LIMIT, *_PIPELINE_NOT_APPLIED}


def time_limit(platform: Mapping[str, Any]) -> float | None:
    """Return the seconds that a pod (``kubernetes.set_timeout``) or a run may take; None if there is no limit."""
    # An int64 is text in protobuf's JSON; 0 means no limit.
    return float(platform.get(_TIME_LIMIT) or 0) or None


def has_workspace(pipeline: Pipeline) -> bool:
    """Tell whether the pipeline has a folder that its stages share."""
    return _WORKSPACE in pipeline.platform


def pod_user(platform: Mapping[str, Any]) -> str | None:
    """Return the user, and group, that the container must run as; None for the image's user."""
    context = platform.get("securityContext") or {}
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is None:
        return None
    return str(user) if group is None else f"{user}:{group}"


def field_values(component: Component, run_id: str, pod_name: str, pod_uid: str) -> dict[str, str]:
    """Return the environment variables that the stage gets from fields of its pod."""
    values = _fields(run_id, pod_name, pod_uid)
    items = component.platform.get(_FIELDS) or ()
    return {item["name"]: values[item["fieldPath"]] for item in items if item["fieldPath"] in values}


def _fields(run_id: str = "", pod_name: str = "", pod_uid: str = "") -> dict[str, str]:
    return {
        RUN_ID_LABEL: run_id,
        "metadata.name": pod_name,
        "metadata.uid": pod_uid,
        "spec.nodeName": socket.gethostname(),
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }


def not_applied(component: Component) -> list[str]:
    """Return the kinds of settings of a component that have no effect on a process."""
    kinds = [text for key, text in _NOT_APPLIED.items() if _is_set(component, key)]
    if component.container is not None and component.container.resources:
        kinds.append("cpu, memory and accelerator limits")
    return kinds + _of_all(component)


def not_applied_in_container(component: Component, *, has_gpus: bool = False) -> list[str]:
    """Return the kinds of settings of a component that have no effect on a container.

    ``has_gpus`` tells whether containers can be given GPUs.
    """
    settings = {key: text for key, text in _NOT_APPLIED.items() if key not in _OF_CONTAINERS}
    kinds = [text for key, text in settings.items() if _is_set(component, key)]
    resources = component.container.resources if component.container is not None else {}
    if resources.get("accelerator") and not has_gpus:
        kinds.append("accelerator limits")
    return kinds + _of_all(component)


def pipeline_not_applied(platform: Mapping[str, Any]) -> list[str]:
    """Return the kinds of settings of the pipeline itself that have no effect on this machine."""
    return [text for key, text in _PIPELINE_NOT_APPLIED.items() if platform.get(key)]


def refusals(component: Component) -> Iterator[str]:
    """Describe settings of the component that this version does not know."""
    for key in component.platform:
        if key not in KNOWN:
            yield f"has the Kubernetes setting {key!r}, which this version does not know. Run it on KFP"


def pipeline_refusals(platform: Mapping[str, Any]) -> Iterator[str]:
    """Describe settings of the pipeline itself that this version does not know."""
    for key in platform:
        if key not in KNOWN_OF_PIPELINES:
            yield f"has the setting {key!r}, which this version does not know. Run the pipeline on KFP"


def _is_set(component: Component, key: str) -> bool:
    """Tell whether the pipeline's author has set it: every stage of an AppDef has labels that do not count."""
    setting = component.platform.get(key)
    if key != _POD_METADATA or not setting:
        return bool(setting)
    labels = setting.get("labels") or {}
    return bool(setting.get("annotations")) or any(not label.startswith(_OWN_LABELS) for label in labels)


def _of_replicas(role: ReplicaRole) -> list[str]:
    kinds = [text for key, text in _OF_REPLICAS.items() if role.pod.get(key)]
    if role.pod["containers"][0].get("resources"):
        kinds.append("cpu, memory and accelerator limits")
    if role.mounts:
        kinds.append(f"the mounts of replicas ({', '.join(role.mounts)})")
    fields = [(one["name"], one.get("valueFrom", {}).get("fieldRef")) for one in role.variables]
    return kinds + [f"the variable {name} (from the pod's {field['fieldPath']})" for name, field in fields if field]


def _of_all(component: Component) -> list[str]:
    fields = component.platform.get(_FIELDS) or ()
    kinds = [
        f"the variable {item['name']} (from the pod's {item['fieldPath']})"
        for item in fields
        if item["fieldPath"] not in _fields() and item["name"] not in OF_LAUNCHERS
    ]
    for role in component.facts.replica_roles:
        kinds += _of_replicas(role)
    if component.facts.specification is not None:
        kinds += [f"the engine's {option}" for option in component.facts.specification.engine_options]
    if component.container is not None and component.container.has_lifecycle:
        kinds.append("container life cycle hooks")
    if volume_task(component):
        kinds.append("creating and deleting volume claims")
    return kinds
