"""Kubernetes settings other than secrets, and their effect in local runs.

Field paths become environment variables with this run's values. Time limits are applied; in containers, so are users,
image pull policies and shared memory. A run lists the settings that are not applied. Unknown settings are rejected.

A process finds a volume if a folder with its mount path exists. A container gets new folders for empty directories and
temporary volumes; other volumes need a mount from the user. Volume claims are neither created nor deleted.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torchx_kfp.contract.protocol import OF_LAUNCHERS, RUN_ID_LABEL
from torchx_kfp.contract.specification import RoleSpec
from torchx_kfp.execution.local.given_keys import GivenKeys, given_files
from torchx_kfp.execution.local.gpus import Gpus, accelerators
from torchx_kfp.execution.pipeline.placeholders import is_gpu, parse_quantity
from torchx_kfp.execution.pipeline.pod_settings import (
    FIELDS,
    FILES,
    METADATA,
    POD_SETTINGS,
    SHARED_MEMORY,
    TIME_LIMIT,
    entries,
    name_of,
)
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.walk import safe_name

_SHM = "/dev/shm"
_VOLUMES = tuple(key for key, setting in POD_SETTINGS.items() if setting.volume)
#: Volumes for which containers get a new folder.
_TEMPORARY = tuple(key for key, setting in POD_SETTINGS.items() if setting.is_temporary)


def volume_outputs(component: Component, inputs: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Return the only output of a task that would create a volume claim: the claim's name."""
    suffix = inputs.get("pvc_name_suffix") or ""
    name = inputs.get("pvc_name") or f"{run_id}{suffix}"
    return dict.fromkeys(component.parameter_outputs, name)


def temporary_folders(platform: Mapping[str, Any]) -> dict[str, str]:
    """Return the mount paths of initially empty volumes, by volume name."""
    volumes = [volume for _, volume in entries(platform, _TEMPORARY) if not _is_memory(volume)]
    return {
        safe_name(volume.get("volumeName") or str(index)): os.path.normpath(volume["mountPath"])
        for index, volume in enumerate(volumes)
    }


