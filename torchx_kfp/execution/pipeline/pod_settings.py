"""The settings of a task's pods in KFP's Kubernetes platform spec, and where each one applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.execution.pipeline.inputs import UNKNOWN


@dataclass(frozen=True)
class PodSetting:
    """A setting of the platform spec.

    Attributes:
        words: its name in messages.
        process: whether it affects a local process.
        container: whether it affects a local container.
        volume: the volume that it mounts, in messages; empty if it mounts none.
        is_temporary: whether that volume is empty at first.
        keys_of: the source of keys for the stage, ``secret`` or ``config map``; without a volume, as variables.
        handed_on: whether ``dsl.TaskConfig`` passes it on to the replicas of a distributed stage (kubeflow/pipelines,
            backend/src/v2/driver/k8s.go); None if that depends on its values or is irrelevant.
    """

    words: str
    process: bool = True
    container: bool = True
    volume: str = ""
    is_temporary: bool = False
    keys_of: str = ""
    handed_on: bool | None = None

    @property
    def option(self) -> str:
        """The option with which the user provides its keys."""
        return f"--{self.keys_of.replace(' ', '-')}"


TIME_LIMIT, FIELDS, METADATA, SHARED_MEMORY = (
    "activeDeadlineSeconds",
    "fieldPathAsEnv",
    "podMetadata",
    "enabledSharedMemory",
)
#: All known settings, by their keys; others are not applied locally, and count as not passed on.
POD_SETTINGS: Mapping[str, PodSetting] = {
    TIME_LIMIT: PodSetting("the time limit"),
    FIELDS: PodSetting("variables"),
    "secretAsEnv": PodSetting("variables", keys_of="secret"),
    "configMapAsEnv": PodSetting("variables", keys_of="config map", handed_on=True),
    "secretAsVolume": PodSetting("volumes", volume="the secret", keys_of="secret", handed_on=True),
    "configMapAsVolume": PodSetting("volumes", volume="the config map", keys_of="config map", handed_on=True),
    "pvcMount": PodSetting("volumes", volume="the volume claim"),
    "emptyDirMounts": PodSetting("empty volumes", volume="an empty directory", is_temporary=True, handed_on=False),
    "genericEphemeralVolume": PodSetting(
        "ephemeral volumes", volume="a temporary volume", is_temporary=True, handed_on=False
    ),
    SHARED_MEMORY: PodSetting("shared memory sizes", process=False, handed_on=False),
    "imagePullPolicy": PodSetting("image pull policies", process=False, handed_on=False),
    "securityContext": PodSetting("security contexts", process=False, handed_on=False),
    "imagePullSecret": PodSetting("image pull secrets", process=False, container=False, handed_on=False),
    "nodeAffinity": PodSetting("node affinities", process=False, container=False, handed_on=True),
    "nodeSelector": PodSetting("node selectors", process=False, container=False, handed_on=True),
    "podAffinity": PodSetting("pod affinities", process=False, container=False, handed_on=False),
    METADATA: PodSetting("pod labels and annotations", process=False, container=False),
    "tolerations": PodSetting("tolerations", process=False, container=False, handed_on=True),
}
#: The settings that give keys of secrets and config maps, as variables or as files.
VARIABLES = tuple(key for key, setting in POD_SETTINGS.items() if setting.keys_of and not setting.volume)
FILES = tuple(key for key, setting in POD_SETTINGS.items() if setting.keys_of and setting.volume)


def entries(platform: Mapping[str, Any], keys: tuple[str, ...]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the entries of these settings in a component's platform spec, each with its key."""
    return [(key, entry) for key in keys for entry in platform.get(key) or ()]


def name_of(item: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the name of a secret, config map or volume: a constant, or an input of the scope."""
    for key in ("secretName", "configMapName", "constant", "volumeName"):
        if item.get(key):
            return str(item[key])
    for key in ("secretNameParameter", "configMapNameParameter", "pvcNameParameter"):
        source = item.get(key) or {}
        if "constant" in (source.get("runtimeValue") or {}):
            return str(source["runtimeValue"]["constant"])
        if name := source.get("componentInputParameter"):
            value = inputs.get(name)
            return "" if value is None or value is UNKNOWN else str(value)
    return ""
