"""What a pipeline asks of Kubernetes, and what becomes of it on this machine.

Three kinds:

- field paths become environment variables with this run's values;
- secrets and config maps become variables where the user gives them (see ``secrets``), or has set the variables;
- everything else decides where and how a pod runs, or mounts what is not here. The run says once what is not applied,
  secrets that nobody gave and mount paths that do not exist among it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.local.secrets import Given
from torchx_kfp.local.spec import Component

RUN_ID_LABEL = "metadata.labels['pipeline/runid']"

_NOT_APPLIED = {
    "activeDeadlineSeconds": "time limits",
    "enabledSharedMemory": "shared memory sizes",
    "imagePullPolicy": "image pull policies",
    "imagePullSecret": "image pull secrets",
    "nodeAffinity": "node affinities",
    "nodeSelector": "node selectors",
    "podAffinity": "pod affinities",
    "podMetadata": "pod labels and annotations",
    "securityContext": "security contexts",
    "tolerations": "tolerations",
}
_PIPELINE_NOT_APPLIED = {
    "activeDeadlineSeconds": "the pipeline's time limit",
    "mutexName": "the pipeline's mutex",
    "resourceTtl": "the time for which a finished run is kept",
    "resourceTtlOnCompletion": "the time for which a finished run is kept",
    "resourceTtlOnFailure": "the time for which a finished run is kept",
    "resourceTtlOnSuccess": "the time for which a finished run is kept",
    "semaphoreKey": "the pipeline's semaphore",
}
# Known, and applied.
_WORKSPACE = "workspace"
_VOLUMES = {
    "pvcMount": "the volume claim",
    "secretAsVolume": "the secret",
    "configMapAsVolume": "the config map",
    "emptyDirMounts": "an empty directory",
    "genericEphemeralVolume": "a temporary volume",
}
_VARIABLES = {"secretAsEnv": ("secret", "--secret"), "configMapAsEnv": ("config map", "--config-map")}
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


def not_applied(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """Settings of this component that have no effect on this machine, by their kinds; what is missing by its name."""
    kinds = [text for key, text in _NOT_APPLIED.items() if component.platform.get(key)]
    for item in component.platform.get("fieldPathAsEnv") or ():
        if not field_values(_with_field(component, item), "-", "-", "-"):
            kinds.append(f"the variable {item['name']} (from the pod's {item['fieldPath']})")
    if component.container is not None and component.container.has_resources:
        kinds.append("cpu, memory and accelerator limits")
    if component.container is not None and component.container.has_lifecycle:
        kinds.append("container life cycle hooks")
    if volume_task(component):
        kinds.append("making and deleting volume claims")
    kinds += _missing_volumes(component.platform, inputs)
    kinds += _missing_variables(component, given, inputs, environ)
    return kinds


def pipeline_not_applied(platform: Mapping[str, Any]) -> list[str]:
    """Kinds of settings of the pipeline itself that have no effect on this machine."""
    return [text for key, text in _PIPELINE_NOT_APPLIED.items() if platform.get(key)]


def has_workspace(platform: Mapping[str, Any]) -> bool:
    """Whether the pipeline has a folder that its stages share."""
    return _WORKSPACE in platform


def pipeline_refusals(platform: Mapping[str, Any]) -> Iterator[str]:
    """What the pipeline itself asks for that cannot be had."""
    for key in platform:
        if key != _WORKSPACE and key not in _PIPELINE_NOT_APPLIED:
            yield f"the pipeline has the setting {key!r}, which this version does not know. Run the pipeline on KFP."


def refusals(component: Component) -> Iterator[str]:
    """What the component needs that this version does not know."""
    known = {"fieldPathAsEnv", *_NOT_APPLIED, *_VOLUMES, *_VARIABLES}
    for key in component.platform:
        if key not in known:
            yield f"has the Kubernetes setting {key!r}, which this version does not know. Run it on KFP"


def _missing_volumes(platform: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    for key, what in _VOLUMES.items():
        for mount in platform.get(key) or ():
            path = mount.get("mountPath", "")
            if not os.path.isdir(path) and not mount.get("optional"):
                name = _name(mount, inputs)
                yield f"{what}{f' {name!r}' if name else ''} (make the directory {path}, or use --docker)"


def _missing_variables(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[str]:
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