def memory_folders(platform: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the sizes in bytes of empty directories in memory, by their mount paths; None for no limit."""
    return {
        path: math.ceil(parse_quantity(volume["sizeLimit"])) if volume.get("sizeLimit") else None
        for volume in platform.get("emptyDirMounts") or ()
        if _is_memory(volume) and (path := os.path.normpath(volume["mountPath"])) != _SHM
    }


def shared_memory(platform: Mapping[str, Any]) -> int | None:
    """Return the size of ``/dev/shm`` in bytes; None if the pipeline does not set it."""
    volumes = platform.get("emptyDirMounts") or ()
    sizes = [volume.get("sizeLimit") for volume in volumes if os.path.normpath(volume["mountPath"]) == _SHM]
    if shared := platform.get(SHARED_MEMORY):
        sizes.append(shared.get("size"))
    if not sizes:
        return None
    # Kubernetes rejects a pod with two volumes at one path, so there is only one size here. Without a size, it uses
    # half of the node's memory.
    size = sizes[-1]
    return math.ceil(parse_quantity(size)) if size else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def missing_volumes(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], mounted: Collection[str]
) -> Iterator[str]:
    """Describe the volumes that a stage lacks.

    A process finds a directory at a mount path, a container what the user mounts there: ``mounted`` has the paths.
    """
    files = given_files(component, given, inputs)
    for key, mount in entries(component.platform, _VOLUMES):
        path, name, volume = mount.get("mountPath", ""), name_of(mount, inputs), POD_SETTINGS[key].volume
        volume = f"{volume} {name!r}" if name else volume
        if mount.get("optional"):
            continue
        if not given.in_containers:
            if not os.path.isdir(path):
                yield f"{volume} (make the directory {path}, or use --docker)"
        elif key not in _TEMPORARY and (path := os.path.normpath(path)) not in {*mounted, *files}:
            give = f", or give {POD_SETTINGS[key].option} {name or 'NAME'}=FILE" if key in FILES else ""
            yield f"{volume} (give --mount FOLDER:{path}{give})"


def _is_memory(volume: Mapping[str, Any]) -> bool:
    return volume.get("medium") == "Memory"


_PIPELINE_NOT_APPLIED = {
    "mutexName": "the pipeline's mutex",
    "resourceTtl": "the time for which a finished run is kept",
    "resourceTtlOnCompletion": "the time for which a finished run is kept",
    "resourceTtlOnFailure": "the time for which a finished run is kept",
    "resourceTtlOnSuccess": "the time for which a finished run is kept",
    "semaphoreKey": "the pipeline's semaphore",
}
_WORKSPACE = "workspace"
#: Settings in the spec of a replica's pod.
_OF_REPLICAS = {
    "affinity": "affinities",
    "nodeSelector": "node selectors",
    "priorityClassName": "priority classes",
    "tolerations": "tolerations",
}
#: All settings of pipelines that this version knows; others are not applied.
KNOWN_OF_PIPELINES = {_WORKSPACE, TIME_LIMIT, *_PIPELINE_NOT_APPLIED}


def time_limit(platform: Mapping[str, Any]) -> float | None:
    """Return the seconds that a pod (``kubernetes.set_timeout``) or a run may take; None if there is no limit."""
    # An int64 is text in protobuf's JSON; 0 means no limit.
    return float(platform.get(TIME_LIMIT) or 0) or None


def has_workspace(pipeline: Pipeline) -> bool:
    """Return whether the pipeline's stages share a folder."""
    return _WORKSPACE in pipeline.platform


def pod_user(platform: Mapping[str, Any]) -> str | None:
    """Return the user and group of the container; None for the image's user."""
    context = platform.get("securityContext") or {}
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is None:
        return None
    return str(user) if group is None else f"{user}:{group}"


def field_values(component: Component, run_id: str, pod_name: str, pod_uid: str) -> dict[str, str]:
    """Return the environment variables that the stage gets from fields of its pod."""
    values = {**_metadata(component), **_fields(run_id, pod_name, pod_uid)}
    # Kubernetes has the empty string for a label or annotation that the pod lacks.
    return {
        item["name"]: values.get(path, "")
        for item in component.platform.get(FIELDS) or ()
        if (path := item["fieldPath"]) in values or (_IN_METADATA.match(path) and item["name"] not in OF_LAUNCHERS)
    }


#: The paths of labels and annotations.
_IN_METADATA = re.compile(r"metadata\.(?:labels|annotations)\[")


def _metadata(component: Component) -> dict[str, str]:
    """Return the labels and annotations that the pipeline sets, by their paths."""
    metadata = component.platform.get(METADATA) or {}
    return {
        f"metadata.{kind}['{key}']": str(value)
        for kind in ("labels", "annotations")
        for key, value in (metadata.get(kind) or {}).items()
    }


def _fields(run_id: str = "", pod_name: str = "", pod_uid: str = "") -> dict[str, str]:
    return {
        RUN_ID_LABEL: run_id,
        "metadata.name": pod_name,
        "metadata.uid": pod_uid,
        "spec.nodeName": socket.gethostname(),
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }


def not_applied(component: Component, gpus: Gpus, *, in_container: bool = False) -> list[str]:
    """Return the kinds of settings of a component that have no effect on a process, or on a container."""
    kinds = [
        setting.words
        for key, setting in POD_SETTINGS.items()
        if not (setting.container if in_container else setting.process) and component.platform.get(key)
    ]
    kinds += map(_unknown, component.platform.keys() - POD_SETTINGS.keys())
    resources = component.container.resources if component.container is not None else {}
    if resources.keys() - {"accelerator"} and not in_container:
        kinds.append("cpu and memory limits")
    for kind in accelerators(component):
        if not is_gpu(kind):
            kinds.append(f"limits of {kind}")
        elif not gpus.known:
            kinds.append(f"limits of GPUs ({gpus.lacks})")
    kinds += [
        f"the variable {item['name']} (from the pod's {item['fieldPath']})"
        for item in component.platform.get(FIELDS) or ()
        if item["fieldPath"] not in _fields()
        and not _IN_METADATA.match(item["fieldPath"])
        and item["name"] not in OF_LAUNCHERS
    ]
    for role in component.decoded.replica_roles:
        kinds += _of_replicas(role)
    if component.decoded.specification is not None:
        kinds += [f"the engine's {option}" for option in component.decoded.specification.engine_options]
    if is_volume_task(component):
        kinds.append("creating and deleting volume claims")
    return kinds


def pipeline_not_applied(platform: Mapping[str, Any]) -> list[str]:
    """Return the kinds of settings of the pipeline itself that have no effect in local runs."""
    known = [text for key, text in _PIPELINE_NOT_APPLIED.items() if platform.get(key)]
    return [*known, *map(_unknown, platform.keys() - KNOWN_OF_PIPELINES)]


def _unknown(key: str) -> str:
    return f"{key} (this version does not know the setting)"


def _of_replicas(role: RoleSpec[str]) -> list[str]:
    kinds = [text for key, text in _OF_REPLICAS.items() if role.pod["spec"].get(key)]
    limits = role.container.get("resources") or {}
    if any({"cpu", "memory"} & limit.keys() for limit in limits.values()):
        kinds.append("cpu and memory limits")
    if role.mounts:
        kinds.append(f"the mounts of replicas ({', '.join(role.mounts)})")
    fields = [(one["name"], one.get("valueFrom", {}).get("fieldRef")) for one in role.variables]
    return kinds + [f"the variable {name} (from the pod's {field['fieldPath']})" for name, field in fields if field]
