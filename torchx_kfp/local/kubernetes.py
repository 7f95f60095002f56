"""What a pipeline asks of Kubernetes, and what becomes of it on this machine.

Three kinds:

- field paths become environment variables with this run's values;
- what decides where and how a pod runs (labels, node selectors, resources, ...) has no meaning here: the run
  says once that it is not applied;
- volumes, secrets and config maps are what the application reads. Leaving them out could make it silently
  wrong, so they have to be there: a volume's mount path as a directory of this machine, a secret's variable in the
  runner's own environment. Where they are not, the pipeline is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.local.names import join_names
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
# Shared by the stages, so that leaving it out would make them wrong.
_WORKSPACE = "workspace"
_VOLUMES = {
    "pvcMount": "the volume claim",
    "secretAsVolume": "the secret",
    "configMapAsVolume": "the config map",
    "emptyDirMounts": "an empty directory",
    "genericEphemeralVolume": "a temporary volume",
}
_VARIABLES = {"secretAsEnv": "the secret", "configMapAsEnv": "the config map"}


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
        field["name"]: values[field["fieldPath"]]
        for field in component.platform.get("fieldPathAsEnv") or ()
        if field["fieldPath"] in values
    }


def not_applied(component: Component) -> list[str]:
    """Kinds of settings of this component that have no effect on this machine."""
    kinds = [text for key, text in _NOT_APPLIED.items() if component.platform.get(key)]
    for field in component.platform.get("fieldPathAsEnv") or ():
        if not field_values(_with_field(component, field), "-", "-", "-"):
            kinds.append(f"the variable {field['name']} (from the pod's {field['fieldPath']})")
    if component.container is not None and component.container.has_resources:
        kinds.append("cpu, memory and accelerator limits")
    if component.container is not None and component.container.has_lifecycle:
        kinds.append("container life cycle hooks")
    return kinds


def pipeline_not_applied(platform: Mapping[str, Any]) -> list[str]:
    """Kinds of settings of the pipeline itself that have no effect on this machine."""
    return [text for key, text in _PIPELINE_NOT_APPLIED.items() if platform.get(key)]


def pipeline_refusals(platform: Mapping[str, Any]) -> Iterator[str]:
    """What the pipeline itself asks for that cannot be had."""
    if _WORKSPACE in platform:
        yield "the pipeline has a workspace, a volume that its stages share. Run the pipeline on KFP."
    for key in platform:
        if key != _WORKSPACE and key not in _PIPELINE_NOT_APPLIED:
            yield f"the pipeline has the setting {key!r}, which this version does not know. Run the pipeline on KFP."


def refusals(component: Component, environ: Mapping[str, str]) -> list[str]:
    """What the component needs that is not there, each with the way out."""
    return [
        *_missing_volumes(component.platform),
        *_missing_variables(component.platform, environ),
        *_unknown(component),
    ]


def _missing_volumes(platform: Mapping[str, Any]) -> Iterator[str]:
    for key, what in _VOLUMES.items():
        for mount in platform.get(key) or ():
            path = mount.get("mountPath", "")
            if os.path.isdir(path) or mount.get("optional"):
                continue
            yield (
                f"mounts {what}{_name(mount)} at {path!r}, which is not a directory of this machine. "
                "Make that directory, with what the stage shall find in it"
            )


def _missing_variables(platform: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    for key, what in _VARIABLES.items():
        for item in platform.get(key) or ():
            names = [pair["envVar"] for pair in item.get("keyToEnv") or ()]
            missing = [name for name in names if name not in environ]
            if missing and not item.get("optional"):
                yield (
                    f"takes {join_names(missing)} from {what}{_name(item)}. Set "
                    f"{'it' if len(missing) == 1 else 'them'} in the environment of this run"
                )


def _unknown(component: Component) -> Iterator[str]:
    known = {"fieldPathAsEnv", *_NOT_APPLIED, *_VOLUMES, *_VARIABLES}
    for key in component.platform:
        if key not in known:
            yield f"has the Kubernetes setting {key!r}, which this version does not know. Run it on KFP"


def _name(item: Mapping[str, Any]) -> str:
    for key in ("secretName", "configMapName", "constant", "volumeName"):
        if item.get(key):
            return f" {item[key]!r}"
    return ""


def _with_field(component: Component, field: Mapping[str, Any]) -> Component:
    return Component(component.name, component.kind, platform={"fieldPathAsEnv": [field]})
