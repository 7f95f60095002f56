"""What a pipeline asks of Kubernetes, and what becomes of it on this machine.

Three kinds:

- field paths become environment variables with this run's values;
- secrets and config maps become variables where the user gives them (see ``secrets``), or has set the variables;
- everything else decides where and how a pod runs, or mounts what is not here. The run says once what is not applied,
  secrets that nobody gave and mount paths that do not exist among it.

In containers more of it has a meaning: limits, users, shared memory and empty directories are applied, and a volume
is what the user mounts at its path.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.platform.secrets import Given
from torchx_kfp.pipeline.names import plain
from torchx_kfp.pipeline.resources import parse_quantity
from torchx_kfp.pipeline.spec import Component, Pipeline
from torchx_kfp.text import did_you_mean, joined

RUN_ID_LABEL = "metadata.labels['pipeline/runid']"

_POD_METADATA = "podMetadata"
#: Of the labels by which TorchX's Kubernetes scheduler, and this project, say what a pod is.
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
# Known, and applied.
_WORKSPACE = "workspace"
_TIME_LIMIT = "activeDeadlineSeconds"
_VOLUMES = {
    "pvcMount": "the volume claim",
    "secretAsVolume": "the secret",
    "configMapAsVolume": "the config map",
    "emptyDirMounts": "an empty directory",
    "genericEphemeralVolume": "a temporary volume",
}
_FILES = ("secretAsVolume", "configMapAsVolume")
#: What containers get a new folder for.
_TEMPORARY = ("emptyDirMounts", "genericEphemeralVolume")
#: What is applied in containers alone.
_OF_CONTAINERS = ("enabledSharedMemory", "imagePullPolicy", "securityContext")
_SHM = "/dev/shm"
_VARIABLES = {"secretAsEnv": ("secret", "--secret"), "configMapAsEnv": ("config map", "--config-map")}
_KINDS = {"secret": "secret", "configMap": "config map"}
# kfp-kubernetes has tasks that are no containers, with images of these names.
_MAKES_VOLUME, _DELETES_VOLUME = "argostub/createpvc", "argostub/deletepvc"


@dataclass(frozen=True)
class GivenKeys:
    """The secrets and config maps that the user gives."""

    secrets: Given = field(default_factory=dict)
    config_maps: Given = field(default_factory=dict)

    def of(self, setting: str) -> Given:
        """Those that a setting of the platform spec takes its values from."""
        return self.secrets if setting.startswith("secret") else self.config_maps


def verify_given(
    components: Iterable[Component], given: GivenKeys, inputs: Mapping[str, Any], environ: Mapping[str, str]
) -> None:
    """Raises ArgumentError if nobody takes a secret or config map that is given, or if it lacks a key that is taken."""
    taken: dict[str, set[str]] = {"secret": set(), "configMap": set()}
    for component in components:
        for setting in (*_VARIABLES, *_FILES):
            kind = "secret" if setting.startswith("secret") else "configMap"
            for item in component.platform.get(setting) or ():
                name = _name(item, inputs)
                taken[kind].add(name)
                keys = given.of(setting).get(name)
                wanted = [
                    pair.get("secretKey") or pair.get("configMapKey")
                    for pair in item.get("keyToEnv") or ()
                    if pair["envVar"] not in environ
                ]
                missing = [key for key in wanted if keys is not None and key not in keys]
                if missing and not item.get("optional"):
                    raise ArgumentError(
                        f"The {_KINDS[kind]} {name!r} as it is given lacks {joined(missing)}; it has: "
                        f"{', '.join(sorted(keys or ())) or 'nothing'}."
                    )
    for kind, there in taken.items():
        for name in given.of(kind):
            # A name may be an input that is known while the pipeline runs.
            if name not in there and "" not in there:
                names = ", ".join(sorted(there)) or "none"
                raise ArgumentError(
                    f"No stage takes the {_KINDS[kind]} {name!r}.{did_you_mean(name, there)} Taken are: {names}."
                )


def given_values(component: Component, given: GivenKeys, inputs: Mapping[str, Any]) -> dict[str, str]:
    """The variables that the stage takes from secrets and config maps that the user gives.

    ``inputs`` are those of the scope: the name of a secret may be one of them.
    """
    values = {}
    for setting in _VARIABLES:
        for item in component.platform.get(setting) or ():
            keys = given.of(setting).get(_name(item, inputs), {})
            for pair in item.get("keyToEnv") or ():
                key = pair.get("secretKey") or pair.get("configMapKey")
                if key in keys:
                    values[pair["envVar"]] = keys[key]
    return values


def time_limit(platform: Mapping[str, Any]) -> float | None:
    """Seconds that a pod, or a run, may take; None: as long as it needs. ``kubernetes.set_timeout`` sets a pod's."""
    # int64 is text in protobuf's JSON; 0 is no limit.
    return float(platform.get(_TIME_LIMIT) or 0) or None


def volume_task(component: Component) -> str | None:
    """What a task does that is no container: ``makes`` or ``deletes`` a volume claim; None for all others."""
    image = component.container.image if component.container is not None else ""
    if image.startswith(_MAKES_VOLUME):
        return "makes"
    return "deletes" if image.startswith(_DELETES_VOLUME) else None


def volume_outputs(component: Component, inputs: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """The name of the claim that the task would have made: its only output. It is not made."""
    suffix = inputs.get("pvc_name_suffix") or ""
    name = inputs.get("pvc_name") or f"{run_id}{suffix}"
    return dict.fromkeys(component.outputs, name)


def field_values(component: Component, run_id: str, pod_name: str, pod_uid: str) -> dict[str, str]:
    """The environment variables that the stage takes from fields of its pod."""
    values = {
        RUN_ID_LABEL: run_id,
        "metadata.name": pod_name,
        "metadata.uid": pod_uid,
        "spec.nodeName": socket.gethostname(),
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }
    return {
        item["name"]: values[item["fieldPath"]]
        for item in component.platform.get("fieldPathAsEnv") or ()
        if item["fieldPath"] in values
    }


def variables(platform: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the stage takes from secrets and config maps, as they are in this environment."""
    items = [item for key in _VARIABLES for item in platform.get(key) or ()]
    names = [pair["envVar"] for item in items for pair in item.get("keyToEnv") or ()]
    return {name: environ[name] for name in names if name in environ}


def temporary_folders(platform: Mapping[str, Any]) -> dict[str, str]:
    """Volumes that are empty at first: where they are mounted, by their names."""
    volumes = [volume for key in _TEMPORARY for volume in platform.get(key) or () if not _is_memory(volume)]
    return {
        plain(volume.get("volumeName") or str(index)): os.path.normpath(volume["mountPath"])
        for index, volume in enumerate(volumes)
    }


def memory_folders(platform: Mapping[str, Any]) -> dict[str, int | None]:
    """Empty directories in memory: their sizes in bytes, by where they are mounted. None: no limit."""
    return {
        path: math.ceil(parse_quantity(volume["sizeLimit"])) if volume.get("sizeLimit") else None
        for volume in platform.get("emptyDirMounts") or ()
        if _is_memory(volume) and (path := os.path.normpath(volume["mountPath"])) != _SHM
    }


def shared_memory(platform: Mapping[str, Any]) -> int | None:
    """The size of ``/dev/shm`` in bytes; None where the pipeline does not care."""
    volumes = platform.get("emptyDirMounts") or ()
    sizes = [volume.get("sizeLimit") for volume in volumes if os.path.normpath(volume["mountPath"]) == _SHM]
    if shared := platform.get("enabledSharedMemory"):
        sizes.append(shared.get("size"))
    if not sizes:
        return None
    # Kubernetes takes half of the node's memory where nothing is said.
    return (
        math.ceil(parse_quantity(sizes[-1]))
        if sizes[-1]
        else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    )


def pod_user(platform: Mapping[str, Any]) -> str | None:
    """The user, and group, that the pipeline wants the container to run as; None: the image's."""
    context = platform.get("securityContext") or {}
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is None:
        return None
    return str(user) if group is None else f"{user}:{group}"


def _is_memory(volume: Mapping[str, Any]) -> bool:
    return volume.get("medium") == "Memory"


def not_applied(component: Component) -> list[str]:
    """Kinds of settings of this component that have no effect on a process of this machine."""
    kinds = [text for key, text in _NOT_APPLIED.items() if _is_set(component, key)]
    if component.container is not None and component.container.resources:
        kinds.append("cpu, memory and accelerator limits")
    return kinds + _of_all(component)


def not_applied_in_container(component: Component, *, has_gpus: bool = False) -> list[str]:
    """Kinds of settings of this component that have no effect on a container of this machine.

    ``has_gpus``: whether containers can be given GPUs.
    """
    settings = {key: text for key, text in _NOT_APPLIED.items() if key not in _OF_CONTAINERS}
    kinds = [text for key, text in settings.items() if _is_set(component, key)]
    resources = component.container.resources if component.container is not None else {}
    if resources.get("accelerator") and not has_gpus:
        kinds.append("accelerator limits")
    return kinds + _of_all(component)


def _is_set(component: Component, key: str) -> bool:
    """Whether the author has set it; labels that every stage of an AppDef has are nobody's wish."""
    setting = component.platform.get(key)
    if key != _POD_METADATA or not setting:
        return bool(setting)
    labels = setting.get("labels") or {}
    return bool(setting.get("annotations")) or any(not label.startswith(_OWN_LABELS) for label in labels)


def _of_all(component: Component) -> list[str]:
    fields = component.platform.get("fieldPathAsEnv") or ()
    kinds = [
        f"the variable {item['name']} (from the pod's {item['fieldPath']})"
        for item in fields
        if not field_values(_with_field(component, item), "-", "-", "-")
    ]
    if component.container is not None and component.container.has_lifecycle:
        kinds.append("container life cycle hooks")
    if volume_task(component):
        kinds.append("making and deleting volume claims")
    return kinds


def pipeline_not_applied(platform: Mapping[str, Any]) -> list[str]:
    """Kinds of settings of the pipeline itself that have no effect on this machine."""
    return [text for key, text in _PIPELINE_NOT_APPLIED.items() if platform.get(key)]


def has_workspace(pipeline: Pipeline) -> bool:
    """Whether the pipeline has a folder that its stages share."""
    return _WORKSPACE in pipeline.platform


def pipeline_refusals(platform: Mapping[str, Any]) -> Iterator[str]:
    """What the pipeline itself asks for that cannot be had."""
    for key in platform:
        if key not in (_WORKSPACE, _TIME_LIMIT, *_PIPELINE_NOT_APPLIED):
            yield f"has the setting {key!r}, which this version does not know. Run the pipeline on KFP"


def refusals(component: Component) -> Iterator[str]:
    """What the component needs that this version does not know."""
    known = {"fieldPathAsEnv", _TIME_LIMIT, *_NOT_APPLIED, *_VOLUMES, *_VARIABLES}
    for key in component.platform:
        if key not in known:
            yield f"has the Kubernetes setting {key!r}, which this version does not know. Run it on KFP"


def missing_folders(component: Component, inputs: Mapping[str, Any]) -> Iterator[str]:
    """Volumes of this component that a process does not find: there is no directory where they are mounted."""
    for key, mount in _mounts(component):
        path = mount.get("mountPath", "")
        if not os.path.isdir(path):
            yield f"{_volume(key, mount, inputs)} (make the directory {path}, or use --docker)"


def missing_mounts(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], mounted: Collection[str]
) -> Iterator[str]:
    """Volumes of this component that a container does not find, unless the user mounts something there.

    ``mounted``: the paths that the user mounts something at.
    """
    files = given_files(component, given, inputs)
    for key, mount in _mounts(component):
        path = os.path.normpath(mount.get("mountPath", ""))
        if key not in _TEMPORARY and path not in mounted and path not in files:
            option = "--config-map" if key == "configMapAsVolume" else "--secret"
            give = f", or give {option} {_name(mount, inputs) or 'NAME'}=FILE" if key in _FILES else ""
            yield f"{_volume(key, mount, inputs)} (give --mount FOLDER:{path}{give})"


def missing_variables(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[str]:
    """Variables of this component from secrets and config maps that nobody gives."""
    there = {*environ, *given_values(component, given, inputs)}
    for setting, (what, option) in _VARIABLES.items():
        for item in component.platform.get(setting) or ():
            names = [pair["envVar"] for pair in item.get("keyToEnv") or ()]
            missing = [name for name in names if name not in there]
            if missing and not item.get("optional"):
                name = _name(item, inputs)
                yield (
                    f"the {what} {name!r} (set {' and '.join(missing)}, or give {option} {name or 'NAME'}=FILE with "
                    f"{_keys(item, missing)})"
                )


def given_files(component: Component, given: GivenKeys, inputs: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Secrets and config maps that the user gives, by the paths at which the stage has them as files."""
    return {
        os.path.normpath(mount.get("mountPath", "")): given.of(key)[name]
        for key in _FILES
        for mount in component.platform.get(key) or ()
        if (name := _name(mount, inputs)) in given.of(key)
    }


def _mounts(component: Component) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in _VOLUMES:
        for mount in component.platform.get(key) or ():
            if not mount.get("optional"):
                yield key, mount


def _volume(key: str, mount: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    name = _name(mount, inputs)
    return f"{_VOLUMES[key]} {name!r}" if name else _VOLUMES[key]


def _keys(item: Mapping[str, Any], variables: list[str]) -> str:
    keys = [
        pair.get("secretKey") or pair.get("configMapKey")
        for pair in item.get("keyToEnv") or ()
        if pair["envVar"] in variables
    ]
    return f"the key{'' if len(keys) == 1 else 's'} {' and '.join(map(str, keys))}"


def _name(item: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """The name of a secret, config map or volume: constant, or an input of the scope."""
    for key in ("secretName", "configMapName", "constant", "volumeName"):
        if item.get(key):
            return str(item[key])
    for key in ("secretNameParameter", "configMapNameParameter", "pvcNameParameter"):
        source = item.get(key) or {}
        if "constant" in (source.get("runtimeValue") or {}):
            return str(source["runtimeValue"]["constant"])
        if name := source.get("componentInputParameter"):
            return str(inputs.get(name, ""))
    return ""


def _with_field(component: Component, item: Mapping[str, Any]) -> Component:
    return Component(component.name, component.kind, platform={"fieldPathAsEnv": [item]})
